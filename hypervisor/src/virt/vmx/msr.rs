//! MSRs of a guest: in the VMCS, or in the processor itself while the vCPU is on it; and which ones need no exit
//! (SDM vol. 3, 27.6.9).

use alloc::boxed::Box;

use x86::msr;

use super::apic;
use super::field::{Field, SegmentSlot};
use super::vmcs::Vmcs;
use crate::virt::Gp;
use crate::virt::page::{Pages, zeroed};
use crate::virt::rules::{is_canonical, new_efer, valid_pat};

/// MSRs that VM entry does not switch. The hypervisor uses none of them, so they are switched with the vCPU.
const SWITCHED: [u32; 6] = [
    msr::IA32_STAR,
    msr::IA32_LSTAR,
    msr::IA32_CSTAR,
    msr::IA32_FMASK,
    msr::IA32_KERNEL_GSBASE,
    msr::IA32_TSC_AUX,
];

/// MSRs that the guest reads and writes by itself.
const DIRECT: [u32; 11] = [
    msr::IA32_SYSENTER_CS,
    msr::IA32_SYSENTER_ESP,
    msr::IA32_SYSENTER_EIP,
    msr::IA32_FS_BASE,
    msr::IA32_GS_BASE,
    msr::IA32_KERNEL_GSBASE,
    msr::IA32_STAR,
    msr::IA32_LSTAR,
    msr::IA32_CSTAR,
    msr::IA32_FMASK,
    msr::IA32_TSC_AUX,
];

/// MSRs that the guest reads by itself: the TSC with the guest's offset, and EFER, whose writes are checked.
const READ_ONLY: [u32; 2] = [msr::IA32_TIME_STAMP_COUNTER, msr::IA32_EFER];

/// Two bits an MSR, in four parts of 1 KiB: reads of low and high ones, writes of low and high ones.
pub type MsrMap = Pages<4096>;

const WRITES: usize = 2048;

/// Byte and bit of an MSR's read permission. `None`: always intercepted.
fn position(msr: u32) -> Option<(usize, u32)> {
    let part = match msr {
        0..=0x1fff => 0,
        0xc000_0000..=0xc000_1fff => 1024,
        _ => return None,
    };
    let number = msr & 0x1fff;
    Some((part + number as usize / 8, number % 8))
}

/// All MSRs exit but those above. TSC_AUX only where the processor has it.
pub fn msr_map(tsc_aux: bool) -> Box<MsrMap> {
    let mut map = zeroed::<MsrMap>();
    map.0.fill(0xff);
    let mut open = |msr, offset| open(&mut map, msr, offset);
    for msr in DIRECT {
        if msr != msr::IA32_TSC_AUX || tsc_aux {
            open(msr, 0);
            open(msr, WRITES);
        }
    }
    for msr in READ_ONLY {
        open(msr, 0);
    }
    map
}

fn open(map: &mut MsrMap, msr: u32, offset: usize) {
    if let Some((byte, bit)) = position(msr)
        && let Some(byte) = map.0.get_mut(offset + byte)
    {
        *byte &= !(1 << bit);
    }
}

/// The same, but what the processor does by itself of an x2APIC does not exit.
pub fn x2apic_msr_map(tsc_aux: bool) -> Box<MsrMap> {
    const X2APIC: u32 = 0x800;
    let mut map = msr_map(tsc_aux);
    for number in apic::READ_DIRECTLY.into_iter().flatten() {
        open(&mut map, X2APIC + number, 0);
    }
    for number in apic::WRITTEN_DIRECTLY {
        open(&mut map, X2APIC + number, WRITES);
    }
    map
}

/// The MSRs of one vCPU that VM entry does not switch.
#[derive(Debug)]
pub struct SwitchedMsrs {
    values: [u64; SWITCHED.len()],
    /// TSC_AUX exists.
    tsc_aux: bool,
    /// The registers hold this vCPU's values, and `values` may be out of date.
    loaded: bool,
}

impl SwitchedMsrs {
    /// All zero, as after a reset.
    pub fn new(tsc_aux: bool) -> Self {
        Self {
            values: [0; SWITCHED.len()],
            tsc_aux,
            loaded: false,
        }
    }

    fn place(&self, msr: u32) -> Option<usize> {
        let there = msr != msr::IA32_TSC_AUX || self.tsc_aux;
        SWITCHED.iter().position(|&one| one == msr && there)
    }

    /// One of them; `None` if it is not one.
    fn get(&self, msr: u32) -> Option<u64> {
        let place = self.place(msr)?;
        if self.loaded {
            return Some(hardware::read(msr));
        }
        self.values.get(place).copied()
    }

    /// Sets one of them, to a value that the processor takes.
    fn set(&mut self, msr: u32, value: u64) -> Result<(), Gp> {
        let place = self.place(msr).ok_or(Gp)?;
        if self.loaded {
            hardware::write(msr, value);
        }
        *self.values.get_mut(place).ok_or(Gp)? = value;
        Ok(())
    }

