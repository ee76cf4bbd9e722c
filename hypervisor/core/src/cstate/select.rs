//! Which C-states a CPU gets, and why.
//!
//! A pure function of what the CPU and the firmware say, of what the boot-time self-test **found** (CPUID is not believed
//! about MWAIT: under an emulator or another hypervisor it may fault, or never sleep), of what the image can do, and of
//! the options. Every state that was considered comes out with the reason for which it was kept, switched off, dropped
//! or re-timed, for the boot log, the machine channel and `cargo xtask cstates`.
//!
//! Called once a CPU at boot. The parts: [`Query`] is what is asked, [`Selected`] the answer; `sources` finds the states,
//! `fixups` and `edits` change a copy of their figures, `judge` decides about each, `msr` plans the writes.

use super::errata::Errata;
use super::limits::PackageControl;
use super::models::Identity;
use super::{CState, CStateFlags, CStateTable, EntryMethod, MAX_STATES, StateId};
use crate::idle::MonitorTrust;
use crate::options::{IdleMethod, StatesOff};
use crate::platform::IrqGate;
use alloc::vec::Vec;
use candidate::Candidate;
use core::fmt;

mod candidate;
mod edits;
mod facts;
mod fixups;
mod judge;
mod msr;
mod note;
mod reason;
mod sources;
mod topology;

pub use edits::{EditFault, MAX_EDIT_LATENCY, MAX_EDIT_RESIDENCY};
pub use facts::{
    CpuFacts, Firmware, MsrValues, MwaitLeaf, MwaitTest, MwaitVerdict, Query, Registers, Support,
    Topology,
};
pub use msr::{MsrWrite, Scope, When, WriteReason};
pub use note::{NoCst, Note, TableUnused};
pub use reason::{Dropped, Kept, Off, Retime, StateNote, Verdict};

/// One state, and what was decided about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Considered {
    /// The state, as it would be entered.
    pub state: CState,
    /// How deep it is, as `max_cstate=` counts.
    pub class: u32,
    /// What was decided, and why.
    pub verdict: Verdict,
    /// What else is to be said about it.
    pub notes: Vec<StateNote>,
}

/// One line: what it is, what was decided, what else is to be said.
impl fmt::Display for Considered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = &self.state;
        write!(
            f,
            "{} by {}, {}/{} us, {}",
            state.name,
            state.method,
            state.exit_latency.get(),
            state.target_residency.get(),
            self.verdict
        )?;
        for note in &self.notes {
            write!(f, "; {note}")?;
        }
        Ok(())
    }
}

/// The states of a CPU, how they came to be that, and what must be done for them.
#[derive(Clone, Debug)]
pub struct Selected {
    /// The states that are used.
    pub table: CStateTable,
    /// The states that can be used: those of `table`, and those that are off at first.
    pub usable: CStateTable,
    /// Which of `usable` are off at first.
    pub off: Vec<StateId>,
    /// Every state that was considered, shallow to deep.
    pub considered: Vec<Considered>,
    /// What is to be said about the whole.
    pub notes: Vec<Note>,
    /// Which MSRs to write.
    pub msr_writes: Vec<MsrWrite>,
    /// Which CPU it is.
    pub identity: Identity,
    /// What is wrong with it.
    pub errata: Errata,
    /// Whether stores to the wake word end its sleep in MWAIT.
    pub monitor: MonitorTrust,
    /// The monitored line must be flushed before MONITOR. On all CPUs, if on any.
    pub flush_before_monitor: bool,
    /// CST_CNT to write to SMI_CMD once, since `_CST` is used.
    pub take_cst: Option<u8>,
    /// The HPET stops in the deepest states: it must not be the clock.
    pub hpet_stops: bool,
    /// The TSC stops in a state that is used.
    pub tsc_unstable: bool,
    /// Where a CPU goes that is taken offline.
    pub parking: CState,
}

impl Selected {
    /// What is entered instead of a state that must not be entered now: the CPU's own C1, or HLT if it has none.
    ///
    /// Not HLT where there is a choice: on AMD's design HLT may go to CC6.
    pub fn safe(&self) -> CState {
        let mut firsts = self.considered.iter().filter(|one| {
            one.verdict.is_usable() && one.class <= 1 && one.state.method != EntryMethod::Poll
        });
        firsts.next().map_or(CState::C1_HALT, |one| one.state)
    }
}

