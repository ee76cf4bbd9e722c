//! Servers: Ivy Bridge-EP to Granite Rapids, and Xeon Phi.

use super::{ALWAYS, ANY_SUB, IRQ, IdleTable, LINUX, LINUX_XEN, SPEC, TILES, TLB, state};

/// Ivy Bridge-EP, up to two sockets.
pub const IVT: IdleTable = IdleTable {
    name: "ivt",
    cpus: "Ivy Bridge-EP, up to two sockets",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[], 1, 1),
        state("C1E", 0x01, &[ALWAYS], 10, 80),
        state("C3", 0x10, &[TLB], 59, 156),
        state("C6", 0x20, &[TLB], 82, 300),
    ],
};

/// Ivy Bridge-EX, three or four sockets.
pub const IVT_4S: IdleTable = IdleTable {
    name: "ivt_4s",
    cpus: "Ivy Bridge-EX, three or four sockets",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[], 1, 1),
        state("C1E", 0x01, &[ALWAYS], 10, 250),
        state("C3", 0x10, &[TLB], 59, 300),
        state("C6", 0x20, &[TLB], 84, 400),
    ],
};

/// Ivy Bridge-EX, more than four sockets.
pub const IVT_8S: IdleTable = IdleTable {
    name: "ivt_8s",
    cpus: "Ivy Bridge-EX, more than four sockets",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[], 1, 1),
        state("C1E", 0x01, &[ALWAYS], 10, 500),
        state("C3", 0x10, &[TLB], 59, 600),
        state("C6", 0x20, &[TLB], 88, 700),
    ],
};

/// Skylake-SP, Cascade Lake and Cooper Lake.
pub const SKX: IdleTable = IdleTable {
    name: "skx",
    cpus: "Skylake-SP, Cascade Lake and Cooper Lake",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[IRQ], 2, 2),
        state("C1E", 0x01, &[ALWAYS], 10, 20),
        state("C6", 0x20, &[TLB, SPEC], 133, 600),
    ],
};

/// Ice Lake-SP and Ice Lake-D.
pub const ICX: IdleTable = IdleTable {
    name: "icx",
    cpus: "Ice Lake-SP and Ice Lake-D",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[IRQ], 1, 1),
        state("C1E", 0x01, &[ALWAYS], 4, 4),
        state("C6", 0x20, &[TLB], 170, 600),
    ],
};

/// Sapphire Rapids and Emerald Rapids.
pub const SPR: IdleTable = IdleTable {
    name: "spr",
    cpus: "Sapphire Rapids and Emerald Rapids",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[], 1, 1),
        state("C1E", 0x01, &[ALWAYS], 2, 4),
        state("C6", 0x20, &[TLB, TILES], 290, 800),
    ],
};

/// Granite Rapids.
pub const GNR: IdleTable = IdleTable {
    name: "gnr",
    cpus: "Granite Rapids",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[], 1, 1),
        state("C1E", 0x01, &[ALWAYS], 4, 4),
        state("C6", 0x20, &[TLB, TILES, ANY_SUB], 170, 650),
        state("C6P", 0x21, &[TLB, TILES, ANY_SUB], 210, 1000),
    ],
};

/// Granite Rapids-D.
pub const GNRD: IdleTable = IdleTable {
    name: "gnrd",
    cpus: "Granite Rapids-D",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[], 1, 1),
        state("C1E", 0x01, &[ALWAYS], 4, 4),
        state("C6", 0x20, &[TLB, TILES, ANY_SUB], 220, 650),
        state("C6P", 0x21, &[TLB, TILES, ANY_SUB], 240, 750),
    ],
};

/// Knights Landing and Knights Mill.
pub const KNL: IdleTable = IdleTable {
    name: "knl",
    cpus: "Knights Landing and Knights Mill",
    source: LINUX,
    states: &[
        state("C1", 0x00, &[], 1, 2),
        state("C6", 0x10, &[TLB], 120, 500),
    ],
};
