//! Replays idle traces through Lull's governors, and says what their decisions cost.
//!
//! A [`trace::Trace`] says when a CPU became idle, when its next timer was, and what ended the idleness. [`replay`] asks
//! a governor as the idle path would, and charges each decision by a [`cost::CostModel`]: energy, and the latency that
//! exits added. [`judge`] compares with an oracle that knows the future, at several prices of latency.
//!
//! Deterministic: the same traces and seeds give the same table.

pub mod cost;
pub mod judge;
pub mod machine;
pub mod machines;
pub mod replay;
pub mod rng;
pub mod sets;
pub mod synthetic;
pub mod trace;
