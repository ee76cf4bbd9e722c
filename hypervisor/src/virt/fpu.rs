//! What a vCPU owns besides the control structure: FPU and vector state, XCR0, DR0 to DR3, TSC_AUX.
//!
//! Switched eagerly, when a vCPU comes to a pCPU and when it leaves: the hypervisor itself is built without floating point and
//! uses no breakpoints, so nothing of this is switched around a single entry.
//!
//! Invariants:
//! * While no vCPU is loaded, XCR0 holds all that the CPU supports; whatever is saved is saved with that mask, whatever the
//!   guest's own XCR0 says. So no component stays in the registers for the next vCPU.
//! * A new vCPU has the architectural initial state, not what lay in the registers.
//! * An x87 state that is the initial one is marked so, and then made by XRSTOR, not read. That is less work on any processor, and
//!   in QEMU's emulator it is what keeps guests alive: there, each instruction that reads an x87 status word from memory clears
//!   a flag of the first CPU without a lock, and what that CPU changes at the same moment (that it has left its guest, say) is
//!   lost.
#![expect(unsafe_code, reason = "FPU, debug and extended control registers")]

use alloc::boxed::Box;
use alloc::vec;
use core::arch::asm;

use raw_cpuid::CpuIdReader;

use super::Gp;

const X87: u64 = 1 << 0;
const SSE: u64 = 1 << 1;
const AVX: u64 = 1 << 2;
const MPX: u64 = 0b11 << 3;
const AVX512: u64 = 0b111 << 5;
const AMX: u64 = 0b11 << 17;

const LEGACY_SIZE: usize = 512 + 64;
const FCW_OFFSET: usize = 0;
const FCW_INIT: u16 = 0x37f;
const MXCSR_OFFSET: usize = 24;
const MXCSR_INIT: u32 = 0x1f80;
/// ST0 to ST7 in a save area.
const STACK: core::ops::Range<usize> = 32..160;
/// XSTATE_BV in a save area.
const HEADER: usize = 512;

/// What the processor can save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FpuFeatures {
    /// XCR0 bits that the processor supports; `None` without XSAVE.
    pub xcr0: Option<u64>,
    /// Bytes of a save area.
    pub size: usize,
}

impl FpuFeatures {
    /// Reads CPUID leaves 1 and 0Dh.
    pub fn read(cpuid: &impl CpuIdReader) -> Self {
        let xsave = cpuid.cpuid1(1).ecx & (1 << 26) != 0 && cpuid.cpuid1(0).eax >= 0xd;
        if !xsave {
            return Self {
                xcr0: None,
                size: LEGACY_SIZE,
            };
        }
        let leaf = cpuid.cpuid2(0xd, 0);
        let xcr0 = u64::from(leaf.eax) | u64::from(leaf.edx) << 32;
        Self {
            xcr0: Some(xcr0 | X87 | SSE),
            size: (leaf.ecx as usize).max(LEGACY_SIZE),
        }
    }

    /// The checks of XSETBV (AMD APM vol. 2, 11.5.2).
    pub fn check_xcr0(&self, value: u64) -> Result<(), Gp> {
        let all_or_none = |bits: u64| value & bits == 0 || value & bits == bits;
        let legal = self.xcr0.is_some_and(|supported| value & !supported == 0)
            && value & X87 != 0
            && (value & AVX == 0 || value & SSE != 0)
            && all_or_none(MPX)
            && all_or_none(AVX512)
            && (value & AVX512 == 0 || value & AVX != 0)
            && all_or_none(AMX);
        if legal { Ok(()) } else { Err(Gp) }
    }
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// The registers of one vCPU, while it is not on a pCPU.
pub struct FpuState {
    features: FpuFeatures,
    area: Box<[Line]>,
    /// The guest's XCR0.
    xcr0: u64,
    dr: [u64; 4],
    loaded: bool,
}

impl FpuState {
    /// The architectural initial state.
    pub fn new(features: FpuFeatures) -> Self {
        let area = vec![Line([0; 64]); features.size.div_ceil(64)].into_boxed_slice();
        let mut state = Self {
            features,
            area,
            xcr0: X87,
            dr: [0; 4],
            loaded: false,
        };
        state.clear();
        state
    }