    /// All zero, in the registers too if they are this vCPU's.
    pub fn reset(&mut self) {
        self.values = [0; SWITCHED.len()];
        if self.loaded {
            self.load();
        }
    }

    fn present(&self) -> core::ops::Range<usize> {
        let all = SWITCHED.len();
        0..if self.tsc_aux { all } else { all - 1 }
    }

    /// Puts them into the registers.
    pub fn load(&mut self) {
        for place in self.present() {
            if let (Some(&msr), Some(&value)) = (SWITCHED.get(place), self.values.get(place)) {
                hardware::write(msr, value);
            }
        }
        self.loaded = true;
    }

    /// Takes them out of the registers.
    pub fn unload(&mut self) {
        for place in self.present() {
            if let (Some(&msr), Some(value)) = (SWITCHED.get(place), self.values.get_mut(place)) {
                *value = hardware::read(msr);
            }
        }
        self.loaded = false;
    }
}

/// Reads an MSR of the guest; `None` if it is not one that the processor keeps.
pub fn get(vmcs: &Vmcs, switched: &SwitchedMsrs, msr: u32) -> Option<u64> {
    Some(match msr {
        msr::IA32_EFER => vmcs.read(Field::EFER),
        msr::IA32_PAT => vmcs.read(Field::PAT),
        msr::IA32_FS_BASE => vmcs.read(SegmentSlot::Fs.base()),
        msr::IA32_GS_BASE => vmcs.read(SegmentSlot::Gs.base()),
        msr::IA32_SYSENTER_CS => vmcs.read(Field::SYSENTER_CS),
        msr::IA32_SYSENTER_ESP => vmcs.read(Field::SYSENTER_ESP),
        msr::IA32_SYSENTER_EIP => vmcs.read(Field::SYSENTER_EIP),
        msr::IA32_DEBUGCTL => 0,
        _ => return switched.get(msr),
    })
}

/// Writes an MSR of the guest.
pub fn set(vmcs: &Vmcs, switched: &mut SwitchedMsrs, msr: u32, value: u64) -> Result<(), Gp> {
    let canonical = || {
        if is_canonical(value) {
            Ok(value)
        } else {
            Err(Gp)
        }
    };
    match msr {
        msr::IA32_EFER => {
            let efer = new_efer(vmcs.read(Field::CR0), vmcs.read(Field::EFER), value)?;
            vmcs.write(Field::EFER, efer);
        }
        msr::IA32_PAT if valid_pat(value) => vmcs.write(Field::PAT, value),
        msr::IA32_FS_BASE => vmcs.write(SegmentSlot::Fs.base(), canonical()?),
        msr::IA32_GS_BASE => vmcs.write(SegmentSlot::Gs.base(), canonical()?),
        msr::IA32_SYSENTER_CS => vmcs.write(Field::SYSENTER_CS, value & 0xffff_ffff),
        msr::IA32_SYSENTER_ESP => vmcs.write(Field::SYSENTER_ESP, canonical()?),
        msr::IA32_SYSENTER_EIP => vmcs.write(Field::SYSENTER_EIP, canonical()?),
        msr::IA32_KERNEL_GSBASE | msr::IA32_LSTAR | msr::IA32_CSTAR => {
            switched.set(msr, canonical()?)?;
        }
        msr::IA32_FMASK => switched.set(msr, value & 0xffff_ffff)?,
        msr::IA32_TSC_AUX if value > u64::from(u32::MAX) => return Err(Gp),
        msr::IA32_STAR | msr::IA32_TSC_AUX => switched.set(msr, value)?,
        msr::IA32_DEBUGCTL if value == 0 => {}
        _ => return Err(Gp),
    }
    Ok(())
}

#[cfg(target_os = "none")]
mod hardware {
    #![expect(unsafe_code, reason = "writes MSRs")]

    use crate::cpu::safe::{rdmsr, wrmsr};

    pub fn read(msr: u32) -> u64 {
        // All of them exist where they are read.
        rdmsr(msr).unwrap_or(0)
    }

    pub fn write(msr: u32, value: u64) {
        // SAFETY: the hypervisor uses none of these registers; its own code has no SYSCALL, SWAPGS or RDTSCP. A fault cannot
        // happen: callers have checked the value.
        let _ = unsafe { wrmsr(msr, value) };
    }
}

#[cfg(not(target_os = "none"))]
use super::mock::msr as hardware;

#[cfg(test)]
mod tests {
    use super::*;

    const READ: u64 = 1;
    const WRITE: u64 = 2;

    /// Which accesses exit.
    fn exits(map: &MsrMap, msr: u32) -> u64 {
        let Some((byte, bit)) = position(msr) else {
            return READ | WRITE;
        };
        u64::from(map.0[byte] >> bit & 1) | u64::from(map.0[WRITES + byte] >> bit & 1) << 1
    }

