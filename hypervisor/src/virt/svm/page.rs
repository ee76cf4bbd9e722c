//! Zeroed, aligned hardware structures.

pub use crate::virt::page::{Pages, physical, zeroed};