/// Chooses the states of one CPU.
pub fn select(query: &Query<'_>) -> Selected {
    let errata = Errata::of(&query.cpu.identity);
    let mut notes = Vec::new();
    let mut msr_writes = Vec::new();
    let source = sources::find(query, errata, &mut notes);

    let of_firmware = |one: &Candidate| one.acpi.is_some();
    if query.options.latency_factor.is_some() && !source.states.iter().any(of_firmware) {
        notes.push(Note::NoFactor);
    }

    let mut considered = Vec::with_capacity(source.states.len() + 3);
    considered.push(poll(query));
    let mut rest = Vec::with_capacity(source.states.len());
    for (at, one) in source.states.iter().enumerate() {
        let off = source.off.iter().find(|(off, _)| *off == at);
        rest.push(decide(query, errata, one.clone(), off.map(|(_, why)| *why)));
    }
    if !rest
        .iter()
        .any(|one| one.class <= 1 && one.verdict.is_usable())
    {
        considered.extend(own_c1(query, errata));
        if considered
            .iter()
            .any(|one| one.verdict.is_used() && one.state.method == EntryMethod::Halt)
        {
            // The same instruction twice, with other figures, would be two names for one state.
            for one in rest
                .iter_mut()
                .filter(|one| one.state.method == EntryMethod::Halt)
            {
                if one.verdict.is_usable() {
                    one.verdict = Verdict::Dropped(Dropped::IsC1);
                }
            }
        }
    }
    considered.append(&mut rest);
    deep_halt(&mut considered);
    keep_to_size(&mut considered);
    switch_off(&query.options.states_off, &mut considered, &mut notes);
    keep_halt(query, errata, &mut considered, &mut notes);

    let uses_mwait = considered.iter().any(|one| {
        one.verdict.is_usable() && matches!(one.state.method, EntryMethod::Mwait { .. })
    });
    msr::for_errata(query, errata, &mut msr_writes);
    if let Some(model) = source.model.filter(|_| uses_mwait) {
        let prefer_c1 = fixups::prefers_c1(model, query, &source.states);
        msr::for_model(model.quirks, query, prefer_c1, &mut msr_writes);
        if query.msrs.power_control.is_none() {
            notes.push(Note::PromotionUnknown);
        }
    }

    package(query, &mut notes);
    let matter = matters(query, errata);
    if !matter.is_empty() {
        notes.push(Note::Errata(matter));
    }
    let tsc_unstable = considered
        .iter()
        .any(|one| one.verdict.is_used() && one.state.flags.contains(CStateFlags::TSC_STOPS));
    if tsc_unstable {
        notes.push(Note::TscUnstable);
    }
    let hpet_stops = query.hpet_stops();
    if hpet_stops {
        notes.push(Note::HpetStops);
    }
    let (table, usable, off) = tables(&considered);
    Selected {
        table,
        usable,
        off,
        monitor: query.cpu.test.trust(errata.contains(Errata::MISSES_STORES)),
        flush_before_monitor: errata.contains(Errata::CLFLUSH_MONITOR) && query.cpu.clflush,
        take_cst: query
            .firmware
            .fadt
            .map(|fadt| fadt.cst_control)
            .filter(|&control| source.takes_cst && control != 0),
        hpet_stops,
        tsc_unstable,
        parking: parking(query, &table),
        considered,
        notes,
        msr_writes,
        identity: query.cpu.identity,
        errata,
    }
}

/// Where a CPU goes that is taken offline: the deepest state that is used, with interrupts masked.
///
/// From the table, and not computed from the sub-state counts of CPUID, which are no numbers. A thread that is parked
/// in less keeps its core, and the whole package, out of deep states. HLT where that leads as deep, as on Zen, and where MWAIT
/// has no way out with interrupts masked. Not in a state that needs all CPUs' arbitration counted: who is parked counts no more.
fn parking(query: &Query<'_>, table: &CStateTable) -> CState {
    let by_mwait = |state: &CState| matches!(state.method, EntryMethod::Mwait { .. });
    let deepest = table.states().last();
    if query.cpu.identity.halt_may_be_deep() && !deepest.is_some_and(by_mwait) {
        return CState::C1_HALT;
    }
    let may_park = |state: &&CState| match state.method {
        EntryMethod::Mwait { .. } => judge::masked_works(query).is_ok(),
        EntryMethod::IoRead(_) => !state.flags.contains(CStateFlags::DISABLE_ARBITRATION),
        EntryMethod::Halt => true,
        EntryMethod::Poll => false,
    };
    let Some(mut state) = table.states().iter().rev().find(may_park).copied() else {
        return CState::C1_HALT;
    };
    if let EntryMethod::Mwait { hint, .. } = state.method {
        state.method = EntryMethod::Mwait {
            hint,
            gate: IrqGate::Masked,
        };
    }
    if state.flags.contains(CStateFlags::CHECK_BUS_MASTER) {
        // Nobody looks at bus masters for it, so it has nothing that they could ask for.
        state.flags |= CStateFlags::FLUSH_CACHES;
    }
    state
}

