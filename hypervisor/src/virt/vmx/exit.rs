//! Exit reasons (SDM vol. 3, appendix C) to what they mean.

use alloc::format;

use super::entry::Physical;
use super::event::{self, Arrived};
use super::field::Field;
use super::vmcs::Vmcs;
use crate::virt::{AddressSize, Exit, Gpr, IoExit, SegmentRegister};

/// The entry failed: there was no guest.
pub const ENTRY_FAILURE: u64 = 1 << 31;

/// Basic exit reasons.
pub mod reason {
    pub const EXCEPTION_OR_NMI: u16 = 0;
    pub const EXTERNAL_INTERRUPT: u16 = 1;
    pub const TRIPLE_FAULT: u16 = 2;
    pub const INIT: u16 = 3;
    pub const SIPI: u16 = 4;
    pub const INTERRUPT_WINDOW: u16 = 7;
    pub const NMI_WINDOW: u16 = 8;
    pub const TASK_SWITCH: u16 = 9;
    pub const CPUID: u16 = 10;
    pub const GETSEC: u16 = 11;
    pub const HLT: u16 = 12;
    pub const INVD: u16 = 13;
    pub const RDPMC: u16 = 15;
    pub const VMCALL: u16 = 18;
    pub const VMCLEAR: u16 = 19;
    pub const VMXON: u16 = 27;
    pub const CR_ACCESS: u16 = 28;
    pub const IO: u16 = 30;
    pub const RDMSR: u16 = 31;
    pub const WRMSR: u16 = 32;
    pub const MWAIT: u16 = 36;
    pub const MONITOR: u16 = 39;
    pub const PAUSE: u16 = 40;
    pub const TPR_BELOW_THRESHOLD: u16 = 43;
    pub const VIRTUALIZED_EOI: u16 = 45;
    pub const EPT_VIOLATION: u16 = 48;
    pub const EPT_MISCONFIGURATION: u16 = 49;
    pub const INVEPT: u16 = 50;
    pub const PREEMPTION_TIMER: u16 = 52;
    pub const INVVPID: u16 = 53;
    pub const WBINVD: u16 = 54;
    pub const XSETBV: u16 = 55;
    pub const APIC_WRITE: u16 = 56;
    pub const VMFUNC: u16 = 59;
}

/// Type of VM-exit interruption information: INT1.
const PRIVILEGED_SOFTWARE: u64 = 5;

/// An exit, with those that the backend handles by itself.
#[derive(Debug, PartialEq, Eq)]
pub enum Decoded {
    /// For the caller.
    Exit(Exit),
    /// The physical CPU was interrupted: take it, then tell the caller.
    Physical(Physical),
    /// #DB of the guest. Debug registers are not yet as the guest would find them.
    Debug {
        /// Bits for DR6.
        causes: u64,
        /// By INT1, which RIP points to.
        by_instruction: bool,
    },
    /// The guest can take an NMI.
    NmiWindow,
    /// The task priority has gone down far enough.
    TaskPriority,
    /// A register of the virtual-APIC page was written, at this offset; the instruction is done.
    ApicWrite(u32),
    /// MOV to or from a control register.
    ControlRegister(CrAccess),
    /// The entry failed for this basic reason.
    EntryFailed(u16),
}

/// A control register was accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrAccess {
    /// MOV to it.
    Write {
        /// Its number.
        register: u8,
        /// From where.
        from: Gpr,
    },
    /// MOV from it.
    Read {
        /// Its number.
        register: u8,
        /// To where.
        to: Gpr,
    },
    /// CLTS or LMSW.
    Other,
}

/// What the exit of the current VMCS means. `string_info`: the processor tells segment and address size of INS and OUTS.
/// `default_size` is the guest's default address size, for where it does not.
pub fn decode(vmcs: &Vmcs, string_info: bool, default_size: AddressSize) -> Decoded {
    let full = vmcs.read(Field::EXIT_REASON);
    let basic = full as u16;
    if full & ENTRY_FAILURE != 0 {
        return Decoded::EntryFailed(basic);
    }
    Decoded::Exit(match basic {
        reason::EXCEPTION_OR_NMI => return exception(vmcs),
        reason::EXTERNAL_INTERRUPT => {
            let vector = vmcs.read(Field::EXIT_INTERRUPTION) as u8;
            return Decoded::Physical(Physical::Interrupt(vector));
        }
        reason::NMI_WINDOW => return Decoded::NmiWindow,
        reason::TPR_BELOW_THRESHOLD => return Decoded::TaskPriority,
        reason::APIC_WRITE => {
            return Decoded::ApicWrite((vmcs.read(Field::QUALIFICATION) & 0xfff) as u32);
        }
        // No vector is set in the EOI-exit bitmap; what there is to do was done.
        reason::VIRTUALIZED_EOI => Exit::Handled,
        reason::CR_ACCESS => {
            return Decoded::ControlRegister(control_register(vmcs.read(Field::QUALIFICATION)));
        }
        reason::TRIPLE_FAULT => Exit::TripleFault,
        reason::INIT | reason::SIPI => Exit::Init,
        reason::INTERRUPT_WINDOW => Exit::InterruptWindow,
        // The dispatch loop looks at its deadlines.
        reason::PREEMPTION_TIMER => Exit::Event,
        reason::CPUID => Exit::Cpuid,
        reason::HLT => Exit::Hlt,
        reason::INVD | reason::WBINVD => Exit::CacheFlush,
        reason::RDPMC => Exit::Rdpmc,
        reason::VMCALL => Exit::Hypercall,
        reason::GETSEC
        | reason::VMCLEAR..=reason::VMXON
        | reason::INVEPT
        | reason::INVVPID
        | reason::VMFUNC => Exit::Undefined,
        reason::IO => Exit::Io(io(vmcs, string_info, default_size)),
        reason::RDMSR => Exit::Rdmsr,
        reason::WRMSR => Exit::Wrmsr,
        reason::MWAIT => Exit::Mwait,
        reason::MONITOR => Exit::Monitor,
        reason::PAUSE => Exit::Pause,
        reason::XSETBV => Exit::Xsetbv,
        reason::EPT_VIOLATION => nested_fault(
            vmcs.read(Field::QUALIFICATION),
            vmcs.read(Field::GUEST_PHYSICAL),
        ),
        reason::TASK_SWITCH => Exit::Invalid {
            reason: "a task switch by hardware (a task gate, or a far jump to a TSS), which the processor leaves to the hypervisor and Lull does not do".into(),
        },
        reason::EPT_MISCONFIGURATION => Exit::Invalid {
            reason: format!(
                "the extended page tables are malformed at guest-physical {:#x}",
                vmcs.read(Field::GUEST_PHYSICAL)
            ),
        },
        _ => Exit::Invalid {
            reason: format!(
                "unknown exit reason {basic} (qualification {:#x})",
                vmcs.read(Field::QUALIFICATION)
            ),
        },
    })
}

