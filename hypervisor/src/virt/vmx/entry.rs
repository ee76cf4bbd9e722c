//! The few instructions around a VM entry, and the events of the physical CPU that end a guest (SDM vol. 3, 27.6.1 and 29.2).
//!
//! Interrupts are off from the wake word's compare-and-swap on. With external-interrupt exiting, an interrupt that is pending at
//! the entry, or comes later, ends the guest whatever the guest's IF. So every wake that is sent by interrupt is seen: before the
//! compare-and-swap by its event bit, after it by an exit. An NMI before the entry is taken by the hypervisor's own IDT, as ever:
//! GS and TR are the hypervisor's until the entry itself.
//!
//! The exit acknowledges the interrupt and tells its vector; [`take`] runs the handler as the processor would have.

/// What ended the guest besides its own doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Physical {
    /// An interrupt, acknowledged.
    Interrupt(u8),
    /// NMI; further ones are masked until IRET.
    Nmi,
    /// Machine check.
    MachineCheck,
}

#[cfg(target_os = "none")]
pub use hardware::{exit_address, run, take};

#[cfg(target_os = "none")]
mod hardware {
    #![expect(unsafe_code, reason = "VM entry, and calls of interrupt stubs")]

    use core::arch::{asm, global_asm};

    use super::Physical;
    use crate::cpu::tables;

    global_asm!(include_str!("entry.s"));

    // SAFETY: defined in entry.s with these signatures.
    unsafe extern "sysv64" {
        fn vmx_run(gprs: *mut [u64; 16], launched: u64, host_rsp: *mut u64) -> u64;
        static vmx_exited: u8;
    }

    /// For HOST_RIP.
    pub fn exit_address() -> u64 {
        (&raw const vmx_exited).addr() as u64
    }

    /// Runs the guest of the current VMCS until its next exit. `false`: the entry instruction failed.
    ///
    /// # Safety
    /// Interrupts are off; the current VMCS describes a guest whose tables live and let it reach only its own memory, with the
    /// host state of this CPU; `launched` tells whether it was entered since it was cleared; `host_rsp` is what its HOST_RSP holds.
    pub unsafe fn run(gprs: &mut [u64; 16], launched: bool, host_rsp: &mut u64) -> bool {
        // SAFETY: by this function's contract; vmx_run keeps the calling convention, and writes only what is borrowed here.
        unsafe { vmx_run(gprs, u64::from(launched), host_rsp) == 0 }
    }

    /// Runs the handler of what ended the guest. Interrupts are off, and stay so.
    pub fn take(what: Physical) {
        match what {
            // SAFETY: the stub finds the frame that the processor would have pushed, and ends with IRET, which comes back here
            // with interrupts off. All registers are kept by it.
            Physical::Interrupt(vector) => unsafe {
                asm!(
                    "mov {old}, rsp",
                    "and rsp, -16",
                    "mov {segment:e}, ss",
                    "push {segment}",
                    "push {old}",
                    "pushfq",
                    "mov {segment:e}, cs",
                    "push {segment}",
                    "call {stub}",
                    old = out(reg) _,
                    segment = out(reg) _,
                    stub = in(reg) tables::stub(vector),
                );
            },
            // SAFETY: the gate of NMI has a stack of its own; its IRET ends the masking of NMIs that the exit left.
            Physical::Nmi => unsafe { asm!("int 2") },
            // SAFETY: the gate of machine checks has a stack of its own; it does not come back.
            Physical::MachineCheck => unsafe { asm!("int 18") },
        }
    }
}

/// No interrupts are taken on the host on which tests run.
#[cfg(not(target_os = "none"))]
pub fn take(_: Physical) {}
