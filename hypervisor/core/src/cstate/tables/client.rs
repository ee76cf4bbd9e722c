//! Client cores: Nehalem to Panther Lake.

use super::{ALWAYS, IdleTable, LINUX, LINUX_XEN, SPEC, TLB, UNUSABLE, state};

/// Nehalem and Westmere.
pub const NEHALEM: IdleTable = IdleTable {
    name: "nehalem",
    cpus: "Nehalem and Westmere",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[], 3, 6),
        state("C1E", 0x01, &[ALWAYS], 10, 20),
        state("C3", 0x10, &[TLB], 20, 80),
        state("C6", 0x20, &[TLB], 200, 800),
    ],
};

/// Sandy Bridge.
pub const SNB: IdleTable = IdleTable {
    name: "snb",
    cpus: "Sandy Bridge",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[], 2, 2),
        state("C1E", 0x01, &[ALWAYS], 10, 20),
        state("C3", 0x10, &[TLB], 80, 211),
        state("C6", 0x20, &[TLB], 104, 345),
        state("C7", 0x30, &[TLB], 109, 345),
    ],
};

/// Ivy Bridge.
pub const IVB: IdleTable = IdleTable {
    name: "ivb",
    cpus: "Ivy Bridge",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[], 1, 1),
        state("C1E", 0x01, &[ALWAYS], 10, 20),
        state("C3", 0x10, &[TLB], 59, 156),
        state("C6", 0x20, &[TLB], 80, 300),
        state("C7", 0x30, &[TLB], 87, 300),
    ],
};

/// Haswell.
pub const HSW: IdleTable = IdleTable {
    name: "hsw",
    cpus: "Haswell",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[], 2, 2),
        state("C1E", 0x01, &[ALWAYS], 10, 20),
        state("C3", 0x10, &[TLB], 33, 100),
        state("C6", 0x20, &[TLB], 133, 400),
        state("C7s", 0x32, &[TLB], 166, 500),
        state("C8", 0x40, &[TLB], 300, 900),
        state("C9", 0x50, &[TLB], 600, 1800),
        state("C10", 0x60, &[TLB], 2600, 7700),
    ],
};

/// Broadwell.
pub const BDW: IdleTable = IdleTable {
    name: "bdw",
    cpus: "Broadwell",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[], 2, 2),
        state("C1E", 0x01, &[ALWAYS], 10, 20),
        state("C3", 0x10, &[TLB], 40, 100),
        state("C6", 0x20, &[TLB], 133, 400),
        state("C7s", 0x32, &[TLB], 166, 500),
        state("C8", 0x40, &[TLB], 300, 900),
        state("C9", 0x50, &[TLB], 600, 1800),
        state("C10", 0x60, &[TLB], 2600, 7700),
    ],
};

/// Skylake and Kaby Lake class.
pub const SKL: IdleTable = IdleTable {
    name: "skl",
    cpus: "Skylake and Kaby Lake class",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[], 2, 2),
        state("C1E", 0x01, &[ALWAYS], 10, 20),
        state("C3", 0x10, &[TLB], 70, 100),
        state("C6", 0x20, &[TLB, SPEC], 85, 200),
        state("C7s", 0x33, &[TLB, SPEC], 124, 800),
        state("C8", 0x40, &[TLB, SPEC], 200, 800),
        state("C9", 0x50, &[TLB, SPEC], 480, 5000),
        state("C10", 0x60, &[TLB, SPEC], 890, 5000),
    ],
};

/// Alder Lake, desktop.
pub const ADL: IdleTable = IdleTable {
    name: "adl",
    cpus: "Alder Lake, desktop",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[UNUSABLE], 1, 1),
        state("C1E", 0x01, &[ALWAYS], 2, 4),
        state("C6", 0x20, &[TLB], 220, 600),
        state("C8", 0x40, &[TLB], 280, 800),
        state("C10", 0x60, &[TLB], 680, 2000),
    ],
};

/// Alder Lake, mobile.
pub const ADL_L: IdleTable = IdleTable {
    name: "adl_l",
    cpus: "Alder Lake, mobile",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[UNUSABLE], 1, 1),
        state("C1E", 0x01, &[ALWAYS], 2, 4),
        state("C6", 0x20, &[TLB], 170, 500),
        state("C8", 0x40, &[TLB], 200, 600),
        state("C10", 0x60, &[TLB], 230, 700),
    ],
};

/// Meteor Lake, mobile.
pub const MTL_L: IdleTable = IdleTable {
    name: "mtl_l",
    cpus: "Meteor Lake, mobile",
    source: LINUX_XEN,
    states: &[
        state("C1E", 0x01, &[ALWAYS], 1, 1),
        state("C6", 0x20, &[TLB], 140, 420),
        state("C10", 0x60, &[TLB], 310, 930),
    ],
};

/// Panther Lake.
pub const PTL: IdleTable = IdleTable {
    name: "ptl",
    cpus: "Panther Lake",
    source: LINUX,
    states: &[
        state("C1", 0x00, &[], 1, 1),
        state("C1E", 0x01, &[ALWAYS], 10, 10),
        state("C6S", 0x21, &[TLB], 300, 300),
        state("C10", 0x60, &[TLB], 370, 2500),
    ],
};
