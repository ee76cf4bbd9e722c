//! The idle tables: for each kind of CPU, its C-states as they were measured.
//!
//! Plain `const` data, shallow to deep, and never edited in place: what the machine says about itself changes a copy
//! ([`select`](super::select)). A table is as its source has it, oddities included (Bay Trail's C6N costs more than it is
//! worth, some neighbours are equal): nobody may assume that a table is monotonic. The latency is the worst case that
//! was measured with package states allowed, a high percentile and no median.
//!
//! The name of a state never tells its hint: C6 is 0x10, 0x20, 0x51, 0x52 or 0x58, depending on the CPU.

use super::{CStateFlags, MwaitHint};
use crate::units::Micros;

pub mod atom;
pub mod client;
pub mod server;

/// Where most figures are from: both projects publish the same ones.
pub(crate) const LINUX_XEN: &str = "Linux 7.1.5 intel_idle, Xen 4.22 mwait-idle";
/// Where figures are from that only Linux publishes.
pub(crate) const LINUX: &str = "Linux 7.1.5 intel_idle";

const ALWAYS: CStateFlags = CStateFlags::ALWAYS_ENABLE;
const ANY_SUB: CStateFlags = CStateFlags::PARTIAL_HINT_MATCH;
const IRQ: CStateFlags = CStateFlags::IRQ_ENABLE;
const SPEC: CStateFlags = CStateFlags::CLEAR_SPEC_CTRL;
const TILES: CStateFlags = CStateFlags::INIT_XSTATE;
const TLB: CStateFlags = CStateFlags::TLB_FLUSHED;
const UNUSABLE: CStateFlags = CStateFlags::UNUSABLE;

/// One state of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableState {
    /// What the table calls it.
    pub name: &'static str,
    /// What MWAIT is asked for.
    pub hint: MwaitHint,
    /// Its properties.
    pub flags: CStateFlags,
    /// The longest time from the wake to the first instruction.
    pub exit_latency: Micros,
    /// A shorter stay is not worth it.
    pub target_residency: Micros,
}

/// The states of one kind of CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleTable {
    /// Its short name, as Linux and Xen call it.
    pub name: &'static str,
    /// The CPUs that it was measured on.
    pub cpus: &'static str,
    /// Which project and version published the figures.
    pub source: &'static str,
    /// The states, shallow to deep.
    pub states: &'static [TableState],
}

impl IdleTable {
    /// The table with this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        TABLES.iter().copied().find(|table| table.name == name)
    }
}

const fn state(
    name: &'static str,
    hint: u32,
    flags: &[CStateFlags],
    latency_us: u64,
    residency_us: u64,
) -> TableState {
    let mut all = CStateFlags::empty();
    let mut index = 0;
    while index < flags.len() {
        all = all.union(flags[index]);
        index += 1;
    }
    TableState {
        name,
        hint: MwaitHint::new(hint),
        flags: all,
        exit_latency: Micros::new(latency_us),
        target_residency: Micros::new(residency_us),
    }
}

/// All tables.
pub const TABLES: [&IdleTable; 30] = [
    &client::NEHALEM,
    &client::SNB,
    &client::IVB,
    &client::HSW,
    &client::BDW,
    &client::SKL,
    &client::ADL,
    &client::ADL_L,
    &client::MTL_L,
    &client::PTL,
    &server::IVT,
    &server::IVT_4S,
    &server::IVT_8S,
    &server::SKX,
    &server::ICX,
    &server::SPR,
    &server::GNR,
    &server::GNRD,
    &server::KNL,
    &atom::ATOM,
    &atom::TANGIER,
    &atom::BYT,
    &atom::CHT,
    &atom::AVN,
    &atom::BXT,
    &atom::DNV,
    &atom::SNR,
    &atom::GMT,
    &atom::GRR,
    &atom::SRF,
];

#[cfg(test)]
pub(crate) mod tests;
