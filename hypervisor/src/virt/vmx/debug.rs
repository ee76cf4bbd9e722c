//! DR6 of a guest: neither VM entry nor VM exit switches it, and a #DB that ends the guest does not set it (SDM vol. 3, 29.2.1).
//!
//! The hypervisor sets no breakpoints, so the register holds the guest's value as long as the vCPU is on the CPU.

/// Bits that read as one.
const RESET: u64 = 0xffff_0ff0;
/// Breakpoints met, register access, single step; a task switch does not come this way.
const CAUSES: u64 = 0xf | 1 << 13 | 1 << 14;
/// What a #DB replaces; the other bits stay until software clears them.
const REPLACED: u64 = 0xf;

/// The register of one vCPU.
#[derive(Debug)]
pub struct Dr6(u64);

impl Default for Dr6 {
    fn default() -> Self {
        Self(RESET)
    }
}

fn with_causes(old: u64, causes: u64) -> u64 {
    old & !REPLACED | causes & CAUSES
}

impl Dr6 {
    /// As after a reset, in the register too if it is this vCPU's.
    pub fn reset(&mut self, loaded: bool) {
        self.0 = RESET;
        if loaded {
            self.load();
        }
    }

    /// Adds what a #DB of the loaded vCPU is about.
    pub fn add(&mut self, causes: u64) {
        hardware::write(with_causes(hardware::read(), causes));
    }

    /// Puts it into the register.
    pub fn load(&self) {
        hardware::write(self.0);
    }

    /// Takes it out of the register.
    pub fn unload(&mut self) {
        self.0 = hardware::read();
    }
}

#[cfg(target_os = "none")]
mod hardware {
    #![expect(unsafe_code, reason = "a debug register")]
    use core::arch::asm;

    pub fn read() -> u64 {
        let value;
        // SAFETY: reading has no effect.
        unsafe { asm!("mov {}, dr6", out(reg) value, options(nostack, nomem, preserves_flags)) };
        value
    }

    pub fn write(value: u64) {
        // SAFETY: DR6 is a status register; upper bits are clear, as all writers start from RESET or from what was read.
        unsafe { asm!("mov dr6, {}", in(reg) value, options(nostack, nomem, preserves_flags)) };
    }
}

#[cfg(not(target_os = "none"))]
use super::mock::dr6 as hardware;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_replace_breakpoints_and_join_the_rest() {
        assert_eq!(with_causes(RESET, 1 << 14), 0xffff_4ff0);
        assert_eq!(with_causes(0xffff_4ff3, 0b100), 0xffff_4ff4);
        assert_eq!(with_causes(RESET, u64::MAX), 0xffff_6fff);
    }

    #[test]
    fn each_vcpu_has_its_own() {
        let (mut a, mut b) = (Dr6::default(), Dr6::default());
        a.load();
        a.add(1);
        a.unload();
        b.load();
        assert_eq!(hardware::read(), RESET);
        b.unload();
        a.load();
        assert_eq!(hardware::read(), RESET | 1);
        a.reset(true);
        assert_eq!(hardware::read(), RESET);
    }
}
