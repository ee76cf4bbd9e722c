//! Which C-states a CPU gets, and why.
//!
//! A pure function of what CPUID says, what the boot-time self-test **found** (CPUID is not believed about MWAIT: under
//! an emulator or another hypervisor it may fault, or never sleep), and the `idle=` option. Every state that was
//! considered comes out with the reason for which it was kept or dropped, for the boot log and the machine channel.
//!
//! Called once a CPU at boot. The candidates are C1 by MWAIT, C1 by HLT, and POLL; [`judge`] decides about any state,
//! so that a table of a CPU model is only a longer list of candidates.

use super::{CState, CStateFlags, CStateTable, EntryMethod, MAX_STATES};
use crate::options::IdleMethod;
use crate::platform::IrqGate;
use alloc::vec::Vec;

mod facts;
mod reason;

pub use facts::{CpuFacts, MwaitLeaf, MwaitTest, MwaitVerdict};
pub use reason::{Dropped, Kept};

/// One state, and what was decided about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Considered {
    /// The state, as it would be entered.
    pub state: CState,
    /// Why it is in the table, or why it is not.
    pub verdict: Result<Kept, Dropped>,
}

/// The states of a CPU, and how they came to be that.
#[derive(Clone, Debug)]
pub struct Selected {
    /// What the idle path uses.
    pub table: CStateTable,
    /// Every state that was considered, in that order.
    pub considered: Vec<Considered>,
}

/// Chooses the states of one CPU.
pub fn select(facts: &CpuFacts, mode: IdleMethod) -> Selected {
    // MWAIT with interrupts open comes first: of the two it has the shorter way to the handler.
    let candidates = [
        CState::POLL,
        CState::c1_mwait(IrqGate::Open),
        CState::c1_mwait(IrqGate::Masked),
        CState::C1_HALT,
    ];
    let mut considered: Vec<Considered> = Vec::with_capacity(candidates.len());
    for state in candidates {
        let verdict =
            wanted(&state, mode, &considered).and_then(|kept| judge(&state, facts).map(|()| kept));
        considered.push(Considered { state, verdict });
    }

    let kept: Vec<CState> = considered
        .iter()
        .filter(|one| one.verdict.is_ok())
        .map(|one| one.state)
        .collect();
    // HLT is dropped for something better, or because POLL was asked for: the list is never empty, nor too long.
    let table = CStateTable::new(&kept[..kept.len().min(MAX_STATES)]).unwrap_or(CStateTable::HALT);
    Selected { table, considered }
}

/// Is the state wanted, by the option and beside what was kept before it?
fn wanted(state: &CState, mode: IdleMethod, before: &[Considered]) -> Result<Kept, Dropped> {
    let have = before
        .iter()
        .find(|one| one.verdict.is_ok() && one.state.name == state.name);
    match (state.method, mode) {
        (EntryMethod::Poll, IdleMethod::Poll) => Ok(Kept::AskedFor),
        (EntryMethod::Poll, _) => Ok(Kept::ShortestSleeps),
        (_, IdleMethod::Poll) => Err(Dropped::NotAskedFor(mode)),
        (EntryMethod::Mwait { .. }, IdleMethod::Halt) => Err(Dropped::NotAskedFor(mode)),
        _ if have.is_some() => Err(Dropped::BetterEntry),
        (
            EntryMethod::Mwait {
                gate: IrqGate::Open,
                ..
            },
            _,
        ) => Ok(Kept::HandlersInside),
        (
            EntryMethod::Mwait {
                gate: IrqGate::Masked,
                ..
            },
            _,
        ) => Ok(Kept::BreaksOnMasked),
        (EntryMethod::Halt, IdleMethod::Halt) => Ok(Kept::AskedFor),
        (EntryMethod::Halt | EntryMethod::IoRead(_), _) => Ok(Kept::AlwaysWorks),
    }
}

/// Can this CPU use the state?
///
/// # Errors
/// The first thing that stands against it.
pub fn judge(state: &CState, facts: &CpuFacts) -> Result<(), Dropped> {
    if state.flags.contains(CStateFlags::TSC_STOPS) && !facts.nonstop_tsc {
        return Err(Dropped::TscStops);
    }
    if state.flags.contains(CStateFlags::TIMER_STOPS) && !facts.arat {
        return Err(Dropped::TimerStops);
    }
    let EntryMethod::Mwait { hint, gate } = state.method else {
        return Ok(());
    };

    if !facts.monitor {
        return Err(Dropped::NoMonitor);
    }
    let leaf = &facts.mwait;
    if leaf.smallest_line == 0 || leaf.largest_line == 0 {
        return Err(Dropped::NoLineSize);
    }
    if leaf.extensions && !hint.reported_by(leaf.substates) {
        return Err(Dropped::NotReported(hint));
    }
    let verdict = match gate {
        IrqGate::Open if !state.flags.contains(CStateFlags::IRQ_ENABLE) => {
            return Err(Dropped::NotFlagged);
        }
        IrqGate::Open if !facts.nonstop_tsc => return Err(Dropped::HandlersNeedTsc),
        IrqGate::Open => facts.test.open,
        IrqGate::Masked if !(leaf.extensions && leaf.interrupt_break) => {
            return Err(Dropped::NoInterruptBreak);
        }
        IrqGate::Masked => facts.test.masked,
    };
    match verdict {
        MwaitVerdict::Works => Ok(()),
        other => Err(Dropped::SelfTest(gate, other)),
    }
}

#[cfg(test)]
mod tests;
