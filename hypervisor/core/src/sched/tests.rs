//! What all schedulers must keep, on a simulated machine.

mod invariants;
pub(in crate::sched) mod sim;
