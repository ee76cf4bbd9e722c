//! The bootable image: the library, linked at its load address.
#![cfg_attr(target_os = "none", no_std)]
#![cfg_attr(target_os = "none", no_main)]

use lull as _;

#[cfg(not(target_os = "none"))]
fn main() {
    eprintln!(
        "lull is a bare-metal image: build it with `cargo xtask build`, run it with `cargo xtask run`"
    );
}
