//! The states of one CPU in order, ids for them, and how well one of them fitted a sleep.

use super::CState;
use crate::governor::StateSet;
use crate::units::Nanos;
use core::fmt;

/// The largest number of states that a CPU's table holds: POLL and nine more, as the largest published table has.
pub const MAX_STATES: usize = 10;

/// The index of a state in its CPU's table: 0 is the shallowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateId(u8);

impl StateId {
    /// The index as a number.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Out of an encoding that came from an id.
    pub(crate) const fn from_index(index: u8) -> Self {
        Self(index)
    }
}

/// How well an entered state fitted the sleep it was entered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fit {
    /// No other state of the table would have been better.
    Right,
    /// The sleep was shorter than the state's target residency, and there is a shallower state.
    TooDeep,
    /// The next deeper state's target residency, and the exit latency, would have fitted into the sleep.
    TooShallow,
}

/// The states of one CPU, shallow to deep. Never empty, at most [`MAX_STATES`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CStateTable {
    states: [CState; MAX_STATES],
    len: u8,
}

impl CStateTable {
    /// HLT and nothing else: what is left if nothing is known about a CPU.
    pub const HALT: Self = Self {
        states: [CState::C1_HALT; MAX_STATES],
        len: 1,
    };

    /// A table of these states.
    ///
    /// # Errors
    /// No state, or more than [`MAX_STATES`].
    pub fn new(states: &[CState]) -> Result<Self, TableError> {
        if states.is_empty() {
            return Err(TableError::Empty);
        }
        let mut table = Self {
            states: [CState::POLL; MAX_STATES],
            len: 0,
        };
        for &state in states {
            let Some(slot) = table.states.get_mut(usize::from(table.len)) else {
                return Err(TableError::TooMany(states.len()));
            };
            *slot = state;
            table.len += 1;
        }
        Ok(table)
    }

    /// All states, shallow to deep.
    pub fn states(&self) -> &[CState] {
        self.states.get(..usize::from(self.len)).unwrap_or(&[])
    }

    /// All states with their ids, shallow to deep.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (StateId, &CState)> + ExactSizeIterator {
        self.states()
            .iter()
            .enumerate()
            .map(|(index, state)| (StateId(index as u8), state))
    }

    /// The state with this index, if the table has it.
    pub fn id(&self, index: usize) -> Option<StateId> {
        (index < usize::from(self.len)).then_some(StateId(index as u8))
    }

    /// One state. An id of another, larger table names this one's deepest state.
    pub fn state(&self, id: StateId) -> &CState {
        let deepest = usize::from(self.len).saturating_sub(1);
        &self.states[id.index().min(deepest)]
    }

    /// The shallowest state.
    pub const fn shallowest(&self) -> StateId {
        StateId(0)
    }

    /// How well `entered` fitted a sleep that lasted `slept`, from entry to wake, its exit latency included. Compared with the states
    /// that could have been chosen instead: not with those that are `off`.
    pub fn fit(&self, entered: StateId, slept: Nanos, off: StateSet) -> Fit {
        let state = self.state(entered);
        let mut others = self.iter().filter(|(id, _)| !off.contains(*id));
        if slept < state.target_residency.to_nanos() {
            return if others.any(|(id, _)| id < entered) {
                Fit::TooDeep
            } else {
                Fit::Right
            };
        }
        let deeper = others
            .find(|(id, _)| *id > entered)
            .map(|(_, state)| state.target_residency.to_nanos());
        match deeper {
            Some(target) if slept - state.exit_latency.to_nanos() >= target => Fit::TooShallow,
            _ => Fit::Right,
        }
    }

    /// How many states there are: at least one.
    pub fn count(&self) -> usize {
        usize::from(self.len)
    }
}

impl fmt::Debug for CStateTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.states()).finish()
    }
}

/// Why a list of states is no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableError {
    /// It holds no state.
    Empty,
    /// It holds this many, more than [`MAX_STATES`].
    TooMany(usize),
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableError::Empty => f.write_str("no C-state: expected at least one"),
            TableError::TooMany(count) => {
                write!(f, "{count} C-states: expected at most {MAX_STATES}")
            }
        }
    }
}

impl core::error::Error for TableError {}
