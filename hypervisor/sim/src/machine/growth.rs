//! What one wake and one broadcast cost in a machine of any size, in accesses to the memory that its CPUs share.
//!
//! All CPUs run the core's dispatch loop and idle loop on the [`board`](super::board), and are asleep when the first one does one
//! thing. Counted is what the core's own code does: the loads, stores and atomic read-modify-writes of `lull_core::sync`. On a real
//! machine each may be a cache miss, so the count is what grows with a machine, whatever its clock. What is told of a thing:
//!
//! - what the **sender** does, from the call to its return;
//! - what **all CPUs** do until they sleep again, those that wake included, less what they do when nothing is done to them.
//!
//! Nothing else happens: no guests, no faults, no randomness.

use super::states::Entry;
use lull_core::sync::counted::Accesses;
use lull_core::units::MAX_CPUS;
use stage::Stage;

mod actor;
mod stage;

/// How often each is done; the last time counts, when nothing is new to anybody.
const ROUNDS: usize = 3;

/// What the first CPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Nothing: what all others are compared with.
    Nothing,
    /// Wakes the last CPU, for nothing.
    Wake,
    /// Calls the last CPU, and does not wait: to wait is to look again and again, as long as the way out of a C-state takes.
    Send,
    /// Wakes all others, for nothing.
    WakeAll,
    /// Calls all others, and does not wait.
    SendAll,
}

impl Operation {
    /// All of them, in the order in which they are done.
    pub const ALL: [Self; 5] = [
        Self::Nothing,
        Self::Wake,
        Self::Send,
        Self::WakeAll,
        Self::SendAll,
    ];

    /// As the image names it, too.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Wake => "wake",
            Self::Send => "call-send",
            Self::WakeAll => "broadcast-wake",
            Self::SendAll => "broadcast-send",
        }
    }
}

/// What it costs.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// What was done.
    pub operation: Operation,
    /// The sender's accesses.
    pub sender: Accesses,
    /// Those of all CPUs.
    pub machine: Accesses,
    /// Posts that an interrupt was sent for.
    pub ipis: u64,
    /// Posts whose store alone woke a CPU.
    pub stores: u64,
}

/// Does everything once on a machine of so many CPUs, whose C-states are entered in that way.
///
/// # Errors
/// There is no such machine, or a CPU did not sleep when it should have.
pub fn measure(cpus: u32, entry: Entry) -> Result<Vec<Cost>, String> {
    if !(2..=MAX_CPUS as u32).contains(&cpus) {
        return Err(format!("{cpus} CPUs: expected 2 to {MAX_CPUS}"));
    }
    let mut stage = Stage::new(cpus, entry)?;
    stage.go();
    stage.end();
    let script = stage.script();
    let idle = script.last(Operation::Nothing)?;
    Operation::ALL
        .into_iter()
        .skip(1)
        .map(|operation| {
            let cost = script.last(operation)?;
            Ok(Cost {
                machine: cost.machine - idle.machine,
                ..cost
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(costs: &[Cost], operation: Operation) -> Cost {
        let mut found = costs.iter().filter(|cost| cost.operation == operation);
        *found.next().unwrap()
    }

    #[test]
    fn a_wake_does_not_grow_and_a_broadcast_grows_by_the_cpus() {
        for entry in [Entry::Mwait, Entry::Halt] {
            let [small, large] = [2, 64].map(|cpus| measure(cpus, entry).unwrap());
            for operation in [Operation::Wake, Operation::Send] {
                let (small, large) = (cost(&small, operation), cost(&large, operation));
                assert_eq!(small.sender, large.sender, "{operation:?} {entry:?}");
                assert!(small.sender.updates > 0);
            }
            let all = cost(&large, Operation::WakeAll);
            assert!(all.sender.updates >= 63, "{all:?}");
            let woken = if entry == Entry::Mwait {
                (0, 63)
            } else {
                (63, 0)
            };
            assert_eq!((all.ipis, all.stores), woken, "{entry:?}");
            // Each that wakes does something, too.
            assert!(all.machine.updates >= all.sender.updates + 63);
        }
    }

    #[test]
    fn a_machine_of_one_cpu_wakes_nobody() {
        assert!(measure(1, Entry::Mwait).is_err());
    }
}
