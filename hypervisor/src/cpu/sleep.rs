//! The sleep instructions, each with its interrupt window closed at both ends.
//!
//! All are called with interrupts off and return with interrupts off. `sti` is always directly followed by
//! the sleep, so that the STI shadow leaves no moment in which an interrupt could be taken before it; the
//! second instruction of each such pair is listed for the NMI return path (see [`super::fixup`]).
#![expect(
    unsafe_code,
    reason = "these are instructions that only assembly can name"
)]

use core::arch::asm;

use lull_core::cstate::MwaitHint;

/// `sti; hlt; cli`: sleeps until an interrupt, and takes it.
#[inline]
pub fn sti_hlt_cli() {
    // SAFETY: the handlers that may run keep all registers and take no lock.
    unsafe {
        asm!(
            "sti",
            "2: hlt",
            "3: cli",
            ".pushsection .lull_sti_pairs,\"a\",@progbits",
            ".balign 16",
            ".quad 2b, 3b",
            ".popsection",
            options(nostack)
        );
    }
}

/// Arms the monitor on the line that holds `word`.
///
/// Must not be called where CPUID does not offer MONITOR: #UD, which nobody recovers here.
#[inline]
pub fn monitor<T>(word: &T) {
    // SAFETY: MONITOR only reads; extensions (ECX) and hints (EDX) are 0.
    unsafe {
        asm!("monitor", in("rax") core::ptr::from_ref(word), in("ecx") 0, in("edx") 0, options(nostack, preserves_flags));
    }
}

/// CLFLUSH of the line that holds `word`. Directly before [`monitor`]; no fence is needed between them.
#[inline]
pub fn flush_line<T>(word: &T) {
    // SAFETY: writing back a line of our own memory changes no contents.
    unsafe {
        asm!("clflush [{}]", in(reg) core::ptr::from_ref(word), options(nostack, preserves_flags))
    };
}

/// VERW with a valid selector: clears the CPU's buffers where microcode offers that. Before [`monitor`].
#[inline]
pub fn clear_buffers() {
    // The memory operand is what clears; the register form does not.
    let selector: u16;
    // SAFETY: storing SS and verifying it changes ZF only; the operand is on this stack.
    unsafe {
        asm!("mov {0:x}, ss", out(reg) selector, options(nomem, nostack, preserves_flags));
        asm!("verw word ptr [{}]", in(reg) &raw const selector, options(nostack, readonly));
    }
}

/// WBINVD: writes back and empties the caches of this CPU.
pub fn flush_caches() {
    // SAFETY: memory keeps its contents.
    unsafe { asm!("wbinvd", options(nostack, preserves_flags)) };
}

/// MWAIT with interrupts off and ECX bit 0: an interrupt ends the sleep without being taken.
///
/// Only where the self-test has found that it neither faults nor sleeps for ever.
#[inline]
pub fn mwait_masked(hint: MwaitHint) {
    // SAFETY: memory may change while it sleeps, hence no `nomem`.
    unsafe { asm!("mwait", in("eax") hint.eax(), in("ecx") 1, options(nostack, preserves_flags)) };
}

/// `sti; mwait; cli` with ECX = 0: an interrupt is taken inside the sleep.
#[inline]
pub fn sti_mwait_cli(hint: MwaitHint) {
    // SAFETY: as for `sti_hlt_cli`.
    unsafe {
        asm!(
            "sti",
            "2: mwait",
            "3: cli",
            ".pushsection .lull_sti_pairs,\"a\",@progbits",
            ".balign 16",
            ".quad 2b, 3b",
            ".popsection",
            in("eax") hint.eax(),
            in("ecx") 0,
            options(nostack)
        );
    }
}

/// Reads a `P_LVLx` port to enter the C-state behind it, with interrupts off: the chipset breaks on a pending interrupt, which is
/// not taken here.
///
/// `settle`: the PM timer, read once directly after it, for chipsets that stop the CPU late.
#[inline]
pub fn io_read(port: u16, settle: Option<u16>) {
    // SAFETY: the port comes from the firmware's description of this very register; reading it only sleeps.
    unsafe { asm!("in al, dx", in("dx") port, out("al") _, options(nostack, preserves_flags)) };
    if let Some(port) = settle {
        // SAFETY: reading the PM timer changes nothing.
        unsafe {
            asm!("in eax, dx", in("dx") port, out("eax") _, options(nostack, preserves_flags))
        };
    }
}

/// TPAUSE in C0.1, the lighter of its two states, until the TSC reaches `until` or an interrupt is pending. Interrupts stay off.
///
/// Only where CPUID offers WAITPKG. The operating system's limit (IA32_UMWAIT_CONTROL) may end it earlier.
#[inline]
pub fn tpause(until: u64) {
    // SAFETY: it only waits. Bit 0 of the operand chooses C0.1.
    unsafe {
        asm!(
            "tpause ecx",
            in("ecx") 1,
            in("eax") until as u32,
            in("edx") (until >> 32) as u32,
            options(nomem, nostack)
        );
    }
}

/// `sti; nop; cli`: takes whatever interrupt is pending now.
///
/// The NOP ends the STI shadow; PAUSE would not on every emulator.
#[inline]
pub fn open_window() {
    // SAFETY: as for `sti_hlt_cli`.
    unsafe { asm!("sti", "nop", "cli", options(nostack)) };
}

/// Stops this CPU: interrupts off, HLT for ever. Only NMI, SMI or INIT get in.
pub fn stop_for_ever() -> ! {
    loop {
        // SAFETY: nothing runs here any more.
        unsafe { asm!("cli", "hlt", options(nostack)) };
    }
}
