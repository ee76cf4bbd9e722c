//! What a machine says about itself changes a copy of its table: each rule by itself, none hides another.

use super::candidate::Candidate;
use super::facts::Query;
use super::note::Note;
use super::reason::{Dropped, Retime, StateNote};
use crate::cstate::CStateFlags;
use crate::cstate::models::{Model, Quirks};
use crate::cstate::tables::{IdleTable, server};
use crate::units::Micros;
use alloc::vec::Vec;

/// The table of a model on this machine.
///
/// Ivy Bridge-EP has one for up to 2 packages, one for 3 and 4, and one for more.
pub(super) fn table_of(
    model: &Model,
    table: &'static IdleTable,
    query: &Query<'_>,
    notes: &mut Vec<Note>,
) -> &'static IdleTable {
    if !model.quirks.contains(Quirks::BY_SOCKETS) {
        return table;
    }
    let packages = query.topology.packages;
    notes.push(Note::Sockets(packages));
    match packages {
        0..=2 => table,
        3..=4 => &server::IVT_4S,
        _ => &server::IVT_8S,
    }
}

/// All that changes states of a table.
pub(super) fn apply(
    model: &Model,
    query: &Query<'_>,
    states: &mut [Candidate],
    notes: &mut Vec<Note>,
) {
    if model.quirks.contains(Quirks::BY_PC6_LIMIT) {
        pc6_limit(model, query, states, notes);
    }
    if model.quirks.contains(Quirks::BY_IRTL) {
        irtl(query, states);
    }
    if model.quirks.contains(Quirks::PC10_NEEDS_SGX) && hangs_with_pc10(query) {
        for one in states.iter_mut() {
            if matches!(one.state.name, "C8" | "C9") {
                one.refused = Some(Dropped::HangsWithPc10);
            }
        }
    }
    c1_or_c1e(model, query, states, notes);
}

/// The figures of C6 contain PC6. Where the package limit keeps PC6 away, C6 costs less.
fn pc6_limit(model: &Model, query: &Query<'_>, states: &mut [Candidate], notes: &mut Vec<Note>) {
    let Some(control) = query.msrs.package_control else {
        notes.push(Note::PackageLimitUnknown);
        return;
    };
    let limit = (control & 7) as u8;
    if limit >= 2 {
        return;
    }
    // 0x55 has the measured core-only figures of Skylake-SP; the others those of Sapphire Rapids.
    let to = if model.model == 0x55 {
        (Micros::new(92), Micros::new(276))
    } else {
        (Micros::new(190), Micros::new(600))
    };
    if let Some(c6) = states.iter_mut().find(|one| one.state.name == "C6") {
        c6.retime(to, Retime::NoPc6 { limit });
    }
}

/// Interrupt response time limits of PC6 to PC10: bits 9:0 are a count, bits 12:10 its unit. Source: Intel SDM, volume 4,
/// MSR_PKGC6_IRTL.
fn irtl(query: &Query<'_>, states: &mut [Candidate]) {
    const MSRS: [(&str, u32); 5] = [
        ("C6", 0x60B),
        ("C7s", 0x60C),
        ("C8", 0x633),
        ("C9", 0x634),
        ("C10", 0x635),
    ];
    for ((name, msr), value) in MSRS.into_iter().zip(query.msrs.irtl) {
        let (Some(value), Some(one)) =
            (value, states.iter_mut().find(|one| one.state.name == name))
        else {
            continue;
        };
        match irtl_micros(value) {
            Some(Micros::ZERO) => {}
            Some(time) => one.retime((time, time), Retime::Irtl { msr }),
            None => one.notes.push(StateNote::ReservedUnit { msr }),
        }
    }
}

/// The time in an IRTL MSR, 0 if there is none; `None` if its unit is reserved.
fn irtl_micros(value: u64) -> Option<Micros> {
    const UNIT_NANOS: [u64; 6] = [1, 32, 1024, 32_768, 1_048_576, 33_554_432];
    let unit = UNIT_NANOS.get((value >> 10 & 7) as usize)?;
    Some(Micros::new((value & 0x3FF) * unit / 1000))
}

/// Skylake-H: with PC10 allowed and SGX off, entering C8 or C9 beside C10 can hang the machine.
///
/// An MSR that cannot be read counts as the dangerous value.
fn hangs_with_pc10(query: &Query<'_>) -> bool {
    const UNLIMITED: u64 = 8;
    const SGX_ENABLED: u64 = 1 << 18;
    const PC10_CLASS: u8 = 7;
    let c10_allowed = query
        .options
        .max_cstate
        .is_none_or(|limit| limit.class >= PC10_CLASS);
    let pc10_allowed = query
        .msrs
        .package_control
        .is_none_or(|value| value & 0xF == UNLIMITED);
    let sgx_on = query.cpu.sgx
        && query
            .msrs
            .feature_control
            .is_some_and(|value| value & SGX_ENABLED != 0);
    c10_allowed && query.cpu.mwait.substates >> 28 != 0 && pc10_allowed && !sgx_on
}

/// Alder Lake class: C1 and C1E exclude each other. C1E unless `preferred-c1e=off` and the table knows C1's figures.
fn c1_or_c1e(model: &Model, query: &Query<'_>, states: &mut [Candidate], notes: &mut Vec<Note>) {
    if query.options.preferred_c1e.is_some() && !has_choice(model, states) {
        notes.push(Note::NoChoiceOfC1e);
    }
    let c1 = prefers_c1(model, query, states);
    let exclusive = model.quirks.contains(Quirks::ENABLE_C1E_PROMOTION);
    for one in states.iter_mut().filter(|one| exclusive && one.class == 1) {
        match (one.state.name, c1) {
            ("C1", true) => one.state.flags.remove(CStateFlags::UNUSABLE),
            ("C1", false) | ("C1E", true) => one.refused = Some(Dropped::OtherOfC1AndC1e),
            _ => {}
        }
    }
}

/// Is the user's choice C1, where it is one?
pub(super) fn prefers_c1(model: &Model, query: &Query<'_>, states: &[Candidate]) -> bool {
    query.options.preferred_c1e == Some(false) && has_choice(model, states)
}

fn has_choice(model: &Model, states: &[Candidate]) -> bool {
    model.quirks.contains(Quirks::ENABLE_C1E_PROMOTION)
        && states.iter().any(|one| one.state.name == "C1")
}
