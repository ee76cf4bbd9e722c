//! The bootable image.
#![cfg_attr(target_os = "none", no_std)]
#![cfg_attr(target_os = "none", no_main)]
use lull as _;
#[cfg(not(target_os = "none"))]
fn main() {}