/// What MSR 0xE2 says about the package.
fn package(query: &Query<'_>, notes: &mut Vec<Note>) {
    let (Some(control), Some(value)) = (
        PackageControl::of(&query.cpu.identity),
        query.msrs.package_control,
    ) else {
        return;
    };
    if let Some(name) = control.limit(value).filter(|name| *name != "unlimited") {
        let code = (value & 0xF) as u8;
        notes.push(Note::PackageLimit { code, name });
    }
    if control.converts(value) {
        notes.push(Note::AutoConversion);
    }
}

/// The errata that change something on this machine.
fn matters(query: &Query<'_>, errata: Errata) -> Errata {
    let mut matter = errata;
    if !query.topology.smt {
        matter -= Errata::RAPID_DEEP;
    }
    if query.support.directed_eoi {
        matter -= Errata::IN_SERVICE_EOI;
    }
    if query.cpu.hypervisor {
        matter -= Errata::CC6_HANGS_LATE;
    }
    // Where the firmware has not armed C1E, nothing stops.
    let armed = |value: u64| value & msr::AMD_C1E != 0;
    if !query.msrs.interrupt_pending.is_none_or(armed) {
        matter -= Errata::AMD_C1E_TIMER;
    }
    if !query.cpu.clflush {
        matter -= Errata::CLFLUSH_MONITOR;
    }
    matter
}

fn poll(query: &Query<'_>) -> Considered {
    Considered {
        state: CState::POLL,
        class: 0,
        verdict: Verdict::Used(match query.idle {
            IdleMethod::Poll => Kept::AskedFor,
            _ => Kept::ShortestSleeps,
        }),
        notes: Vec::new(),
    }
}

fn decide(query: &Query<'_>, errata: Errata, mut one: Candidate, off: Option<Off>) -> Considered {
    let judged = judge::judge(query, errata, &mut one);
    let verdict = match (judged, off) {
        (Err(why), _) => Verdict::Dropped(why),
        (Ok(()), Some(why)) => {
            one.state.flags |= CStateFlags::OFF_BY_DEFAULT;
            Verdict::Off(why)
        }
        (Ok(()), None) => Verdict::Used(one.kept),
    };
    Considered {
        state: one.state,
        class: one.class,
        verdict,
        notes: one.notes,
    }
}

/// HLT that may go as deep as CC6: what that costs is known if the firmware lists a state that leads there.
fn deep_halt(considered: &mut [Considered]) {
    let listed = considered.iter().filter(|one| {
        one.class > 1
            && one.verdict.is_usable()
            && matches!(one.state.method, EntryMethod::IoRead(_))
    });
    let Some(deepest) = listed.map(|one| one.state.exit_latency).max() else {
        return;
    };
    for one in considered {
        if one.notes.contains(&StateNote::HaltMayBeDeep) {
            one.state.exit_latency = deepest;
        }
    }
}

/// C1 for a CPU whose source gives none: by MWAIT if that works, else by HLT.
fn own_c1(query: &Query<'_>, errata: Errata) -> Vec<Considered> {
    let mwait = Candidate::new(CState::c1_mwait(IrqGate::Masked), 1, Kept::BareMwait);
    let mut by_mwait = decide(query, errata, mwait.clone(), None);
    if let Verdict::Dropped(Dropped::SelfTest(IrqGate::Masked, _) | Dropped::NoInterruptBreak) =
        by_mwait.verdict
    {
        let mut last = mwait;
        if judge::open_as_last_way(query, errata, &mut last).is_ok() {
            by_mwait.state = last.state;
            by_mwait.verdict = Verdict::Used(last.kept);
            by_mwait.notes = last.notes;
        }
    }
    let have = by_mwait.verdict.is_used();
    let halt = Candidate::new(CState::C1_HALT, 1, Kept::AlwaysWorks);
    let mut by_halt = decide(query, errata, halt, None);
    if by_halt.verdict.is_used() {
        if have {
            by_halt.verdict = Verdict::Dropped(Dropped::BetterEntry);
            by_halt.notes.clear();
        } else if query.idle == IdleMethod::Halt {
            by_halt.verdict = Verdict::Used(Kept::AskedFor);
        }
    }
    Vec::from([by_mwait, by_halt])
}

