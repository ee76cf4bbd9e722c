//! `mwait-idle.table=`: edits of a table's figures, each judged by itself.
//!
//! Only what an edit changes is checked: its own figures against the limits, and against its neighbours' as they will
//! be. That a neighbour breaks a rule with its built-in figures (Bay Trail's C6N, Skylake's equal C7s and C8) is no reason
//! to refuse the edit of another state.

use super::candidate::Candidate;
use super::note::Note;
use super::reason::{Retime, StateNote};
use crate::options::TableEdit;
use crate::units::Micros;
use alloc::vec::Vec;
use core::fmt;

/// The largest exit latency that an edit may set.
pub const MAX_EDIT_LATENCY: Micros = Micros::new(5_000);
/// The largest target residency that an edit may set.
pub const MAX_EDIT_RESIDENCY: Micros = Micros::new(100_000);

/// Why an edit was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EditFault {
    /// No table is used.
    NoTable,
    /// The table has no such state.
    NoSuchState,
    /// The latency is 0, or above [`MAX_EDIT_LATENCY`].
    Latency(Micros),
    /// The residency is above [`MAX_EDIT_RESIDENCY`].
    Residency(Micros),
    /// The residency would be shorter than the latency.
    NotWorthIt {
        /// The latency it would have.
        latency: Micros,
        /// The residency it would have.
        residency: Micros,
    },
    /// It would not be costlier than this shallower state.
    NotAbove(&'static str),
    /// It would not be cheaper than this deeper state.
    NotBelow(&'static str),
}

impl fmt::Display for EditFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EditFault::NoTable => f.write_str("no table is used on this CPU"),
            EditFault::NoSuchState => f.write_str("the table has no such state"),
            EditFault::Latency(latency) => write!(
                f,
                "latency {} us, expected 1 to {}",
                latency.get(),
                MAX_EDIT_LATENCY.get()
            ),
            EditFault::Residency(residency) => write!(
                f,
                "residency {} us, expected at most {}",
                residency.get(),
                MAX_EDIT_RESIDENCY.get()
            ),
            EditFault::NotWorthIt { latency, residency } => write!(
                f,
                "residency {} us is shorter than latency {} us",
                residency.get(),
                latency.get()
            ),
            EditFault::NotAbove(other) => write!(
                f,
                "latency and residency must be larger than those of {other}, the next shallower one"
            ),
            EditFault::NotBelow(other) => write!(
                f,
                "latency and residency must be smaller than those of {other}, the next deeper one"
            ),
        }
    }
}

impl EditFault {
    /// The faults that an edit has whatever the table is.
    ///
    /// # Errors
    /// A figure is out of its limits, or both are given and do not fit each other.
    pub fn of_figures(latency: Option<Micros>, residency: Option<Micros>) -> Result<(), Self> {
        if let Some(latency) = latency
            && (latency == Micros::ZERO || latency > MAX_EDIT_LATENCY)
        {
            return Err(EditFault::Latency(latency));
        }
        if let Some(residency) = residency
            && residency > MAX_EDIT_RESIDENCY
        {
            return Err(EditFault::Residency(residency));
        }
        match (latency, residency) {
            (Some(latency), Some(residency)) if residency < latency => {
                Err(EditFault::NotWorthIt { latency, residency })
            }
            _ => Ok(()),
        }
    }
}

/// The figures of one state: as they are, and as one edit after the other wants them.
#[derive(Clone)]
struct Planned {
    built_in: (Micros, Micros),
    wanted: Vec<(Micros, Micros)>,
}

impl Planned {
    fn result(&self) -> (Micros, Micros) {
        self.wanted.last().copied().unwrap_or(self.built_in)
    }
}

/// Applies the edits to the states of a table. What was refused is noted.
pub(super) fn apply(edits: &[TableEdit], states: &mut [Candidate], notes: &mut Vec<Note>) {
    let mut refuse = |name: &str, why| {
        notes.push(Note::EditRefused {
            name: name.into(),
            why,
        });
    };
    let mut plan: Vec<Planned> = states
        .iter()
        .map(|one| Planned {
            built_in: (one.state.exit_latency, one.state.target_residency),
            wanted: Vec::new(),
        })
        .collect();

    for edit in edits {
        let Some(at) = states.iter().position(|one| one.state.name == edit.name) else {
            refuse(&edit.name, EditFault::NoSuchState);
            continue;
        };
        let before = plan[at].result();
        // What an edit sets to what it is already is no change, and not checked.
        let latency = edit.latency.filter(|latency| *latency != before.0);
        let residency = edit.residency.filter(|residency| *residency != before.1);
        if latency.is_none() && residency.is_none() {
            continue;
        }
        let after = (latency.unwrap_or(before.0), residency.unwrap_or(before.1));
        let fault = EditFault::of_figures(latency, residency).err().or_else(|| {
            (after.1 < after.0).then_some(EditFault::NotWorthIt {
                latency: after.0,
                residency: after.1,
            })
        });
        match fault {
            Some(why) => refuse(&edit.name, why),
            None => plan[at].wanted.push(after),
        }
    }

    // A refused edit puts its state back to what it was before, which may put a neighbour's edit out of order: look again until none is.
    while let Some((at, why)) = first_out_of_order(&plan, states) {
        plan[at].wanted.pop();
        refuse(states[at].state.name, why);
    }

    for (one, planned) in states.iter_mut().zip(plan) {
        if !planned.wanted.is_empty() {
            one.retime(planned.result(), Retime::ByOption);
        }
    }
}

fn first_out_of_order(plan: &[Planned], states: &[Candidate]) -> Option<(usize, EditFault)> {
    let edited = |at: &usize| !plan[*at].wanted.is_empty();
    (0..plan.len()).filter(edited).find_map(|at| {
        let mine = plan[at].result();
        let strictly =
            |low: (Micros, Micros), high: (Micros, Micros)| low.0 < high.0 && low.1 < high.1;
        if let Some(before) = at.checked_sub(1)
            && !strictly(plan[before].result(), mine)
        {
            return Some((at, EditFault::NotAbove(states[before].state.name)));
        }
        let after = at + 1;
        if after < plan.len() && !strictly(mine, plan[after].result()) {
            return Some((at, EditFault::NotBelow(states[after].state.name)));
        }
        None
    })
}

impl Candidate {
    /// Gives the state other figures, and says why.
    pub(super) fn retime(&mut self, to: (Micros, Micros), why: Retime) {
        let from = (self.state.exit_latency, self.state.target_residency);
        (self.state.exit_latency, self.state.target_residency) = to;
        self.notes.push(StateNote::Retimed { from, to, why });
    }
}
