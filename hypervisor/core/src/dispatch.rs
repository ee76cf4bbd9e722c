//! The dispatch loop of a pCPU.
