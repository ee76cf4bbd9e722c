//! Bringing up the application processors.