/// A table holds so many states, and no more.
fn keep_to_size(considered: &mut [Considered]) {
    let usable = considered
        .iter_mut()
        .filter(|one| one.verdict.is_usable())
        .skip(MAX_STATES);
    for one in usable {
        one.verdict = Verdict::Dropped(Dropped::TooMany);
    }
}

/// `states_off=`: bits count the usable states, POLL first.
fn switch_off(off: &StatesOff, considered: &mut [Considered], notes: &mut Vec<Note>) {
    let usable = considered.iter_mut().filter(|one| one.verdict.is_usable());
    let mut count = 0;
    for (index, one) in usable.enumerate() {
        count = index + 1;
        let by_mask = index < 32 && off.mask & (1 << index) != 0;
        let by_name = off.names.iter().any(|name| name == one.state.name);
        if (by_mask || by_name) && one.verdict.is_used() {
            one.verdict = Verdict::Off(Off::ByOption);
            one.state.flags |= CStateFlags::OFF_BY_DEFAULT;
        }
    }
    for name in &off.names {
        let there = |one: &Considered| one.verdict.is_usable() && one.state.name == name;
        if !considered.iter().any(there) {
            notes.push(Note::NothingToSwitchOff(name.clone()));
        }
    }
    let surplus = off.mask.checked_shr(count as u32).unwrap_or(0) << count.min(31);
    if surplus != 0 {
        // One line, however many there are.
        let (first, last) = (surplus.trailing_zeros(), surplus.ilog2());
        let which = if first == last {
            alloc::format!("{first}")
        } else {
            alloc::format!("{first} to {last}")
        };
        notes.push(Note::NothingToSwitchOff(which));
    }
}

/// HLT stays, whatever `states_off=` left: the others can still be switched on.
fn keep_halt(
    query: &Query<'_>,
    errata: Errata,
    considered: &mut Vec<Considered>,
    notes: &mut Vec<Note>,
) {
    // A CPU that only polls is not idle: who wants that says so.
    let asked = query.idle == IdleMethod::Poll;
    let sleeps = |one: &Considered| asked || one.state.method != EntryMethod::Poll;
    if considered
        .iter()
        .any(|one| one.verdict.is_used() && sleeps(one))
    {
        return;
    }
    notes.push(Note::NothingLeft);
    // C1, or else Zen's C2: HLT once more would be the same state under another name.
    let halt = considered
        .iter_mut()
        .find(|one| one.state.method == EntryMethod::Halt && one.verdict.is_usable());
    if let Some(one) = halt {
        one.verdict = Verdict::Used(Kept::AlwaysWorks);
        one.state.flags -= CStateFlags::OFF_BY_DEFAULT;
        return;
    }
    let usable = considered.iter().filter(|one| one.verdict.is_usable());
    if usable.count() < MAX_STATES {
        let halt = Candidate::new(CState::C1_HALT, 1, Kept::AlwaysWorks);
        considered.insert(1, decide(query, errata, halt, None));
    }
}

/// The tables of what was decided. If there is nothing in one, it is HLT.
fn tables(considered: &[Considered]) -> (CStateTable, CStateTable, Vec<StateId>) {
    let collect = |wanted: fn(Verdict) -> bool| -> Vec<CState> {
        considered
            .iter()
            .filter(|one| wanted(one.verdict))
            .map(|one| one.state)
            .collect()
    };
    let used = CStateTable::new(&collect(Verdict::is_used));
    let usable = CStateTable::new(&collect(Verdict::is_usable));
    let (Ok(used), Ok(usable)) = (used, usable) else {
        return (CStateTable::HALT, CStateTable::HALT, Vec::new());
    };
    let off = considered
        .iter()
        .filter(|one| one.verdict.is_usable())
        .enumerate()
        .filter(|(_, one)| !one.verdict.is_used())
        .filter_map(|(index, _)| usable.id(index))
        .collect();
    (used, usable, off)
}

#[cfg(test)]
mod tests;
