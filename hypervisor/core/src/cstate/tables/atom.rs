//! Atom cores, from Bonnell to Darkmont.

use super::{ALWAYS, ANY_SUB, IdleTable, LINUX_XEN, TLB, UNUSABLE, state};

/// Bonnell, Lincroft and Saltwell.
pub const ATOM: IdleTable = IdleTable {
    name: "atom",
    cpus: "Bonnell, Lincroft and Saltwell",
    source: LINUX_XEN,
    states: &[
        state("C1E", 0x00, &[], 10, 20),
        state("C2", 0x10, &[], 20, 80),
        state("C4", 0x30, &[TLB], 100, 400),
        state("C6", 0x52, &[TLB], 140, 560),
    ],
};

/// Merrifield and Moorefield.
pub const TANGIER: IdleTable = IdleTable {
    name: "tangier",
    cpus: "Merrifield and Moorefield",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[], 1, 4),
        state("C4", 0x30, &[TLB], 100, 400),
        state("C6", 0x52, &[TLB], 140, 560),
        state("C7", 0x60, &[TLB], 1200, 4000),
        state("C9", 0x64, &[TLB], 10000, 20000),
    ],
};

/// Bay Trail.
pub const BYT: IdleTable = IdleTable {
    name: "byt",
    cpus: "Bay Trail",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[], 1, 1),
        state("C6N", 0x58, &[TLB], 300, 275),
        state("C6S", 0x52, &[TLB], 500, 560),
        state("C7", 0x60, &[TLB], 1200, 4000),
        state("C7S", 0x64, &[TLB], 10000, 20000),
    ],
};

/// Cherry Trail.
pub const CHT: IdleTable = IdleTable {
    name: "cht",
    cpus: "Cherry Trail",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[], 1, 1),
        state("C6N", 0x58, &[TLB], 80, 275),
        state("C6S", 0x52, &[TLB], 200, 560),
        state("C7", 0x60, &[TLB], 1200, 4000),
        state("C7S", 0x64, &[TLB], 10000, 20000),
    ],
};

/// Avoton.
pub const AVN: IdleTable = IdleTable {
    name: "avn",
    cpus: "Avoton",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[], 2, 2),
        state("C6", 0x51, &[TLB], 15, 45),
    ],
};

/// Broxton and Gemini Lake.
pub const BXT: IdleTable = IdleTable {
    name: "bxt",
    cpus: "Broxton and Gemini Lake",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[], 2, 2),
        state("C1E", 0x01, &[ALWAYS], 10, 20),
        state("C6", 0x20, &[TLB], 133, 133),
        state("C7s", 0x31, &[TLB], 155, 155),
        state("C8", 0x40, &[TLB], 1000, 1000),
        state("C9", 0x50, &[TLB], 2000, 2000),
        state("C10", 0x60, &[TLB], 10000, 10000),
    ],
};

/// Denverton.
pub const DNV: IdleTable = IdleTable {
    name: "dnv",
    cpus: "Denverton",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[], 2, 2),
        state("C1E", 0x01, &[ALWAYS], 10, 20),
        state("C6", 0x20, &[TLB], 50, 500),
    ],
};

/// Snow Ridge.
pub const SNR: IdleTable = IdleTable {
    name: "snr",
    cpus: "Snow Ridge",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[], 2, 2),
        state("C1E", 0x01, &[ALWAYS], 15, 25),
        state("C6", 0x20, &[TLB], 130, 500),
    ],
};

/// Alder Lake-N (Gracemont).
pub const GMT: IdleTable = IdleTable {
    name: "gmt",
    cpus: "Alder Lake-N (Gracemont)",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[UNUSABLE], 1, 1),
        state("C1E", 0x01, &[ALWAYS], 2, 4),
        state("C6", 0x20, &[TLB], 195, 585),
        state("C8", 0x40, &[TLB], 260, 1040),
        state("C10", 0x60, &[TLB], 660, 1980),
    ],
};

/// Grand Ridge.
pub const GRR: IdleTable = IdleTable {
    name: "grr",
    cpus: "Grand Ridge",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[ALWAYS], 1, 1),
        state("C1E", 0x01, &[ALWAYS], 2, 10),
        state("C6S", 0x22, &[TLB], 140, 500),
    ],
};

/// Sierra Forest and Clearwater Forest.
pub const SRF: IdleTable = IdleTable {
    name: "srf",
    cpus: "Sierra Forest and Clearwater Forest",
    source: LINUX_XEN,
    states: &[
        state("C1", 0x00, &[ALWAYS], 1, 1),
        state("C1E", 0x01, &[ALWAYS], 2, 10),
        state("C6S", 0x22, &[TLB, ANY_SUB], 270, 700),
        state("C6SP", 0x23, &[TLB, ANY_SUB], 310, 900),
    ],
};
