//! Exit codes (AMD APM vol. 2, appendix C) to what they mean.

use alloc::format;

use crate::virt::{AddressSize, Exit, IoExit, SegmentRegister};

use super::event;
use super::vmcb::Control;

const CR8_WRITE: u64 = 0x18;
const EXCEPTION_FIRST: u64 = 0x40;
const EXCEPTION_LAST: u64 = 0x5f;
const MACHINE_CHECK: u8 = 18;
const INTR: u64 = 0x60;
const NMI: u64 = 0x61;
const INIT: u64 = 0x63;
const VINTR: u64 = 0x64;
const RDPMC: u64 = 0x6f;
/// CPUID.
pub const CPUID: u64 = 0x72;
const IRET: u64 = 0x74;
const INVD: u64 = 0x76;
const PAUSE: u64 = 0x77;
const HLT: u64 = 0x78;
const INVLPGA: u64 = 0x7a;
/// Port I/O.
pub const IO: u64 = 0x7b;
/// RDMSR; WRMSR if EXITINFO1 is 1.
pub const MSR: u64 = 0x7c;
const SHUTDOWN: u64 = 0x7f;
const VMRUN: u64 = 0x80;
/// VMMCALL.
pub const VMMCALL: u64 = 0x81;
const VMLOAD: u64 = 0x82;
const SKINIT: u64 = 0x86;
const WBINVD: u64 = 0x89;
const MONITOR: u64 = 0x8a;
const MWAIT: u64 = 0x8b;
const XSETBV: u64 = 0x8d;
const RDPRU: u64 = 0x8e;
const INVLPGB: u64 = 0xa0;
const INVLPGB_ILLEGAL: u64 = 0xa1;
const MCOMMIT: u64 = 0xa3;
const TLBSYNC: u64 = 0xa4;
const NESTED_FAULT: u64 = 0x400;

/// An exit, with those that the backend handles by itself.
#[derive(Debug, PartialEq, Eq)]
pub enum Decoded {
    /// For the caller.
    Exit(Exit),
    /// IRET is about to end an NMI handler.
    Iret,
    /// The state was refused.
    Invalid,
}

/// VMEXIT_INVALID is -1. QEMU writes only its lower 32 bits.
fn is_invalid(code: u64) -> bool {
    code as u32 == u32::MAX
}

/// What the exit means. `default_size` is the guest's default address size: QEMU does not tell that of a string instruction, so there
/// an address size prefix goes unseen.
pub fn decode(control: &Control, default_size: AddressSize) -> Decoded {
    let code = control.exit_code;
    if is_invalid(code) {
        return Decoded::Invalid;
    }
    Decoded::Exit(match code {
        EXCEPTION_FIRST..=EXCEPTION_LAST => match (code - EXCEPTION_FIRST) as u8 {
            MACHINE_CHECK => Exit::Invalid {
                reason: "a machine check hit the physical CPU while the guest ran".into(),
            },
            vector => event::intercepted(vector, control.exit_info1),
        },
        CR8_WRITE => Exit::Cr8Write,
        INTR => Exit::Event,
        NMI => Exit::Nmi,
        INIT => Exit::Init,
        VINTR => Exit::InterruptWindow,
        RDPMC => Exit::Rdpmc,
        CPUID => Exit::Cpuid,
        IRET => return Decoded::Iret,
        INVD | WBINVD => Exit::CacheFlush,
        PAUSE => Exit::Pause,
        HLT => Exit::Hlt,
        IO => Exit::Io(io(control.exit_info1, control.exit_info2, default_size)),
        MSR if control.exit_info1 & 1 == 0 => Exit::Rdmsr,
        MSR => Exit::Wrmsr,
        SHUTDOWN => Exit::TripleFault,
        VMMCALL => Exit::Hypercall,
        VMRUN
        | VMLOAD..=SKINIT
        | INVLPGA
        | RDPRU
        | INVLPGB
        | INVLPGB_ILLEGAL
        | MCOMMIT
        | TLBSYNC => Exit::Undefined,
        MONITOR => Exit::Monitor,
        MWAIT => Exit::Mwait,
        XSETBV => Exit::Xsetbv,
        NESTED_FAULT => nested_fault(control.exit_info1, control.exit_info2),
        _ => Exit::Invalid {
            reason: format!(
                "unknown exit code {code:#x} (details {:#x}, {:#x})",
                control.exit_info1, control.exit_info2
            ),
        },
    })
}

/// EXITINFO1 of port I/O (AMD APM vol. 2, figure 15-2).
fn io(info1: u64, info2: u64, default_size: AddressSize) -> IoExit {
    let write = info1 & 1 == 0;
    let string = info1 & (1 << 2) != 0;
    IoExit {
        port: (info1 >> 16) as u16,
        size: match info1 >> 4 & 0b111 {
            0b001 => 1,
            0b010 => 2,
            _ => 4,
        },
        write,
        string,
        rep: info1 & (1 << 3) != 0,
        address_size: match info1 >> 7 & 0b111 {
            0b001 => AddressSize::Bits16,
            0b010 => AddressSize::Bits32,
            0b100 => AddressSize::Bits64,
            _ => default_size,
        },
        // Only processors with decode assists name the segment; others leave zeros, which would mean ES: never the default of
        // OUTS, so zero is taken as "not told". INS always uses ES.
        segment: match (string, write, info1 >> 10 & 0b111) {
            (true, false, _) => Some(SegmentRegister::Es),
            (true, true, 1) => Some(SegmentRegister::Cs),
            (true, true, 2) => Some(SegmentRegister::Ss),
            (true, true, 3) => Some(SegmentRegister::Ds),
            (true, true, 4) => Some(SegmentRegister::Fs),
            (true, true, 5) => Some(SegmentRegister::Gs),
            _ => None,
        },
        next_rip: Some(info2),
    }
}

