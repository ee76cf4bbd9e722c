//! Clocks: how fast the TSC runs, and whether it can be trusted.