    #[test]
    fn positions_are_those_of_the_manual() {
        assert_eq!(position(0x174), Some((0x2e, 4)));
        assert_eq!(position(0x1fff), Some((0x3ff, 7)));
        assert_eq!(position(0xc000_0082), Some((0x410, 2)));
        assert_eq!(position(0x2000), None);
        assert_eq!(position(0xc001_0117), None);
    }

    #[test]
    fn only_what_is_switched_is_let_through() {
        let map = msr_map(true);
        let open: u32 = map.0.iter().map(|byte| byte.count_zeros()).sum();
        assert_eq!(open, 2 * 11 + 2);
        for msr in DIRECT {
            assert_eq!(exits(&map, msr), 0, "{msr:#x}");
        }
        assert_eq!(exits(&map, msr::IA32_EFER), WRITE);
        assert_eq!(exits(&map, msr::IA32_TIME_STAMP_COUNTER), WRITE);
        for msr in [msr::IA32_PAT, msr::IA32_APIC_BASE, 0x802, 0x6e0, 0x3a] {
            assert_eq!(exits(&map, msr), READ | WRITE, "{msr:#x}");
        }
        assert_eq!(exits(&msr_map(false), msr::IA32_TSC_AUX), READ | WRITE);
    }

    #[test]
    fn an_x2apic_exits_for_what_the_processor_does_not_do() {
        let map = x2apic_msr_map(true);
        for (msr, kind) in [
            (0x802, WRITE),
            (0x808, 0),
            (0x809, READ | WRITE),
            (0x80a, WRITE),
            (0x80b, READ),
            (0x80c, READ | WRITE),
            (0x80e, READ | WRITE),
            (0x80f, WRITE),
            (0x810, WRITE),
            (0x827, WRITE),
            (0x828, WRITE),
            (0x82f, READ | WRITE),
            (0x830, READ | WRITE),
            (0x832, WRITE),
            (0x839, READ | WRITE),
            (0x83e, WRITE),
            (0x83f, READ),
            (0x840, READ | WRITE),
            (msr::IA32_APIC_BASE, READ | WRITE),
            (msr::IA32_LSTAR, 0),
        ] {
            assert_eq!(exits(&map, msr), kind, "{msr:#x}");
        }
    }

    #[test]
    fn a_vcpu_finds_its_own_values_after_another_one() {
        let (mut a, mut b) = (SwitchedMsrs::new(true), SwitchedMsrs::new(true));
        a.set(msr::IA32_STAR, 7).unwrap();
        a.load();
        assert_eq!(hardware::read(msr::IA32_STAR), 7);
        hardware::write(msr::IA32_LSTAR, 9); // by the guest
        assert_eq!(a.get(msr::IA32_LSTAR), Some(9));
        a.unload();
        b.load();
        assert_eq!(
            (b.get(msr::IA32_STAR), b.get(msr::IA32_LSTAR)),
            (Some(0), Some(0)),
            "nothing of another vCPU's"
        );
        b.unload();
        assert_eq!(
            (a.get(msr::IA32_STAR), a.get(msr::IA32_LSTAR)),
            (Some(7), Some(9))
        );
        a.load();
        a.reset();
        assert_eq!(hardware::read(msr::IA32_LSTAR), 0);
    }

    #[test]
    fn values_that_the_processor_refuses_are_refused() {
        let vmcs = Vmcs::new(1);
        vmcs.make_current(lull_core::units::CpuId::new(0));
        let mut switched = SwitchedMsrs::new(true);
        for msr in [
            msr::IA32_FS_BASE,
            msr::IA32_GS_BASE,
            msr::IA32_KERNEL_GSBASE,
            msr::IA32_LSTAR,
            msr::IA32_SYSENTER_EIP,
        ] {
            let mut write = |value| set(&vmcs, &mut switched, msr, value);
            assert_eq!(write(0x8000_0000_0000), Err(Gp), "{msr:#x}");
            assert_eq!(write(0xffff_8000_0000_0000), Ok(()), "{msr:#x}");
            assert_eq!(get(&vmcs, &switched, msr), Some(0xffff_8000_0000_0000));
        }
        for (msr, value) in [
            (msr::IA32_PAT, 0x0202_0202_0202_0202),
            (msr::IA32_DEBUGCTL, 1),
            (msr::IA32_TSC_AUX, 1 << 32),
            (msr::IA32_EFER, 1 << 12),
            (msr::IA32_FEATURE_CONTROL, 5),
        ] {
            assert_eq!(set(&vmcs, &mut switched, msr, value), Err(Gp), "{msr:#x}");
        }
        assert_eq!(get(&vmcs, &switched, msr::IA32_FEATURE_CONTROL), None);
        let mut without = SwitchedMsrs::new(false);
        assert_eq!(get(&vmcs, &without, msr::IA32_TSC_AUX), None);
        assert_eq!(set(&vmcs, &mut without, msr::IA32_TSC_AUX, 0), Err(Gp));
    }
}
