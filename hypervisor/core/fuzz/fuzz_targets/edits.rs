//! Any bytes as edits of a table of C-states.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../checks.rs"]
#[expect(dead_code, reason = "each target uses one of them")]
mod checks;

fuzz_target!(|data: &[u8]| checks::edits(data));
