//! Do the page tables keep the rules? One walk through all of them, made once at boot and whenever asked.

use core::fmt;

use super::identity::{TABLES, root};
use super::paging;

/// What a walk through all page tables found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Bytes that can be executed.
    pub executable: u64,
    /// Bytes that can be written.
    pub writable: u64,
    /// Bytes that can only be read.
    pub read_only: u64,
    /// Bytes of device registers.
    pub device: u64,
    /// First page that is both writable and executable, if there is one.
    pub violation: Option<u64>,
    /// Page 0 is mapped.
    pub null_mapped: bool,
    /// A guard page of a stack is mapped.
    pub guard_mapped: Option<u64>,
}

impl Report {
    /// Do all rules hold?
    #[must_use]
    pub const fn holds(&self) -> bool {
        self.violation.is_none() && !self.null_mapped && self.guard_mapped.is_none()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(page) = self.violation {
            return write!(f, "W^X is broken at {page:#x}");
        }
        if self.null_mapped {
            return f.write_str("page 0 is mapped");
        }
        if let Some(page) = self.guard_mapped {
            return write!(f, "the guard page at {page:#x} is mapped");
        }
        write!(
            f,
            "W^X holds: {} KiB executable, {} KiB read-only, {} MiB writable, {} KiB device",
            self.executable >> 10,
            self.read_only >> 10,
            self.writable >> 20,
            self.device >> 10
        )
    }
}

/// Walks all page tables and reports what they allow.
#[must_use]
pub fn check_wx() -> Report {
    let tables = TABLES.lock();
    let mut report = Report::default();
    paging::walk(&*tables, root(), &mut |page| {
        if page.writable && page.executable {
            report.violation.get_or_insert(page.address);
        }
        if page.address == 0 {
            report.null_mapped = true;
        }
        *(match page {
            paging::Page { device: true, .. } => &mut report.device,
            paging::Page {
                executable: true, ..
            } => &mut report.executable,
            paging::Page { writable: true, .. } => &mut report.writable,
            _ => &mut report.read_only,
        }) += page.size;
    });
    let guards = crate::cpu::all()
        .filter_map(|c| c.stacks())
        .flat_map(|s| s.all());
    report.guard_mapped = guards
        .map(|(_, stack)| stack.guard())
        .find(|g| paging::find(&*tables, root(), *g).is_some());
    report
}
