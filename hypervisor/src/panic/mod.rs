//! The end of the machine: registers, backtrace, all CPUs stopped.
