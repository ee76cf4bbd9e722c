//! Debug keys.
pub mod cstates;