    fn clear(&mut self) {
        self.area.fill(Line([0; 64]));
        if let Some(first) = self.area.first_mut() {
            first.0[FCW_OFFSET..][..2].copy_from_slice(&FCW_INIT.to_le_bytes());
            first.0[MXCSR_OFFSET..][..4].copy_from_slice(&MXCSR_INIT.to_le_bytes());
        }
        self.xcr0 = X87;
        self.dr = [0; 4];
    }

    /// Marks the x87 state in the area as the initial one if it is.
    fn mark_initial_x87(&mut self) {
        let [first, second, third, ..] = &*self.area else {
            return;
        };
        // In words, since this is on the way of every switch: what is set anywhere.
        let set = |bytes: &[u8]| {
            let (words, rest) = bytes.as_chunks();
            let set = words
                .iter()
                .fold(0, |set, &word| set | u64::from_le_bytes(word));
            rest.iter().fold(set, |set, &byte| set | u64::from(byte))
        };
        let set_in_stack =
            set(&first.0[STACK.start..]) | set(&second.0) | set(&third.0[..STACK.end - 128]);
        let [low, high, control @ ..] = &first.0[..MXCSR_OFFSET] else {
            return;
        };
        let initial = [*low, *high] == FCW_INIT.to_le_bytes() && set(control) | set_in_stack == 0;
        if initial && let Some(header) = self.area.get_mut(HEADER / 64) {
            header.0[0] &= !(X87 as u8);
        }
    }

    /// Back to the initial state, in the registers too if they are this vCPU's.
    pub fn reset(&mut self) {
        let loaded = core::mem::take(&mut self.loaded);
        self.clear();
        if loaded {
            self.load();
        }
    }

    /// The guest's XCR0. From the register if it is this vCPU's: QEMU lets a guest's XSETBV through without an exit.
    pub fn xcr0(&self) -> u64 {
        if self.loaded && self.features.xcr0.is_some() {
            read_xcr0()
        } else {
            self.xcr0
        }
    }

    /// Sets the guest's XCR0, in the register too if it is this vCPU's.
    pub fn set_xcr0(&mut self, value: u64) -> Result<(), Gp> {
        self.features.check_xcr0(value)?;
        self.xcr0 = value;
        if self.loaded {
            write_xcr0(value);
        }
        Ok(())
    }

    /// Puts all into the registers. `prepare_cpu` has run on this CPU.
    pub fn load(&mut self) {
        debug_assert!(!self.loaded);
        let area = self.area.as_ptr();
        if let Some(mask) = self.features.xcr0 {
            // SAFETY: the area has the size that the CPU names for all components of `mask`, is aligned, and holds zeros or what
            // XSAVE left there, so XRSTOR accepts it. FNINIT first: AMD processors do not restore the last instruction and data
            // pointers when no exception is pending, and would leave those of the vCPU before.
            unsafe {
                asm!("fninit", "xrstor64 [{area}]", area = in(reg) area, in("eax") mask as u32, in("edx") (mask >> 32) as u32,
                    options(nostack));
            }
            write_xcr0(self.xcr0);
        } else {
            // SAFETY: the area has at least 512 bytes, is aligned, and holds a valid image.
            unsafe { asm!("fninit", "fxrstor64 [{area}]", area = in(reg) area, options(nostack)) };
        }
        let [dr0, dr1, dr2, dr3] = self.dr;
        // SAFETY: DR7 is clear in the hypervisor, so addresses alone break nothing.
        unsafe {
            asm!("mov dr0, {0}", "mov dr1, {1}", "mov dr2, {2}", "mov dr3, {3}", in(reg) dr0, in(reg) dr1, in(reg) dr2, in(reg) dr3,
                options(nostack, nomem, preserves_flags));
        }
        self.loaded = true;
    }

