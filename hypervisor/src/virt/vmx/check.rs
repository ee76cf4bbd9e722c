//! Why the processor refused a VM entry: its own word for it, and the rules of SDM vol. 3, 28.2 and 28.3, checked in software.
//!
//! Used only to tell people; the processor is the judge.

use alloc::format;
use alloc::string::String;

use super::field::{Field, SegmentSlot};
use super::vmcs::Vmcs;
use crate::virt::rules::{is_canonical, valid_pat};

const CR0_PE: u64 = 1 << 0;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const CR4_VMXE: u64 = 1 << 13;
const CR4_PCIDE: u64 = 1 << 17;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;
const ENTRY_IA32E: u64 = 1 << 9;
const RFLAGS_IF: u64 = 1 << 9;
const RFLAGS_VM: u64 = 1 << 17;
const UNUSABLE: u64 = 1 << 16;
const VALID: u64 = 1 << 31;

/// VM-instruction errors (SDM vol. 3, table 32-1).
pub fn instruction_error(number: u64) -> &'static str {
    match number {
        1 => "VMCALL in VMX root operation",
        2 => "VMCLEAR with an invalid address",
        3 => "VMCLEAR with the VMXON region",
        4 => "VMLAUNCH with a VMCS that was launched before",
        5 => "VMRESUME with a VMCS that was not launched",
        6 => "VMRESUME after VMXOFF",
        7 => "entry with invalid control fields",
        8 => "entry with invalid host state",
        9 => "VMPTRLD with an invalid address",
        10 => "VMPTRLD with the VMXON region",
        11 => "VMPTRLD with a wrong revision",
        12 => "access to a field that does not exist",
        13 => "write to a read-only field",
        15 => "VMXON in VMX root operation",
        26 => "entry while interrupts are blocked by MOV SS",
        28 => "INVEPT or INVVPID with an invalid operand",
        _ => "an error without a name",
    }
}

/// The first rule of the guest's state that is broken.
pub fn broken_rule(vmcs: &Vmcs) -> Option<&'static str> {
    let read = |field| vmcs.read(field);
    let (cr0, cr4, efer) = (read(Field::CR0), read(Field::CR4), read(Field::EFER));
    let (flags, entry) = (read(Field::RFLAGS), read(Field::ENTRY));
    let (injection, blocked) = (read(Field::INJECTION), read(Field::INTERRUPTIBILITY));
    let (cs, ss) = (
        read(SegmentSlot::Cs.rights()),
        read(SegmentSlot::Ss.rights()),
    );
    let (tr, ldtr) = (
        read(SegmentSlot::Tr.rights()),
        read(SegmentSlot::Ldtr.rights()),
    );
    let long = entry & ENTRY_IA32E != 0;
    let event = injection >> 8 & 0b111;
    let rules: [(bool, &'static str); 23] = [
        (
            cr0 & CR0_PG != 0 && cr0 & CR0_PE == 0,
            "CR0.PG is set with CR0.PE clear",
        ),
        (cr4 & CR4_VMXE == 0, "CR4.VMXE is clear"),
        (
            long && (cr0 & CR0_PG == 0 || cr4 & CR4_PAE == 0),
            "64-bit mode without paging or PAE",
        ),
        (
            !long && cr4 & CR4_PCIDE != 0,
            "CR4.PCIDE outside 64-bit mode",
        ),
        (
            long != (efer & EFER_LMA != 0),
            "EFER.LMA differs from the entry control",
        ),
        (
            cr0 & CR0_PG != 0 && (efer & EFER_LME != 0) != (efer & EFER_LMA != 0),
            "EFER.LME differs from EFER.LMA under paging",
        ),
        (
            !valid_pat(read(Field::PAT)),
            "the PAT has a reserved memory type",
        ),
        (
            [
                Field::GDTR_BASE,
                Field::IDTR_BASE,
                Field::SYSENTER_ESP,
                Field::SYSENTER_EIP,
            ]
            .iter()
            .any(|&field| !is_canonical(read(field))),
            "a table or SYSENTER address is not canonical",
        ),
        (
            [SegmentSlot::Fs, SegmentSlot::Gs, SegmentSlot::Tr]
                .iter()
                .any(|slot| !is_canonical(read(slot.base()))),
            "the base of FS, GS or TR is not canonical",
        ),
        (
            flags & 2 == 0 || flags >> 22 != 0,
            "RFLAGS has a reserved bit wrong",
        ),
        (
            flags & RFLAGS_VM != 0 && (long || cr0 & CR0_PE == 0),
            "virtual-8086 mode outside protected mode",
        ),
        (
            injection & VALID != 0 && event == 0 && flags & RFLAGS_IF == 0,
            "an interrupt is injected with IF clear",
        ),
        (
            injection & VALID != 0 && event == 0 && blocked & 0b11 != 0,
            "an interrupt is injected in an interrupt shadow",
        ),
        (
            injection & VALID != 0 && event == 2 && blocked & 0b1010 != 0,
            "an NMI is injected while NMIs are masked",
        ),
        (blocked & 0b11 == 0b11, "two interrupt shadows at once"),
        (
            blocked & 1 != 0 && flags & RFLAGS_IF == 0,
            "the shadow of STI with IF clear",
        ),
        (
            cs & UNUSABLE != 0 || cs & (1 << 7) == 0,
            "CS is not present",
        ),
        (cs & (1 << 4) == 0, "CS is a system segment"),
        (
            long && cs & (1 << 13) != 0 && cs & (1 << 14) != 0,
            "CS.L and CS.D are both set",
        ),
        (
            ss & UNUSABLE == 0 && !matches!(ss & 0xf, 3 | 7),
            "SS is not writable data",
        ),
        (
            tr & UNUSABLE != 0 || !matches!(tr & 0xf, 3 | 11),
            "TR is not a busy TSS",
        ),
        (
            ldtr & UNUSABLE == 0 && ldtr & 0x1f != 2,
            "LDTR is not an LDT",
        ),
        (
            !(long && cs & (1 << 13) != 0) && read(Field::RIP) >> 32 != 0,
            "RIP has upper bits set outside 64-bit code",
        ),
    ];
    rules
        .iter()
        .find(|(broken, _)| *broken)
        .map(|(_, rule)| *rule)
}

