//! Why the processor refused a VMCB: the rules of AMD APM vol. 2, 15.5.1, checked in software after VMEXIT_INVALID.
//!
//! Used only to tell people; the processor is the judge.

use alloc::format;
use alloc::string::String;

use super::reset::EFER_SVME;
use super::vmcb::{Vmcb, misc2};
use crate::virt::rules::valid_pat;

const CR0_PE: u64 = 1 << 0;
const CR0_WP: u64 = 1 << 16;
const CR0_NW: u64 = 1 << 29;
const CR0_CD: u64 = 1 << 30;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const CR4_CET: u64 = 1 << 23;
/// Bits of CR4 that the manual defines.
const CR4_DEFINED: u64 = 0x00f7_1fff;
const EFER_LME: u64 = 1 << 8;
/// Bits of EFER that the manual defines.
const EFER_DEFINED: u64 = 0x0027_fd01;
const CS_LONG: u16 = 1 << 9;
const CS_BIG: u16 = 1 << 10;

/// The first rule that is broken.
pub fn broken_rule(vmcb: &Vmcb, physical_bits: u32) -> Option<&'static str> {
    let (control, save) = (&vmcb.control, &vmcb.save);
    let beyond = |address: u64| address >> physical_bits != 0;
    let long_paging = save.efer & EFER_LME != 0 && save.cr0 & CR0_PG != 0;
    let event_type = control.event_inj >> 8 & 0b111;
    let event_vector = control.event_inj & 0xff;
    let rules: [(bool, &'static str); 21] = [
        (save.efer & EFER_SVME == 0, "EFER.SVME is clear"),
        (
            save.cr0 & CR0_CD == 0 && save.cr0 & CR0_NW != 0,
            "CR0.NW is set with CR0.CD clear",
        ),
        (save.cr0 >> 32 != 0, "CR0 has upper bits set"),
        (save.cr4 & !CR4_DEFINED != 0, "CR4 has a reserved bit set"),
        (
            save.cr4 & CR4_CET != 0 && save.cr0 & CR0_WP == 0,
            "CR4.CET is set with CR0.WP clear",
        ),
        (
            long_paging && beyond(save.cr3),
            "CR3 lies beyond physical memory",
        ),
        (save.dr6 >> 32 != 0, "DR6 has upper bits set"),
        (save.dr7 >> 32 != 0, "DR7 has upper bits set"),
        (
            save.efer & !EFER_DEFINED != 0,
            "EFER has a reserved bit set",
        ),
        (
            long_paging && save.cr4 & CR4_PAE == 0,
            "long mode with CR4.PAE clear",
        ),
        (
            long_paging && save.cr0 & CR0_PE == 0,
            "long mode with CR0.PE clear",
        ),
        (
            long_paging && save.cs.attributes & (CS_LONG | CS_BIG) == CS_LONG | CS_BIG,
            "long mode with CS.L and CS.D both set",
        ),
        (
            control.intercept_misc2 & misc2::VMRUN == 0,
            "VMRUN is not intercepted",
        ),
        (
            beyond(control.iopm_base + 0x2fff),
            "the I/O permission map lies beyond physical memory",
        ),
        (
            beyond(control.msrpm_base + 0x1fff),
            "the MSR permission map lies beyond physical memory",
        ),
        (control.asid == 0, "the ASID is 0"),
        (
            beyond(control.nested_cr3),
            "the nested page tables lie beyond physical memory",
        ),
        (
            !valid_pat(save.g_pat),
            "the guest's PAT has a reserved memory type",
        ),
        (
            control.event_inj >> 31 & 1 != 0 && !matches!(event_type, 0 | 2..=4),
            "the injected event has a reserved type",
        ),
        (
            control.event_inj >> 31 & 1 != 0
                && event_type == 3
                && (event_vector > 31 || event_vector == 2),
            "the injected exception has a vector that no exception has",
        ),
        (
            save.cr0 & CR0_PG != 0 && save.cr0 & CR0_PE == 0,
            "CR0.PG is set with CR0.PE clear",
        ),
    ];
    rules
        .iter()
        .find(|(broken, _)| *broken)
        .map(|(_, rule)| *rule)
}