    /// Takes all out of the registers.
    pub fn unload(&mut self) {
        debug_assert!(self.loaded);
        let area = self.area.as_mut_ptr();
        if let Some(mask) = self.features.xcr0 {
            // Read, not remembered, as in `xcr0`.
            self.xcr0 = read_xcr0();
            write_xcr0(mask);
            // SAFETY: as in `load`.
            unsafe {
                asm!("xsave64 [{area}]", area = in(reg) area, in("eax") mask as u32, in("edx") (mask >> 32) as u32,
                    options(nostack, preserves_flags));
            }
            self.mark_initial_x87();
        } else {
            // SAFETY: as in `load`.
            unsafe {
                asm!("fxsave64 [{area}]", area = in(reg) area, options(nostack, preserves_flags))
            };
        }
        let [dr0, dr1, dr2, dr3]: [u64; 4];
        // SAFETY: reading debug registers at CPL 0 has no effect.
        unsafe {
            asm!("mov {0}, dr0", "mov {1}, dr1", "mov {2}, dr2", "mov {3}, dr3", out(reg) dr0, out(reg) dr1, out(reg) dr2,
                out(reg) dr3, options(nostack, nomem, preserves_flags));
        }
        self.dr = [dr0, dr1, dr2, dr3];
        self.loaded = false;
    }
}

/// Makes FPU and vector registers usable on this CPU, for guests: CR0.TS and CR0.EM clear, CR4.OSFXSR and CR4.OSXSAVE set, XCR0
/// all that is supported, DR7 clear.
pub fn prepare_cpu(features: FpuFeatures) {
    const CR0_MP: u64 = 1 << 1;
    const CR0_EM: u64 = 1 << 2;
    const CR0_TS: u64 = 1 << 3;
    const CR4_OSFXSR: u64 = 1 << 9;
    const CR4_OSXMMEXCPT: u64 = 1 << 10;
    const CR4_OSXSAVE: u64 = 1 << 18;
    let xsave = if features.xcr0.is_some() {
        CR4_OSXSAVE
    } else {
        0
    };
    // SAFETY: only bits of FPU ownership change, whose features exist in every 64-bit processor (OSXSAVE: checked by CPUID). All
    // other bits, known or not, stay as read.
    unsafe {
        asm!("mov {r}, cr0", "and {r}, {clear}", "or {r}, {set}", "mov cr0, {r}", r = out(reg) _, clear = in(reg) !(CR0_EM | CR0_TS),
            set = in(reg) CR0_MP, options(nostack, nomem));
        asm!("mov {r}, cr4", "or {r}, {set}", "mov cr4, {r}", r = out(reg) _, set = in(reg) CR4_OSFXSR | CR4_OSXMMEXCPT | xsave,
            options(nostack, nomem));
        asm!("mov dr7, {}", in(reg) 0x400u64, options(nostack, nomem, preserves_flags));
    }
    if let Some(mask) = features.xcr0 {
        write_xcr0(mask);
    }
}

fn write_xcr0(value: u64) {
    // SAFETY: callers pass the supported mask or a value that `check_xcr0` accepted; the hypervisor itself uses none of the state.
    unsafe {
        asm!("xsetbv", in("ecx") 0, in("eax") value as u32, in("edx") (value >> 32) as u32, options(nostack, preserves_flags));
    }
}

fn read_xcr0() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: CR4.OSXSAVE is set (`prepare_cpu`); reading has no effect.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nostack, nomem, preserves_flags))
    };
    u64::from(low) | u64::from(high) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEATURES: FpuFeatures = FpuFeatures {
        xcr0: Some(0x2e7),
        size: 2696,
    };

    #[test]
    fn xcr0_is_checked_as_by_the_processor() {
        for good in [0x1, 0x3, 0x7, 0xe7, 0x2e7, 0x201] {
            assert_eq!(FEATURES.check_xcr0(good), Ok(()), "{good:#x}");
        }
        for bad in [0, 0x2, 0x5, 0x67, 0xe3, 0x1f, 0x107, 1 << 62 | 1] {
            assert_eq!(FEATURES.check_xcr0(bad), Err(Gp), "{bad:#x}");
        }
        assert_eq!(
            FpuFeatures {
                xcr0: None,
                size: LEGACY_SIZE
            }
            .check_xcr0(1),
            Err(Gp)
        );
    }

    #[test]
    fn a_new_vcpu_has_the_initial_state() {
        let mut state = FpuState::new(FEATURES);
        assert_eq!(state.area.len(), 43);
        assert_eq!(state.area.as_ptr().addr() % 64, 0);
        let initial = |state: &FpuState| {
            let first = state.area[0].0;
            assert_eq!((first[0], first[1]), (0x7f, 0x03));
            assert_eq!(
                u32::from_le_bytes(first[24..28].try_into().unwrap()),
                0x1f80
            );
            assert_eq!(first.iter().filter(|&&byte| byte != 0).count(), 4);
            assert!(state.area[1..].iter().all(|line| line.0 == [0; 64]));
        };
        initial(&state);
        state.area.fill(Line([0xaa; 64]));
        state.set_xcr0(7).unwrap();
        state.reset();
        initial(&state);
        assert_eq!(state.xcr0(), 1);
    }

    #[test]
    fn only_an_initial_x87_state_is_marked_so() {
        let marked = |change: fn(&mut [Line])| {
            let mut state = FpuState::new(FEATURES);
            // As XSAVE leaves it: x87, SSE and AVX are there, in that order.
            state.area[8].0[0] = 0b111;
            change(&mut state.area);
            state.mark_initial_x87();
            assert_eq!(state.area[8].0[0] | 1, 0b111, "the others stay");
            state.area[8].0[0] & 1 == 0
        };
        assert!(marked(|_| ()));
        // MXCSR and its mask, XMM0: not of the x87 state.
        assert!(marked(|area| area[0].0[24..32].fill(0xff)));
        assert!(marked(|area| area[2].0[32..48].fill(0xff)));
        // FCW, FSW (exceptions, condition codes), FTW, FOP, FIP, FDP, the first and the last byte of ST0 and of ST7.
        for byte in [0, 2, 3, 4, 6, 8, 16, 23, 32, 41, 144, 153] {
            let mut state = FpuState::new(FEATURES);
            state.area[8].0[0] = 0b111;
            state.area[byte / 64].0[byte % 64] ^= 0x20;
            state.mark_initial_x87();
            assert_eq!(state.area[8].0[0], 0b111, "byte {byte}");
        }
    }

    #[test]
    fn size_and_mask_come_from_the_processor() {
        let modern = |leaf: u32, _: u32| match leaf {
            0 => raw_cpuid::CpuIdResult {
                eax: 0xd,
                ebx: 0,
                ecx: 0,
                edx: 0,
            },
            1 => raw_cpuid::CpuIdResult {
                eax: 0,
                ebx: 0,
                ecx: 1 << 26,
                edx: 0,
            },
            _ => raw_cpuid::CpuIdResult {
                eax: 0x207,
                ebx: 576,
                ecx: 2696,
                edx: 0,
            },
        };
        assert_eq!(
            FpuFeatures::read(&modern),
            FpuFeatures {
                xcr0: Some(0x207),
                size: 2696
            }
        );
        let old = |_: u32, _: u32| raw_cpuid::CpuIdResult {
            eax: 1,
            ebx: 0,
            ecx: 0,
            edx: 0,
        };
        assert_eq!(
            FpuFeatures::read(&old),
            FpuFeatures {
                xcr0: None,
                size: 576
            }
        );
    }
}
