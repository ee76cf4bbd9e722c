//! Any bytes as commands of the console.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../checks.rs"]
#[expect(dead_code, reason = "each target uses one of them")]
mod checks;

fuzz_target!(|data: &[u8]| checks::commands(data));
