//! The run loop of each CPU.
