//! The hypervisor command line.
