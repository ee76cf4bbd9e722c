//! Can this CPU use this state, and how is it entered?

use super::candidate::Candidate;
use super::facts::{MwaitVerdict, Query};
use super::note::TableUnused;
use super::reason::{Dropped, StateNote};
use crate::cstate::acpi::AcpiType;
use crate::cstate::errata::Errata;
use crate::cstate::{CStateFlags, EntryMethod, MwaitHint};
use crate::options::{EarlyIrq, IdleMethod};
use crate::platform::IrqGate;
use crate::units::Micros;

/// Exit latency of CC6 on Zen, as Xen 4.22 has it.
pub(super) const ZEN_CC6_EXIT: Micros = Micros::new(400);

/// Is there an MWAIT that a table's states can be entered with? What the self-test found does not count here.
///
/// # Errors
/// The first thing that is missing.
pub(super) fn mwait_at_all(query: &Query<'_>, errata: Errata) -> Result<(), TableUnused> {
    usable_monitor(query, errata).map_err(TableUnused::Needs)?;
    let leaf = &query.cpu.mwait;
    if !leaf.extensions || !leaf.interrupt_break {
        return Err(TableUnused::Needs(Dropped::NoInterruptBreak));
    }
    if leaf.substates == 0 {
        return Err(TableUnused::NoSubstates);
    }
    Ok(())
}

fn usable_monitor(query: &Query<'_>, errata: Errata) -> Result<(), Dropped> {
    if !query.cpu.monitor {
        return Err(Dropped::NoMonitor);
    }
    if errata.contains(Errata::MWAIT_USELESS) {
        return Err(Dropped::Erratum(Errata::MWAIT_USELESS));
    }
    if query.cpu.mwait.nonsense {
        return Err(Dropped::Leaf5IsNonsense);
    }
    if query.cpu.mwait.smallest_line == 0 || query.cpu.mwait.largest_line == 0 {
        return Err(Dropped::NoLineSize);
    }
    Ok(())
}

/// Can MWAIT be used for this hint, with interrupts masked inside?
///
/// # Errors
/// The first thing that stands against it.
pub(super) fn mwait_state(
    query: &Query<'_>,
    hint: MwaitHint,
    errata: Errata,
) -> Result<(), Dropped> {
    usable_monitor(query, errata)?;
    offered(query, hint)?;
    masked_works(query)
}

/// Is it a hint, and of a state that CPUID reports, as far as it reports any?
fn offered(query: &Query<'_>, hint: MwaitHint) -> Result<(), Dropped> {
    if !hint.is_one() {
        return Err(Dropped::NoHint(hint));
    }
    let leaf = &query.cpu.mwait;
    if leaf.extensions && !hint.reported_by(leaf.substates) {
        return Err(Dropped::NotReported(hint));
    }
    Ok(())
}

/// Does MWAIT end with interrupts masked?
///
/// # Errors
/// It has no such break, or did not prove it.
pub(super) fn masked_works(query: &Query<'_>) -> Result<(), Dropped> {
    if !query.cpu.mwait.extensions || !query.cpu.mwait.interrupt_break {
        return Err(Dropped::NoInterruptBreak);
    }
    works(query, IrqGate::Masked)
}

fn works(query: &Query<'_>, gate: IrqGate) -> Result<(), Dropped> {
    let verdict = verdict(query, gate);
    let forced = query.options.force_mwait && !verdict.faults();
    if verdict == MwaitVerdict::Works || forced {
        Ok(())
    } else {
        Err(Dropped::SelfTest(gate, verdict))
    }
}

const fn verdict(query: &Query<'_>, gate: IrqGate) -> MwaitVerdict {
    match gate {
        IrqGate::Open => query.cpu.test.open,
        IrqGate::Masked => query.cpu.test.masked,
    }
}

/// Decides whether a state can be used. If so, it has its final method and flags, and what is to be said about it.
///
/// # Errors
/// The first thing that stands against it, options first.
pub(super) fn judge(query: &Query<'_>, errata: Errata, one: &mut Candidate) -> Result<(), Dropped> {
    wanted(query, one)?;
    limited(query, errata, one)?;
    if let Some(why) = one.refused {
        return Err(why);
    }
    if one.state.flags.contains(CStateFlags::UNUSABLE) {
        return Err(Dropped::Unusable);
    }
    if let Some(hint) = one.hint() {
        enter_by_mwait(query, errata, hint, one)?;
    }
    clocks(query, one)?;
    settle_flags(query, errata, one);
    Ok(())
}

