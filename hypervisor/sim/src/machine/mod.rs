//! A whole machine: the core's own dispatch loop, idle loop, governors, wake words, timers and schedulers, on simulated CPUs.
//!
//! [`plan::Plan`] says what is run, [`run::run`] runs it, [`outcome::Outcome`] is what came of it. Each CPU is a
//! [fiber](fiber::Fiber) that executes `Machine::run`, the code that the image executes; [`board`] is the hardware under it,
//! [`guests`] stands for the code around VM entries, [`watch`] for the promises. Time is virtual: it advances from event to
//! event. All randomness comes from one seed, so that the same plan gives the same trace, to the byte.

pub mod board;
mod changes;
pub mod energy;
pub mod events;
pub mod explore;
pub mod faults;
pub mod fiber;
#[cfg(feature = "count-accesses")]
pub mod growth;
pub mod guests;
pub mod load;
pub mod measure;
pub mod observed;
pub mod outcome;
pub mod picture;
pub mod plan;
pub mod program;
pub mod run;
pub mod states;
pub mod stopwatch;
pub mod topology;
pub mod trace;
pub mod traffic;
pub mod violation;
pub mod watch;

#[cfg(test)]
mod tests;
