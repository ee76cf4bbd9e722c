//! The boot sequence, in order.
