//! Instructions that may fault on this very machine, with the fault as a value.
//!
//! Each lists itself in the fix-up table; on a fault execution goes on behind it, with R8 = `0x100 | vector`.

use core::fmt;

/// The fault that an instruction raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Exception vector.
    pub vector: u8,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match super::trap::exception_name(self.vector) {
            Some(name) => f.write_str(name.split(' ').next().unwrap_or(name)),
            None => write!(f, "exception {}", self.vector),
        }
    }
}

#[cfg(target_os = "none")]
fn outcome<T>(raised: u64, value: T) -> Result<T, Fault> {
    match raised {
        0 => Ok(value),
        r => Err(Fault {
            vector: (r & 0xFF) as u8,
        }),
    }
}

#[cfg(target_os = "none")]
mod hardware {
    #![expect(unsafe_code, reason = "instructions that only assembly can name")]
    use super::{Fault, outcome};
    use core::arch::asm;

    /// Runs one instruction with a fix-up entry. `$raised` holds 0 or `0x100 | vector`.
    macro_rules! guarded {
        ($instruction:literal, $raised:ident, $($operands:tt)*) => {
            asm!(
                "xor r8d, r8d",
                concat!("2: ", $instruction),
                "3:",
                ".pushsection .lull_fixup,\"a\",@progbits",
                ".balign 16",
                ".quad 2b, 3b",
                ".popsection",
                out("r8") $raised,
                out("r9") _,
                $($operands)*
            )
        };
    }

    /// Reads an MSR.
    ///
    /// # Errors
    /// The CPU does not have it (#GP).
    pub fn rdmsr(msr: u32) -> Result<u64, Fault> {
        let (raised, low, high): (u64, u32, u32);
        // SAFETY: reading an MSR changes nothing; a fault lands behind it.
        unsafe {
            guarded!("rdmsr", raised, in("ecx") msr, inout("eax") 0 => low, inout("edx") 0 => high, options(nostack));
        }
        outcome(raised, u64::from(high) << 32 | u64::from(low))
    }

    /// Writes an MSR.
    ///
    /// # Errors
    /// The CPU does not have it, or refuses the value (#GP).
    ///
    /// # Safety
    /// The write must not break what Lull relies on (EFER, GS base, APIC base and the like).
    pub unsafe fn wrmsr(msr: u32, value: u64) -> Result<(), Fault> {
        let raised: u64;
        // SAFETY: the caller answers for the effect; a fault lands behind it.
        unsafe {
            guarded!(
                "wrmsr", raised, in("ecx") msr, in("eax") value as u32, in("edx") (value >> 32) as u32, options(nostack)
            );
        }
        outcome(raised, ())
    }

    /// Writes XCR0.
    ///
    /// # Errors
    /// #UD without CR4.OSXSAVE, #GP for a value that the CPU refuses.
    ///
    /// # Safety
    /// The state components that it enables must be saved by whoever switches to other code that uses them.
    pub unsafe fn xsetbv(value: u64) -> Result<(), Fault> {
        let raised: u64;
        // SAFETY: the caller answers for the effect; a fault lands behind it.
        unsafe {
            guarded!("xsetbv", raised, in("ecx") 0, in("eax") value as u32, in("edx") (value >> 32) as u32, options(nostack));
        }
        outcome(raised, ())
    }

    /// Reads a port: never faults in ring 0, but here so that probes of ports have one place.
    #[must_use]
    pub fn inb(port: u16) -> u8 {
        // SAFETY: the ports that Lull probes have no read side effects that matter.
        unsafe { x86::io::inb(port) }
    }

    /// Arms the monitor on `word`.
    ///
    /// # Errors
    /// MONITOR is not offered (#UD).
    pub fn monitor<T>(word: &T) -> Result<(), Fault> {
        let raised: u64;
        // SAFETY: MONITOR only reads; a fault lands behind it.
        unsafe {
            guarded!("monitor", raised, in("rax") core::ptr::from_ref(word), in("ecx") 0, in("edx") 0, options(nostack));
        }
        outcome(raised, ())
    }

