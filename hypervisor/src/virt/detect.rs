//! Which virtualization hardware there is: by feature bits, never by the vendor's name.

use alloc::string::String;

use super::Backend;

/// The backend for this machine, by the CPU that runs this code.
///
/// # Errors
/// A sentence that says why guests cannot run.
pub fn detect() -> Result<Backend, String> {
    Err(String::from("no backend built in yet"))
}
