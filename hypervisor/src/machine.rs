//! The machine as the core sees it.
