//! The running machine: one dispatch loop per CPU over the bare metal, until there is nothing left to do.
//!
//! [`counters`] reads where the time went; [`hosting`] runs vCPUs for the dispatch loops; [`guests`] starts domains from
//! the boot bundle; [`end`] ends the run, with the last reading and a status.

pub mod counters;
