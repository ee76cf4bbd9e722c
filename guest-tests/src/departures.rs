//! Where emulators are known to depart from the manuals.
//!
//! A check of a guest kernel that finds what stands here passes, on the emulator itself and on a hypervisor that runs in it: the
//! hypervisor cannot be more exact than its CPU. The book's page on guests has the same table with the reasons.

/// What a guest stands on, below all hypervisors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    /// A real CPU: nothing departs.
    Silicon,
    /// QEMU's TCG.
    Qemu,
    /// Bochs.
    Bochs,
}

/// Name of the check, and what is found.
type Departure = (&'static str, &'static str);

const QEMU: &[Departure] = &[];

const BOCHS: &[Departure] = &[];

/// Whether `found` is what the check `name` is known to find on `below`.
#[must_use]
pub fn known(below: Below, name: &str, found: &str) -> bool {
    let table = match below {
        Below::Silicon => return false,
        Below::Qemu => QEMU,
        Below::Bochs => BOCHS,
    };
    table.contains(&(name, found))
}
