//! The CPU: features, tables, exceptions, per-CPU areas, sleep instructions.
