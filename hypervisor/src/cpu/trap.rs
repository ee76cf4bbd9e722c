//! What the CPU pushed, and where it goes: fix-up, interrupt handler, or the end of the machine.
//!
//! Called only from the assembly entry. Takes no lock; an exception that neither a fix-up nor the cage claims is fatal.
#![cfg_attr(
    target_os = "none",
    expect(unsafe_code, reason = "the assembly entry calls in with a raw frame")
)]

use core::fmt;

/// All general registers and what the CPU pushed, in the order in which the entry stub left them.
///
/// Intel SDM vol. 3, 7.14 (64-bit mode interrupt stack frame).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "each field is the register of that name")]
pub struct TrapFrame {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rbp: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rax: u64,
    /// Interrupt or exception vector, 0..=255.
    pub vector: u64,
    /// Error code; 0 where the exception has none.
    pub error: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

const _: () = assert!(
    size_of::<TrapFrame>() == 22 * 8 && core::mem::offset_of!(TrapFrame, vector) == 15 * 8,
    "cpu/asm/trap_entry.s builds this frame"
);

/// First vector that is an interrupt and not an exception.
pub const FIRST_INTERRUPT: u8 = 32;

/// The mnemonic and name of an exception vector; `None` for interrupts and reserved vectors.
///
/// Intel SDM vol. 3, table 7-1; AMD APM vol. 2, 8.2.
#[must_use]
pub const fn exception_name(vector: u8) -> Option<&'static str> {
    Some(match vector {
        0 => "#DE divide error",
        1 => "#DB debug",
        2 => "NMI",
        3 => "#BP breakpoint",
        4 => "#OF overflow",
        5 => "#BR bound range",
        6 => "#UD invalid opcode",
        7 => "#NM device not available",
        8 => "#DF double fault",
        10 => "#TS invalid TSS",
        11 => "#NP segment not present",
        12 => "#SS stack segment",
        13 => "#GP general protection",
        14 => "#PF page fault",
        16 => "#MF x87 floating point",
        17 => "#AC alignment check",
        18 => "#MC machine check",
        19 => "#XM SIMD floating point",
        20 => "#VE virtualization",
        21 => "#CP control protection",
        28 => "#HV hypervisor injection",
        29 => "#VC VMM communication",
        30 => "#SX security",
        _ => return None,
    })
}

impl fmt::Display for TrapFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  rip {:016x}  cs {:04x}  rflags {:08x}  rsp {:016x}  ss {:04x}",
            self.rip, self.cs, self.rflags, self.rsp, self.ss
        )?;
        writeln!(
            f,
            "  rax {:016x}  rbx {:016x}  rcx {:016x}  rdx {:016x}",
            self.rax, self.rbx, self.rcx, self.rdx
        )?;
        writeln!(
            f,
            "  rsi {:016x}  rdi {:016x}  rbp {:016x}  r8  {:016x}",
            self.rsi, self.rdi, self.rbp, self.r8
        )?;
        writeln!(
            f,
            "  r9  {:016x}  r10 {:016x}  r11 {:016x}  r12 {:016x}",
            self.r9, self.r10, self.r11, self.r12
        )?;
        write!(
            f,
            "  r13 {:016x}  r14 {:016x}  r15 {:016x}",
            self.r13, self.r14, self.r15
        )
    }
}

#[cfg(target_os = "none")]
mod entry {
    use super::{FIRST_INTERRUPT, TrapFrame};
    use crate::cage;
    use crate::cpu::{fixup, interrupts, nmi, percpu};
    use crate::panic;

    core::arch::global_asm!(
        include_str!("asm/trap_entry.s"),
        first_irq = const percpu::FIRST_IRQ_OFFSET,
        options(att_syntax)
    );

    /// Called by `lull_trap_common` with the frame it built.
    // SAFETY: the only symbol of this name in the image.
    #[unsafe(no_mangle)]
    extern "C" fn lull_trap(frame: &mut TrapFrame) {
        let Ok(vector) = u8::try_from(frame.vector) else {
            panic::exception(frame)
        };
        match vector {
            FIRST_INTERRUPT.. => interrupts::dispatch(vector, frame),
            2 => {
                nmi::handle(frame);
                fixup::leave_sti_pair(frame);
            }
            _ => {
                if !fixup::recover(frame) && !cage::catch(frame) {
                    panic::exception(frame);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exception_that_can_reach_us_has_a_name() {
        assert_eq!(exception_name(14), Some("#PF page fault"));
        assert_eq!(exception_name(18), Some("#MC machine check"));
        assert_eq!(exception_name(9), None);
        assert_eq!(exception_name(32), None);
    }

    #[test]
    fn a_frame_prints_its_registers() {
        let text = alloc::format!(
            "{}",
            TrapFrame {
                rip: 0x1234,
                r15: 0xabc,
                ..TrapFrame::default()
            }
        );
        assert!(text.contains("rip 0000000000001234"), "{text}");
        assert!(text.ends_with("r15 0000000000000abc"), "{text}");
    }
}