    /// One MWAIT with hint 0, interrupts as they are. `masked_break` sets ECX bit 0.
    ///
    /// With interrupts off and without `masked_break` this may sleep for ever: the self-test never does that.
    ///
    /// # Errors
    /// #UD without MONITOR/MWAIT; #GP where ECX bit 0 is refused.
    pub fn mwait_probe(masked_break: bool) -> Result<(), Fault> {
        let raised: u64;
        // SAFETY: sleeping changes no state of ours; a fault lands behind it.
        unsafe {
            guarded!("mwait", raised, in("eax") 0, in("ecx") u32::from(masked_break), options(nostack));
        }
        outcome(raised, ())
    }

    /// One `sti; mwait; cli` with hint 0. `masked_break` sets ECX bit 0.
    ///
    /// # Errors
    /// As [`mwait_probe`].
    pub fn sti_mwait_cli_probe(masked_break: bool) -> Result<(), Fault> {
        let raised: u64;
        // SAFETY: the handlers that may run keep all registers and take no lock. A fault goes on behind the MWAIT, an
        // NMI before it too.
        unsafe {
            asm!(
                "xor r8d, r8d",
                "sti",
                "2: mwait",
                "3: cli",
                ".pushsection .lull_fixup,\"a\",@progbits",
                ".balign 16",
                ".quad 2b, 3b",
                ".popsection",
                ".pushsection .lull_sti_pairs,\"a\",@progbits",
                ".balign 16",
                ".quad 2b, 3b",
                ".popsection",
                out("r8") raised,
                out("r9") _,
                in("eax") 0,
                in("ecx") u32::from(masked_break),
                options(nostack)
            );
        }
        outcome(raised, ())
    }

    /// TILERELEASE, so that live AMX tiles do not keep the core out of a deep state. Nothing where XCR0 does not enable tiles;
    /// `true` if it was executed.
    ///
    /// Whoever owns tiles has saved them: the CPU is idle.
    pub fn release_tiles() -> bool {
        const TILES: u32 = 0b11 << 17;
        let (raised, enabled): (u64, u32);
        // SAFETY: XGETBV reads XCR0; without CR4.OSXSAVE it raises #UD, and lands behind itself.
        unsafe {
            guarded!("xgetbv", raised, in("ecx") 0, inout("eax") 0 => enabled, out("edx") _, options(nostack));
        }
        if raised != 0 || enabled & TILES != TILES {
            return false;
        }
        let raised: u64;
        // SAFETY: TILERELEASE (VEX.128.NP.0F38.W0 49 C0) resets tile registers only, which hold nothing of an idle CPU's.
        unsafe {
            guarded!(
                ".byte 0xC4, 0xE2, 0x78, 0x49, 0xC0",
                raised,
                options(nostack)
            );
        }
        raised == 0
    }

    /// Reads one byte of memory.
    ///
    /// # Errors
    /// Nothing is mapped there (#PF).
    pub fn peek(address: u64) -> Result<u8, Fault> {
        let (raised, value): (u64, u32);
        // SAFETY: reading memory changes nothing; a fault lands behind it.
        unsafe {
            guarded!("movzx {value:e}, byte ptr [{address}]", raised, address = in(reg) address, value = out(reg) value, options(nostack, readonly));
        }
        outcome(raised, value as u8)
    }

    /// Reads an aligned 64-bit word of memory.
    ///
    /// # Errors
    /// Nothing is mapped there (#PF), or the address is not canonical (#GP).
    pub fn peek_u64(address: u64) -> Result<u64, Fault> {
        let (raised, value): (u64, u64);
        // SAFETY: reading memory changes nothing; a fault lands behind it.
        unsafe {
            guarded!("mov {value}, qword ptr [{address}]", raised, address = in(reg) address, value = out(reg) value, options(nostack, readonly));
        }
        outcome(raised, value)
    }
}

#[cfg(target_os = "none")]
pub use hardware::{
    inb, monitor, mwait_probe, peek, peek_u64, rdmsr, release_tiles, sti_mwait_cli_probe, wrmsr,
    xsetbv,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_prints_its_mnemonic() {
        assert_eq!(alloc::format!("{}", Fault { vector: 13 }), "#GP");
        assert_eq!(alloc::format!("{}", Fault { vector: 77 }), "exception 77");
    }
}
