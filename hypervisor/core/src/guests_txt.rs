//! The guest list.