/// Whether the exit is one of an instruction, whose length the processor tells.
pub fn has_length(basic: u16) -> bool {
    matches!(
        basic,
        reason::CPUID..=reason::INVD
            | reason::RDPMC
            | reason::VMCALL..=reason::CR_ACCESS
            | reason::IO..=reason::WRMSR
            | reason::MWAIT
            | reason::MONITOR
            | reason::PAUSE
            | reason::INVEPT
            | reason::INVVPID..=reason::XSETBV
            | reason::VMFUNC
    )
}

fn exception(vmcs: &Vmcs) -> Decoded {
    const DEBUG: u8 = 1;
    const MACHINE_CHECK: u8 = 18;
    let info = vmcs.read(Field::EXIT_INTERRUPTION);
    match event::arrived(info) {
        Arrived::Nmi => Decoded::Physical(Physical::Nmi),
        Arrived::Exception(MACHINE_CHECK) => Decoded::Physical(Physical::MachineCheck),
        Arrived::Exception(DEBUG) => Decoded::Debug {
            causes: vmcs.read(Field::QUALIFICATION),
            by_instruction: info >> 8 & 0b111 == PRIVILEGED_SOFTWARE,
        },
        Arrived::Exception(vector) => Decoded::Exit(Exit::Exception {
            vector,
            error: vmcs.read(Field::EXIT_INTERRUPTION_ERROR) as u32,
        }),
    }
}

/// Exit qualification for control registers (SDM vol. 3, table 29-3).
fn control_register(qualification: u64) -> CrAccess {
    let register = (qualification & 0xf) as u8;
    let gpr = Gpr::from_encoding((qualification >> 8 & 0xf) as u8).unwrap_or(Gpr::Rax);
    match qualification >> 4 & 0b11 {
        0 => CrAccess::Write {
            register,
            from: gpr,
        },
        1 => CrAccess::Read { register, to: gpr },
        _ => CrAccess::Other,
    }
}

/// Exit qualification of port I/O (SDM vol. 3, table 29-5), and the instruction information of INS and OUTS (table 29-8).
fn io(vmcs: &Vmcs, string_info: bool, default_size: AddressSize) -> IoExit {
    let qualification = vmcs.read(Field::QUALIFICATION);
    let write = qualification & (1 << 3) == 0;
    let string = qualification & (1 << 4) != 0;
    let info = if string && string_info {
        Some(vmcs.read(Field::INSTRUCTION_INFO))
    } else {
        None
    };
    let address_size = match info.map(|info| info >> 7 & 0b111) {
        Some(0) => AddressSize::Bits16,
        Some(1) => AddressSize::Bits32,
        Some(2) => AddressSize::Bits64,
        _ => default_size,
    };
    let segment = match (string, write, info.map(|info| info >> 15 & 0b111)) {
        (true, false, _) => Some(SegmentRegister::Es),
        (true, true, Some(0)) => Some(SegmentRegister::Es),
        (true, true, Some(1)) => Some(SegmentRegister::Cs),
        (true, true, Some(2)) => Some(SegmentRegister::Ss),
        (true, true, Some(3)) => Some(SegmentRegister::Ds),
        (true, true, Some(4)) => Some(SegmentRegister::Fs),
        (true, true, Some(5)) => Some(SegmentRegister::Gs),
        _ => None,
    };
    IoExit {
        port: (qualification >> 16) as u16,
        size: (qualification & 0b111) as u8 + 1,
        write,
        string,
        rep: qualification & (1 << 5) != 0,
        address_size,
        segment,
        next_rip: None,
    }
}

/// Exit qualification of an EPT violation (SDM vol. 3, table 29-7).
fn nested_fault(qualification: u64, gpa: u64) -> Exit {
    const LINEAR_VALID: u64 = 1 << 7;
    const TRANSLATED: u64 = 1 << 8;
    Exit::NestedFault {
        gpa,
        write: qualification & (1 << 1) != 0,
        fetch: qualification & (1 << 2) != 0,
        present: qualification >> 3 & 0b111 != 0,
        page_walk: qualification & LINEAR_VALID != 0 && qualification & TRANSLATED == 0,
    }
}

#[cfg(test)]
#[path = "exit_tests.rs"]
mod tests;