/// Do the options want it?
fn wanted(query: &Query<'_>, one: &Candidate) -> Result<(), Dropped> {
    match (one.state.method, query.idle) {
        (EntryMethod::Poll, _) => return Ok(()),
        (_, IdleMethod::Poll) => return Err(Dropped::NotAskedFor(query.idle)),
        (EntryMethod::Mwait { .. } | EntryMethod::IoRead(_), IdleMethod::Halt) => {
            return Err(Dropped::NotAskedFor(query.idle));
        }
        _ => {}
    }
    let plain_halt = one.state.method == EntryMethod::Halt && one.class <= 1;
    if !query.options.cpuidle && !plain_halt {
        return Err(Dropped::CpuidleOff);
    }
    if let Some(limit) = query.options.max_cstate {
        let too_deep = one.class > u32::from(limit.class);
        if too_deep && !(plain_halt && limit.class == 0) {
            return Err(Dropped::MaxCState(limit.class));
        }
        if let (Some(sub), Some(hint)) = (limit.substate, one.hint())
            && one.class == u32::from(limit.class)
            && hint.substate() > u32::from(sub)
        {
            return Err(Dropped::MaxSubstate(sub));
        }
    }
    Ok(())
}

/// What the CPU's errata allow, whatever the options say.
fn limited(query: &Query<'_>, errata: Errata, one: &Candidate) -> Result<(), Dropped> {
    if one.class <= 1 {
        return Ok(());
    }
    let strikes = c1_only(query, errata);
    if strikes.is_empty() {
        Ok(())
    } else {
        Err(Dropped::Erratum(strikes))
    }
}

/// The errata that leave only C1 on this machine.
pub(super) fn c1_only(query: &Query<'_>, errata: Errata) -> Errata {
    let mut strikes = errata & Errata::C1_ONLY;
    if query.topology.smt {
        strikes |= errata & Errata::RAPID_DEEP;
    }
    // Where C1E can be disarmed it is, and nothing has to be limited.
    if query.msrs.interrupt_pending.is_none() {
        strikes |= errata & Errata::AMD_C1E_TIMER;
    }
    strikes
}

fn enter_by_mwait(
    query: &Query<'_>,
    errata: Errata,
    hint: MwaitHint,
    one: &mut Candidate,
) -> Result<(), Dropped> {
    usable_monitor(query, errata)?;
    offered(query, hint)?;
    let gate = match open_inside(query, one) {
        Some(Ok(why)) => {
            one.notes.push(why);
            IrqGate::Open
        }
        other => {
            if let Some(Err(why)) = other {
                one.notes.push(StateNote::NotOpen(why));
            }
            masked_works(query)?;
            IrqGate::Masked
        }
    };
    if verdict(query, gate) != MwaitVerdict::Works {
        one.notes.push(StateNote::Unproven);
    }
    one.state.method = EntryMethod::Mwait { hint, gate };
    Ok(())
}

/// Should handlers run inside? `None` if nothing asks for it, else why, or why not.
fn open_inside(query: &Query<'_>, one: &Candidate) -> Option<Result<StateNote, Dropped>> {
    let flags = one.state.flags;
    let rules_it_out = flags.intersects(CStateFlags::INIT_XSTATE | CStateFlags::CLEAR_SPEC_CTRL);
    let flagged = flags.contains(CStateFlags::IRQ_ENABLE);
    let why = match query.options.early_irq {
        EarlyIrq::Off if flagged => return Some(Err(Dropped::EarlyInterruptsOff)),
        EarlyIrq::Auto | EarlyIrq::Force if flagged => StateNote::Open,
        EarlyIrq::Force if !rules_it_out => StateNote::OpenForced,
        _ => return None,
    };
    if !query.nonstop_tsc() {
        return Some(Err(Dropped::HandlersNeedTsc));
    }
    Some(works(query, IrqGate::Open).map(|()| why))
}

