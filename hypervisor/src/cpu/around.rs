//! What a CPU needs done around a sleep, beyond the instruction that sleeps.
//!
//! Decided once, at the start, from CPUID ([`Around::of`]); the union of all CPUs' needs holds for each of them, since a
//! machine has one kind of CPU. Read on every idle entry, so it is one byte.

use core::fmt;
use core::sync::atomic::{AtomicU8, Ordering};

use lull_core::cstate::select::Registers;

bitflags::bitflags! {
    /// Needs of a CPU.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Around: u8 {
        /// CLFLUSH of the line before MONITOR, or stores to it do not wake (AAI65).
        const FLUSH_LINE = 1 << 0;
        /// VERW before MONITOR: what is left in the buffers would be open to the sibling thread, which gets them.
        /// After MONITOR it would disarm it on AMD.
        const CLEAR_BUFFERS = 1 << 1;
        /// IA32_SPEC_CTRL exists.
        const SPEC_CTRL = 1 << 2;
        /// TPAUSE exists: a poll waits in C0.1 between two looks.
        const TPAUSE = 1 << 3;
    }
}

/// IA32_ARCH_CAPABILITIES bit 5: buffers are not open to siblings.
const MDS_NO: u64 = 1 << 5;

static NEEDS: AtomicU8 = AtomicU8::new(0);

impl fmt::Display for Around {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing");
        }
        bitflags::parser::to_writer(self, f)
    }
}

impl Around {
    /// The needs that CPUID tells of. `capabilities` is IA32_ARCH_CAPABILITIES (MSR 0x10A), asked for where it exists.
    ///
    /// Sources: Intel SDM, volume 2, CPUID leaf 7 ECX bit 5 (WAITPKG), EDX bits 10 (MD_CLEAR), 26 (IBRS),
    /// 29; AMD, CPUID Fn8000_0021 EAX bit 5
    /// (VERW_CLEAR) and ECX bits 1 and 2 (not open to TSA).
    pub fn of(
        read: impl Fn(u32, u32) -> Registers,
        capabilities: impl FnOnce() -> Option<u64>,
    ) -> Self {
        let seven = if read(0, 0).eax >= 7 {
            read(7, 0)
        } else {
            Registers::default()
        };
        let amd = if read(0x8000_0000, 0).eax >= 0x8000_0021 {
            read(0x8000_0021, 0)
        } else {
            Registers::default()
        };
        let mut needs = Self::empty();
        let told = seven.edx & 1 << 29 != 0;
        let open = || !told || capabilities().is_none_or(|value| value & MDS_NO == 0);
        let mds = seven.edx & 1 << 10 != 0 && open();
        let tsa = amd.eax & 1 << 5 != 0 && amd.ecx & 0b110 != 0b110;
        needs.set(Self::CLEAR_BUFFERS, mds || tsa);
        needs.set(Self::SPEC_CTRL, seven.edx & 1 << 26 != 0);
        needs.set(Self::TPAUSE, seven.ecx & 1 << 5 != 0);
        needs
    }

    /// From now on, every CPU does this too.
    pub fn require(self) {
        NEEDS.fetch_or(self.bits(), Ordering::Relaxed);
    }

    /// What every CPU does.
    #[inline]
    pub fn required() -> Self {
        Self::from_bits_truncate(NEEDS.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(seven_edx: u32, amd: Option<(u32, u32)>) -> impl Fn(u32, u32) -> Registers {
        move |leaf, _| {
            let (eax, ecx, edx) = match (leaf, amd) {
                (0, _) => (7, 0, 0),
                (7, _) => (0, 0, seven_edx),
                (0x8000_0000, Some(_)) => (0x8000_0021, 0, 0),
                (0x8000_0021, Some((eax, ecx))) => (eax, ecx, 0),
                _ => (0, 0, 0),
            };
            Registers {
                eax,
                ecx,
                edx,
                ebx: 0,
            }
        }
    }

    #[test]
    fn buffers_are_cleared_where_the_cpu_asks_for_it() {
        let (md_clear, told) = (1 << 10, 1 << 29);
        let needs = |edx, value| Around::of(cpu(edx, None), || value);
        assert_eq!(needs(0, None), Around::empty());
        assert_eq!(Around::empty().to_string(), "nothing");
        let both = Around::CLEAR_BUFFERS | Around::TPAUSE;
        assert_eq!(both.to_string(), "CLEAR_BUFFERS | TPAUSE");
        assert_eq!(needs(md_clear, None), Around::CLEAR_BUFFERS);
        assert_eq!(needs(md_clear | told, Some(0)), Around::CLEAR_BUFFERS);
        assert_eq!(needs(md_clear | told, Some(MDS_NO)), Around::empty());
        // What cannot be read is no promise.
        assert_eq!(needs(md_clear | told, None), Around::CLEAR_BUFFERS);
        assert_eq!(needs(1 << 26, None), Around::SPEC_CTRL);
    }

    #[test]
    fn a_poll_pauses_where_it_can() {
        let cpu = |leaf, _| Registers {
            eax: if leaf == 0 { 7 } else { 0 },
            ecx: if leaf == 7 { 1 << 5 } else { 0 },
            ..Registers::default()
        };
        assert_eq!(Around::of(cpu, || None), Around::TPAUSE);
    }

    #[test]
    fn amd_says_it_elsewhere() {
        let needs = |eax, ecx| Around::of(cpu(0, Some((eax, ecx))), || None);
        assert_eq!(needs(1 << 5, 0), Around::CLEAR_BUFFERS);
        assert_eq!(needs(1 << 5, 0b010), Around::CLEAR_BUFFERS);
        assert_eq!(needs(1 << 5, 0b110), Around::empty());
        assert_eq!(needs(0, 0), Around::empty());
    }

    #[test]
    fn the_capabilities_are_only_read_where_they_are() {
        let _ = Around::of(cpu(1 << 10, None), || panic!("no such MSR"));
    }
}
