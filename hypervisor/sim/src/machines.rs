//! The machines that governors are judged on.
//!
//! Latencies and residencies are those of published tables, and of a typical ACPI `_CST`; powers are assumptions, in the range that measurements of such cores report.

use crate::cost::{Machine, State};

const fn state(name: &'static str, exit_latency: u64, target_residency: u64, power: f64) -> State {
    State {
        name,
        exit_latency,
        target_residency,
        power,
    }
}

/// A server core: Skylake-X.
pub const SKX: Machine = Machine {
    name: "skx",
    states: &[
        state("C1", 2, 2, 0.42),
        state("C1E", 10, 20, 0.28),
        state("C6", 133, 600, 0.05),
    ],
};

/// A client core with many states: Skylake.
pub const SKL: Machine = Machine {
    name: "skl",
    states: &[
        state("C1", 2, 2, 0.40),
        state("C1E", 10, 20, 0.30),
        state("C3", 70, 100, 0.16),
        state("C6", 85, 200, 0.08),
        state("C7s", 124, 800, 0.06),
        state("C8", 200, 800, 0.05),
        state("C9", 480, 5000, 0.03),
        state("C10", 890, 5000, 0.01),
    ],
};

/// Three states as firmware lists them.
pub const ACPI: Machine = Machine {
    name: "acpi",
    states: &[
        state("C1", 1, 2, 0.45),
        state("C2", 18, 36, 0.25),
        state("C3", 350, 700, 0.06),
    ],
};

/// A later server core: Sapphire Rapids.
pub const SPR: Machine = Machine {
    name: "spr",
    states: &[
        state("C1", 1, 1, 0.45),
        state("C1E", 2, 4, 0.30),
        state("C6", 290, 800, 0.04),
    ],
};

/// A later client core: Alder Lake.
pub const ADL: Machine = Machine {
    name: "adl",
    states: &[
        state("C1E", 2, 4, 0.34),
        state("C6", 220, 600, 0.06),
        state("C8", 280, 800, 0.045),
        state("C10", 680, 2000, 0.015),
    ],
};

/// An earlier server core: Ice Lake.
pub const ICX: Machine = Machine {
    name: "icx",
    states: &[
        state("C1", 1, 1, 0.44),
        state("C1E", 4, 4, 0.31),
        state("C6", 170, 600, 0.045),
    ],
};

/// A small client core: Meteor Lake, low power.
pub const MTL: Machine = Machine {
    name: "mtl",
    states: &[
        state("C1E", 1, 1, 0.36),
        state("C6", 140, 420, 0.07),
        state("C10", 310, 930, 0.02),
    ],
};

/// Goldmont, whose exit latencies are as long as its target residencies.
pub const BXT: Machine = Machine {
    name: "bxt",
    states: &[
        state("C1", 2, 2, 0.45),
        state("C1E", 10, 20, 0.33),
        state("C6", 133, 133, 0.17),
        state("C7s", 155, 155, 0.13),
        state("C8", 1000, 1000, 0.07),
        state("C9", 2000, 2000, 0.04),
        state("C10", 10000, 10000, 0.02),
    ],
};

/// An earlier client core with many states, whose deepest takes long to leave: Haswell, low power. Constants were not chosen on it.
pub const HSW: Machine = Machine {
    name: "hsw",
    states: &[
        state("C1", 2, 2, 0.41),
        state("C1E", 10, 20, 0.30),
        state("C3", 33, 100, 0.18),
        state("C6", 133, 400, 0.10),
        state("C7s", 166, 500, 0.08),
        state("C8", 300, 900, 0.06),
        state("C9", 600, 1800, 0.04),
        state("C10", 2600, 7700, 0.015),
    ],
};

/// A server core with two deep states: Granite Rapids. Constants were not chosen on it.
pub const GNR: Machine = Machine {
    name: "gnr",
    states: &[
        state("C1", 1, 1, 0.43),
        state("C1E", 4, 4, 0.32),
        state("C6", 170, 650, 0.05),
        state("C6P", 210, 1000, 0.035),
    ],
};

/// The ones that constants were chosen on.
pub const TRAINING: [Machine; 8] = [SKX, SKL, ACPI, SPR, ADL, ICX, MTL, BXT];
/// The ones that governors are judged on.
pub const HELD_OUT: [Machine; 10] = ALL;
/// All of them.
pub const ALL: [Machine; 10] = [SKX, SKL, ACPI, SPR, ADL, ICX, MTL, BXT, HSW, GNR];