/// C1 with interrupts open, on a CPU where MWAIT works in no other way.
///
/// # Errors
/// What stands against it.
pub(super) fn open_as_last_way(
    query: &Query<'_>,
    errata: Errata,
    one: &mut Candidate,
) -> Result<(), Dropped> {
    wanted(query, one)?;
    usable_monitor(query, errata)?;
    offered(query, MwaitHint::C1)?;
    if query.options.early_irq == EarlyIrq::Off {
        return Err(Dropped::EarlyInterruptsOff);
    }
    if !query.nonstop_tsc() {
        return Err(Dropped::HandlersNeedTsc);
    }
    works(query, IrqGate::Open)?;
    one.state.method = EntryMethod::Mwait {
        hint: MwaitHint::C1,
        gate: IrqGate::Open,
    };
    one.state.flags |= CStateFlags::IRQ_ENABLE;
    one.notes.push(StateNote::OpenOnlyWay);
    Ok(())
}

/// The TSC stops in states deeper than class 2 of a table, and than C1 of the firmware; the local APIC timer in all that
/// are deeper than class 1.
fn clocks(query: &Query<'_>, one: &mut Candidate) -> Result<(), Dropped> {
    let plain_halt = one.state.method == EntryMethod::Halt && one.class <= 1;
    if plain_halt || one.state.method == EntryMethod::Poll {
        return Ok(());
    }
    let tsc_stops = match (one.state.method, one.acpi) {
        // Zen's way to CC6, which the firmware would list as C2 or C3.
        (EntryMethod::Halt, None) => true,
        (_, Some(acpi)) => acpi > AcpiType::C1,
        (_, None) => one.class > 2,
    };
    if tsc_stops && !query.nonstop_tsc() {
        one.state.flags |= CStateFlags::TSC_STOPS;
        if !query.support.restores_tsc {
            return Err(Dropped::TscStops);
        }
        one.notes.push(StateNote::TscRestored);
    }
    if one.class > 1 && !query.arat() {
        one.state.flags |= CStateFlags::TIMER_STOPS;
        if !query.support.timer_broadcast || query.hpet_stops() {
            return Err(Dropped::TimerStops);
        }
        one.notes.push(StateNote::TimerStandsIn);
    }
    Ok(())
}

/// Flags that depend on the machine.
fn settle_flags(query: &Query<'_>, errata: Errata, one: &mut Candidate) {
    // Without tiles there is nothing to release, and TILERELEASE would raise #UD.
    if !query.cpu.amx {
        one.state.flags -= CStateFlags::INIT_XSTATE;
    }
    // A core of its own disturbs nobody by what it leaves in SPEC_CTRL.
    if !query.topology.smt {
        one.state.flags -= CStateFlags::CLEAR_SPEC_CTRL;
    }
    let mut in_service = errata & Errata::IN_SERVICE;
    if query.support.directed_eoi {
        in_service -= Errata::IN_SERVICE_EOI;
    }
    if one.class >= 3 && !in_service.is_empty() {
        one.state.flags |= CStateFlags::CHECK_IN_SERVICE;
        one.notes.push(StateNote::InService);
    }
    let promoted = query
        .msrs
        .power_control
        .is_some_and(|value| value & 1 << 1 != 0);
    if promoted && one.state.name == "C1" && has_no_promotion_quirk(query) {
        one.notes.push(StateNote::Promoted);
    }
    let deep = query.cpu.identity.halt_may_be_deep() && !query.cpu.hypervisor;
    if one.state.method == EntryMethod::Halt && one.class <= 1 && deep {
        // A limit on latency is a promise, so the exit counts as what it may be. A short sleep costs no more than C1, so the
        // residency does not.
        one.state.exit_latency = one.state.exit_latency.max(ZEN_CC6_EXIT);
        one.notes.push(StateNote::HaltMayBeDeep);
    }
}

/// A model with a table whose C1E promotion is left as the firmware set it.
fn has_no_promotion_quirk(query: &Query<'_>) -> bool {
    use crate::cstate::models::Quirks;
    let decided = Quirks::DISABLE_C1E_PROMOTION.union(Quirks::ENABLE_C1E_PROMOTION);
    query
        .cpu
        .identity
        .model_record()
        .is_some_and(|model| !model.quirks.intersects(decided))
}
