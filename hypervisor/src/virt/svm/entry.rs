//! The gate: the few instructions around a VM entry (AMD APM vol. 2, 15.5, 15.13 and 15.17).
//!
//! With GIF=0 nothing is taken: no interrupt, no NMI. With IF=1 and V_INTR_MASKING a physical interrupt that is pending, or comes,
//! ends the guest at once, whatever the guest's IF. So from `close` on, every wake that is sent by interrupt is seen: before the
//! wake word's compare-and-swap by its event bit, after it by an exit.
//!
//! A physical interrupt is not acknowledged by the exit; it is taken in `open`, by the hypervisor's own IDT.

#[cfg(target_os = "none")]
pub use hardware::{close, open, reopen, run, save_host};

#[cfg(target_os = "none")]
mod hardware {
    #![expect(unsafe_code, reason = "VMRUN and the global interrupt flag")]

    use core::arch::{asm, global_asm};

    use super::super::vcpu::Rounds;
    use super::super::vmcb::Vmcb;

    global_asm!(include_str!("entry.s"));

    // SAFETY: defined in entry.s with this signature.
    #[expect(improper_ctypes, reason = "`rounds` is passed on, and not looked into")]
    unsafe extern "sysv64" {
        fn svm_run(
            gprs: *mut [u64; 16],
            vmcb: u64,
            host: u64,
            exited: extern "sysv64" fn(&mut Rounds<'_>) -> bool,
            rounds: *mut Rounds<'_>,
        );
    }

    extern "sysv64" fn exited(rounds: &mut Rounds<'_>) -> bool {
        rounds.exited()
    }

    /// Holds off everything, and lets a pending interrupt end the guest that comes next. Interrupts must be off.
    pub fn close() {
        // SAFETY: only called on a CPU on which `Svm::enable_on_this_cpu` succeeded (checked by `SvmVcpu::enter`), so CLGI exists;
        // with GIF=0, setting IF takes no interrupt.
        unsafe { asm!("clgi", "sti", options(nostack)) };
    }

    /// Back to plain "interrupts off", without taking any: the gate was closed.
    pub fn reopen() {
        // SAFETY: as in `close`; IF is clear before GIF is set, so nothing maskable is taken.
        unsafe { asm!("cli", "stgi") };
    }

    /// After a guest: takes what ended it, then "interrupts off".
    pub fn open() {
        // SAFETY: as in `close`; the host's own state (GS base, TR) is back, so its handlers can run here as in any other window.
        // One instruction stands between STGI and CLI: emulators look for interrupts only after it.
        unsafe { asm!("stgi", "nop", "cli") };
    }

    /// Runs the guest until its first exit that is not answered, between `close` and `open`.
    ///
    /// # Safety
    /// The gate is closed; the VMCB describes a guest whose permission maps and nested page tables live and let it reach only its
    /// own memory; `host` is the physical address of a page that VMSAVE on this CPU filled.
    pub unsafe fn run(rounds: &mut Rounds<'_>, host: u64) {
        let (gprs, vmcb) = rounds.registers();
        let gprs = core::ptr::from_mut(gprs);
        let vmcb = core::ptr::from_mut(vmcb).expose_provenance() as u64;
        // SAFETY: by this function's contract; svm_run keeps the calling convention; it writes only the registers and the VMCB,
        // which `rounds` borrows, and not while `exited` runs, which has `rounds` to itself.
        unsafe { svm_run(gprs, vmcb, host, exited, rounds) };
    }

    /// Records FS, GS, TR, LDTR, the KERNEL_GS base and the system-call registers of this CPU in a page.
    ///
    /// # Safety
    /// EFER.SVME is set on this CPU.
    pub unsafe fn save_host(page: &mut Vmcb) {
        let address = core::ptr::from_mut(page).expose_provenance() as u64;
        // SAFETY: by this function's contract; VMSAVE writes only to the page, which is borrowed.
        unsafe { asm!("vmsave rax", in("rax") address, options(nostack, preserves_flags)) };
    }
}

/// No gate on the host on which tests run.
#[cfg(not(target_os = "none"))]
mod mock {
    pub fn close() {}
    pub fn reopen() {}
    pub fn open() {}
}
#[cfg(not(target_os = "none"))]
pub use mock::{close, open, reopen};
