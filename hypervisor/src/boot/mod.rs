//! Boot: from the loader's hands to a 64-bit Rust function with checked boot information.
