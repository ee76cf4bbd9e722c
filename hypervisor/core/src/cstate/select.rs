//! Which C-states a CPU gets, and why.