/// EXITINFO1 of a nested page fault: a page fault error code, and where in the walk it happened (AMD APM vol. 2, 15.25.6).
fn nested_fault(info1: u64, gpa: u64) -> Exit {
    Exit::NestedFault {
        gpa,
        present: info1 & (1 << 0) != 0,
        write: info1 & (1 << 1) != 0,
        fetch: info1 & (1 << 4) != 0,
        page_walk: info1 & (1 << 33) != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::page::zeroed;
    use super::*;

    fn exit(code: u64, info1: u64, info2: u64) -> Decoded {
        let mut control = zeroed::<Control>();
        (control.exit_code, control.exit_info1, control.exit_info2) = (code, info1, info2);
        decode(&control, AddressSize::Bits16)
    }

    #[test]
    fn port_io() {
        // outb to 0xe9, 16-bit addresses, as seen from a real-mode guest.
        let out = IoExit {
            port: 0xe9,
            size: 1,
            write: true,
            string: false,
            rep: false,
            address_size: AddressSize::Bits16,
            segment: None,
            next_rip: Some(0x1002),
        };
        assert_eq!(
            exit(0x7b, 0x00e9_0090, 0x1002),
            Decoded::Exit(Exit::Io(out))
        );
        let rep_insw = IoExit {
            port: 0x3f8,
            size: 2,
            write: false,
            string: true,
            rep: true,
            address_size: AddressSize::Bits64,
            segment: Some(SegmentRegister::Es),
            next_rip: Some(7),
        };
        assert_eq!(
            exit(0x7b, 0x03f8_022d, 7),
            Decoded::Exit(Exit::Io(rep_insw))
        );
        let outsd = IoExit {
            size: 4,
            write: true,
            rep: false,
            address_size: AddressSize::Bits32,
            segment: Some(SegmentRegister::Fs),
            ..rep_insw
        };
        assert_eq!(exit(0x7b, 0x03f8_1144, 7), Decoded::Exit(Exit::Io(outsd)));
    }

    #[test]
    fn nested_faults() {
        let fault = Exit::NestedFault {
            gpa: 0xfee0_00b0,
            write: true,
            fetch: false,
            present: false,
            page_walk: false,
        };
        assert_eq!(
            exit(0x400, 0x1_0000_0006, 0xfee0_00b0),
            Decoded::Exit(fault)
        );
        let walk = Exit::NestedFault {
            gpa: 0x5000,
            write: false,
            fetch: true,
            present: true,
            page_walk: true,
        };
        assert_eq!(exit(0x400, 0x2_0000_0015, 0x5000), Decoded::Exit(walk));
    }

    #[test]
    fn plain_codes() {
        for (code, expected) in [
            (0x60, Exit::Event),
            (0x64, Exit::InterruptWindow),
            (0x72, Exit::Cpuid),
            (0x78, Exit::Hlt),
            (0x7f, Exit::TripleFault),
            (0x81, Exit::Hypercall),
            (0x8b, Exit::Mwait),
            (
                0x41,
                Exit::Exception {
                    vector: 1,
                    error: 0,
                },
            ),
            (
                0x51,
                Exit::Exception {
                    vector: 17,
                    error: 0,
                },
            ),
        ] {
            assert_eq!(exit(code, 0, 0), Decoded::Exit(expected), "{code:#x}");
        }
        assert_eq!(exit(0x7c, 0, 0), Decoded::Exit(Exit::Rdmsr));
        assert_eq!(exit(0x7c, 1, 0), Decoded::Exit(Exit::Wrmsr));
        for code in [0x7a, 0x80, 0x82, 0x83, 0x84, 0x85, 0x86] {
            assert_eq!(
                exit(code, 0, 0),
                Decoded::Exit(Exit::Undefined),
                "{code:#x}"
            );
        }
        assert_eq!(exit(0x74, 0, 0), Decoded::Iret);
    }

    #[test]
    fn a_refused_state_is_known_in_32_and_64_bits() {
        assert_eq!(exit(u64::MAX, 0, 0), Decoded::Invalid);
        assert_eq!(exit(0xffff_ffff, 0, 0), Decoded::Invalid);
    }

    #[test]
    fn an_unknown_code_is_shown() {
        let Decoded::Exit(Exit::Invalid { reason }) = exit(0x403, 1, 2) else {
            panic!("must end the guest")
        };
        assert_eq!(reason, "unknown exit code 0x403 (details 0x1, 0x2)");
    }
}
