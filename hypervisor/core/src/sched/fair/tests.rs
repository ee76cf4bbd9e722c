//! The fair scheduler on a machine of virtual time: no threads, so that every run can be repeated.

mod ideal;
mod invariants;
mod rules;
mod shares;
mod sim;
