//! Boot-time self-test.
pub fn selftest() {}