/// For the reason of the exit.
pub fn why_invalid(vmcb: &Vmcb, physical_bits: u32) -> String {
    let save = &vmcb.save;
    format!(
        "the processor refused the vCPU's state: {} (cr0 {:#x} cr3 {:#x} cr4 {:#x} efer {:#x} rip {:#x} cs {:#x}/{:#x} event {:#x})",
        broken_rule(vmcb, physical_bits).unwrap_or("no rule known to be broken"),
        save.cr0,
        save.cr3,
        save.cr4,
        save.efer,
        save.rip,
        save.cs.selector,
        save.cs.attributes,
        vmcb.control.event_inj,
    )
}

#[cfg(test)]
mod tests {
    use super::super::page::zeroed;
    use super::super::reset::reset;
    use super::*;
    use crate::virt::StartState;

    fn with(change: impl FnOnce(&mut Vmcb)) -> Option<&'static str> {
        let mut vmcb = zeroed::<Vmcb>();
        reset(
            &mut vmcb.save,
            StartState::Pvh {
                entry: 0,
                start_info: 0,
            },
        );
        vmcb.control.asid = 1;
        vmcb.control.intercept_misc2 = misc2::VMRUN;
        change(&mut vmcb);
        broken_rule(&vmcb, 40)
    }

    #[test]
    fn a_start_state_breaks_none() {
        assert_eq!(with(|_| ()), None);
        assert_eq!(
            with(|vmcb| {
                let _ = reset(&mut vmcb.save, StartState::Sipi { vector: 8 });
            }),
            None
        );
    }

    #[test]
    fn names_the_broken_rule() {
        assert_eq!(with(|vmcb| vmcb.save.efer = 0), Some("EFER.SVME is clear"));
        assert_eq!(
            with(|vmcb| vmcb.save.cr0 |= CR0_NW),
            Some("CR0.NW is set with CR0.CD clear")
        );
        assert_eq!(with(|vmcb| vmcb.save.cr0 |= CR0_NW | CR0_CD), None);
        assert_eq!(
            with(|vmcb| vmcb.save.cr4 = 1 << 13),
            Some("CR4 has a reserved bit set")
        );
        assert_eq!(with(|vmcb| vmcb.save.cr4 = 0x3_06b0), None);
        assert_eq!(with(|vmcb| vmcb.control.asid = 0), Some("the ASID is 0"));
        assert_eq!(
            with(|vmcb| vmcb.control.intercept_misc2 = 0),
            Some("VMRUN is not intercepted")
        );
        assert_eq!(
            with(|vmcb| vmcb.save.g_pat = 2),
            Some("the guest's PAT has a reserved memory type")
        );
        assert_eq!(
            with(|vmcb| vmcb.control.event_inj = 0x8000_0302),
            Some("the injected exception has a vector that no exception has")
        );
        assert_eq!(
            with(|vmcb| vmcb.control.event_inj = 0x0000_0302),
            None,
            "not valid, so not looked at"
        );
        assert_eq!(
            with(|vmcb| vmcb.control.nested_cr3 = 1 << 40),
            Some("the nested page tables lie beyond physical memory")
        );
        let long = |vmcb: &mut Vmcb| {
            vmcb.save.efer |= EFER_LME;
            vmcb.save.cr0 |= CR0_PG;
        };
        assert_eq!(with(long), Some("long mode with CR4.PAE clear"));
        let both = |vmcb: &mut Vmcb| {
            long(vmcb);
            vmcb.save.cr4 |= CR4_PAE;
            vmcb.save.cs.attributes |= CS_LONG | CS_BIG;
        };
        assert_eq!(with(both), Some("long mode with CS.L and CS.D both set"));
    }
}