/// For the reason of the exit: an entry that failed with a basic exit reason.
pub fn why_entry_failed(vmcs: &Vmcs, basic: u16) -> String {
    let what = match basic {
        33 => "the processor refused the vCPU's state",
        34 => "the processor could not load the vCPU's MSRs",
        41 => "a machine check hit the entry into the guest",
        _ => "the entry failed for a reason without a name",
    };
    let read = |field| vmcs.read(field);
    format!(
        "{what}: {} (reason {basic}, qualification {:#x}, cr0 {:#x} cr3 {:#x} cr4 {:#x} efer {:#x} rflags {:#x} rip {:#x} cs {:#x}/{:#x} ss {:#x}/{:#x} event {:#x} blocked {:#x})",
        broken_rule(vmcs).unwrap_or("no rule known to be broken"),
        read(Field::QUALIFICATION),
        read(Field::CR0),
        read(Field::CR3),
        read(Field::CR4),
        read(Field::EFER),
        read(Field::RFLAGS),
        read(Field::RIP),
        read(SegmentSlot::Cs.selector()),
        read(SegmentSlot::Cs.rights()),
        read(SegmentSlot::Ss.selector()),
        read(SegmentSlot::Ss.rights()),
        read(Field::INJECTION),
        read(Field::INTERRUPTIBILITY),
    )
}

#[cfg(test)]
mod tests {
    use super::super::capability::Fixed;
    use super::super::reset::reset;
    use super::*;
    use crate::virt::StartState;

    const PVH: StartState = StartState::Pvh {
        entry: 0,
        start_info: 0,
    };

    fn with(start: StartState, changes: &[(Field, u64)]) -> Option<&'static str> {
        let vmcs = Vmcs::new(1);
        vmcs.make_current();
        let fixed = |ones| Fixed { ones, may: !0 };
        let _ = reset(&vmcs, fixed(0x8000_0021), fixed(0x2000), start);
        for &(field, value) in changes {
            vmcs.write(field, value);
        }
        broken_rule(&vmcs)
    }

    #[test]
    fn start_states_break_none() {
        assert_eq!(with(PVH, &[]), None);
        assert_eq!(with(StartState::Sipi { vector: 8 }, &[]), None);
        assert_eq!(with(StartState::WaitForSipi, &[]), None);
    }

    #[test]
    fn names_the_broken_rule() {
        let cs = SegmentSlot::Cs.rights();
        for (changes, rule) in [
            (&[(Field::CR4, 0)][..], "CR4.VMXE is clear"),
            (
                &[(Field::CR0, 0x8000_0030)],
                "CR0.PG is set with CR0.PE clear",
            ),
            (
                &[(Field::ENTRY, 1 << 9)],
                "64-bit mode without paging or PAE",
            ),
            (
                &[(Field::EFER, 1 << 10)],
                "EFER.LMA differs from the entry control",
            ),
            (&[(Field::PAT, 2)], "the PAT has a reserved memory type"),
            (&[(Field::RFLAGS, 0)], "RFLAGS has a reserved bit wrong"),
            (
                &[(Field::INJECTION, 0x8000_0020)],
                "an interrupt is injected with IF clear",
            ),
            (
                &[
                    (Field::INJECTION, 0x8000_0202),
                    (Field::INTERRUPTIBILITY, 8),
                ],
                "an NMI is injected while NMIs are masked",
            ),
            (
                &[(Field::INTERRUPTIBILITY, 1)],
                "the shadow of STI with IF clear",
            ),
            (&[(cs, 0x1_0000)], "CS is not present"),
            (&[(SegmentSlot::Tr.rights(), 0x89)], "TR is not a busy TSS"),
            (
                &[(Field::RIP, 1 << 40)],
                "RIP has upper bits set outside 64-bit code",
            ),
        ] {
            assert_eq!(with(PVH, changes), Some(rule));
        }
        assert_eq!(
            with(PVH, &[(Field::INJECTION, 0x20)]),
            None,
            "not valid, so not looked at"
        );
    }

    #[test]
    fn errors_of_instructions_have_names() {
        assert_eq!(instruction_error(7), "entry with invalid control fields");
        assert_eq!(instruction_error(99), "an error without a name");
    }
}
