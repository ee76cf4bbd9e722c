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

/// Name of the check, without the width of the code at its end; and what is found.
type Departure = (&'static str, &'static str);

/// QEMU 7.2, and 10.0 unless said otherwise.
const QEMU: &[Departure] = &[
    ("reserved.cr0-bit-63", NOTHING),
    ("reserved.cr0-nw-without-cd", NOTHING),
    ("reserved.cr8-bit-4", NOTHING),
    ("reserved.cr8-bit-63", NOTHING),
    ("reserved.efer-bit-63", NOTHING),
    ("reserved.efer-bit-9", NOTHING),
    ("reserved.efer-lme-while-paging", NOTHING),
    ("reserved.apic-base-bit-0", NOTHING),
    ("reserved.pat-type-2", NOTHING),
    ("reserved.pat-type-8", NOTHING),
    ("reserved.fs-base", NOTHING),
    ("reserved.gs-base", NOTHING),
    ("reserved.kernel-gs-base", NOTHING),
    ("reserved.lstar", NOTHING),
    ("reserved.sysenter-eip", NOTHING),
    ("reserved.sysenter-esp", NOTHING),
    ("traps.icebp", "#UD+0"),
    ("steps.icebp", "#UD+0"),
    ("steps.pause", "#DBs+3"),
    ("steps.sti", "#DBs+2 #DBs+3"),
    ("breakpoints.mov-ss", "#DB0+2"),
    ("breakpoints.mov-ss-cpuid", "#DB0+2"),
];

const NOTHING: &str = "nothing";

const BOCHS: &[Departure] = &[];

/// Whether `found` is what the check `name` is known to find on `below`.
#[must_use]
pub fn known(below: Below, name: &str, found: &str) -> bool {
    let table = match below {
        Below::Silicon => return false,
        Below::Qemu => QEMU,
        Below::Bochs => BOCHS,
    };
    let name = ["-64", "-32", "-16"]
        .iter()
        .find_map(|width| name.strip_suffix(width))
        .unwrap_or(name);
    table.contains(&(name, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_listed_is_known_and_only_there() {
        assert!(known(Below::Qemu, "steps.sti-16", "#DBs+2 #DBs+3"));
        assert!(known(Below::Qemu, "reserved.lstar", "nothing"));
        assert!(!known(Below::Qemu, "steps.sti-16", "#DBs+1"));
        assert!(!known(Below::Qemu, "steps.cpuid-16", "#DBs+3"));
        assert!(!known(Below::Silicon, "reserved.lstar", "nothing"));
        assert!(!known(Below::Bochs, "reserved.lstar", "nothing"));
    }
}
