//! Lull image.
#![cfg_attr(not(test), no_std)]
