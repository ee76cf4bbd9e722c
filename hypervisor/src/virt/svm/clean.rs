//! What the processor may have kept of a VMCB under its clean bits, for debug builds: no emulator keeps anything, so no run would show a
//! field that was changed under a bit that says it was not.

use super::vmcb::{Vmcb, clean};

/// The fields of the groups that are ever named clean (AMD APM vol. 2, 15.15.3), as they were at the last entry.
#[derive(Clone, Debug, Default)]
pub struct Kept(Option<[(u32, &'static str, u64); 13]>);

fn fields(vmcb: &Vmcb) -> [(u32, &'static str, u64); 13] {
    let Vmcb { control, save } = vmcb;
    let filter =
        u64::from(control.pause_filter_count) | u64::from(control.pause_filter_threshold) << 16;
    [
        (
            clean::INTERCEPTS,
            "intercept_cr",
            control.intercept_cr.into(),
        ),
        (
            clean::INTERCEPTS,
            "intercept_dr",
            control.intercept_dr.into(),
        ),
        (
            clean::INTERCEPTS,
            "intercept_exceptions",
            control.intercept_exceptions.into(),
        ),
        (
            clean::INTERCEPTS,
            "intercept_misc1",
            control.intercept_misc1.into(),
        ),
        (
            clean::INTERCEPTS,
            "intercept_misc2",
            control.intercept_misc2.into(),
        ),
        (
            clean::INTERCEPTS,
            "intercept_misc3",
            control.intercept_misc3.into(),
        ),
        (clean::INTERCEPTS, "pause_filter", filter),
        (clean::INTERCEPTS, "tsc_offset", control.tsc_offset),
        (clean::PERMISSION_MAPS, "iopm_base", control.iopm_base),
        (clean::PERMISSION_MAPS, "msrpm_base", control.msrpm_base),
        (clean::NESTED, "nested_control", control.nested_control),
        (clean::NESTED, "nested_cr3", control.nested_cr3),
        (clean::NESTED, "g_pat", save.g_pat),
    ]
}

impl Kept {
    /// Right before an entry.
    ///
    /// # Panics
    /// If a field has changed whose group is named clean: by its name.
    #[inline]
    pub fn check(&self, vmcb: &Vmcb) {
        if !cfg!(debug_assertions) {
            return;
        }
        let named = vmcb.control.clean;
        let before = match &self.0 {
            Some(before) => before,
            None => {
                assert!(
                    named == 0,
                    "clean bits {named:#x} at the first entry on a CPU"
                );
                return;
            }
        };
        for ((group, name, was), (_, _, is)) in before.iter().zip(fields(vmcb)) {
            assert!(
                named & group == 0 || *was == is,
                "VMCB field {name} was {was:#x} at the last entry, is {is:#x}, and its clean bit says that it has not changed"
            );
        }
    }

    /// Right after an exit, which has changed none of these: what the processor may have kept.
    #[inline]
    pub fn entered(&mut self, vmcb: &Vmcb) {
        if cfg!(debug_assertions) {
            self.0 = Some(fields(vmcb));
        }
    }

    /// The vCPU comes to a CPU, which may hold anything under the address of its VMCB.
    pub fn forget(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virt::page::zeroed;
    use std::boxed::Box;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    const ALL: u32 = clean::INTERCEPTS | clean::PERMISSION_MAPS | clean::NESTED;

    /// What is said of a field that was changed, with these groups named clean.
    fn said(named: u32, change: fn(&mut Vmcb)) -> Option<std::string::String> {
        let mut vmcb: Box<Vmcb> = zeroed();
        let mut kept = Kept::default();
        kept.entered(&vmcb);
        vmcb.control.clean = named;
        change(&mut vmcb);
        catch_unwind(AssertUnwindSafe(|| kept.check(&vmcb)))
            .err()
            .map(|why| *why.downcast().expect("a message"))
    }

    #[test]
    fn a_field_that_changed_under_its_clean_bit_is_named() {
        type Change = fn(&mut Vmcb);
        let changes: [(u32, &str, Change); 13] = [
            (1, "intercept_cr", |v| v.control.intercept_cr = 1),
            (1, "intercept_dr", |v| v.control.intercept_dr = 1),
            (1, "intercept_exceptions", |v| {
                v.control.intercept_exceptions = 1
            }),
            (1, "intercept_misc1", |v| v.control.intercept_misc1 = 1),
            (1, "intercept_misc2", |v| v.control.intercept_misc2 = 1),
            (1, "intercept_misc3", |v| v.control.intercept_misc3 = 1),
            (1, "pause_filter", |v| v.control.pause_filter_threshold = 1),
            (1, "tsc_offset", |v| v.control.tsc_offset = 1),
            (2, "iopm_base", |v| v.control.iopm_base = 1),
            (2, "msrpm_base", |v| v.control.msrpm_base = 1),
            (16, "nested_control", |v| v.control.nested_control = 1),
            (16, "nested_cr3", |v| v.control.nested_cr3 = 1),
            (16, "g_pat", |v| v.save.g_pat = 1),
        ];
        for (group, name, change) in changes {
            let named = said(group, change).unwrap_or_default();
            assert!(
                named.starts_with(&std::format!("VMCB field {name} was 0x0")),
                "{name}: {named}"
            );
            assert_eq!(said(ALL & !group, change), None, "{name}");
        }
        assert_eq!(said(ALL, |v| v.save.rip = 1), None);
    }

    #[test]
    #[should_panic(expected = "at the first entry")]
    fn nothing_is_clean_on_a_cpu_that_it_comes_to() {
        let mut vmcb: Box<Vmcb> = zeroed();
        let mut kept = Kept::default();
        kept.entered(&vmcb);
        kept.forget();
        vmcb.control.clean = clean::NESTED;
        kept.check(&vmcb);
    }
}
