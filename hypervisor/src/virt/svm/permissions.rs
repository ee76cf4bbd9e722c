//! Permission maps: which ports and MSRs a guest may touch without an exit (AMD APM vol. 2, 15.10 and 15.11).
//!
//! The same two maps serve all guests. All ports exit. Of the MSRs, those are let through that VMLOAD and VMSAVE switch, so that
//! what the guest writes is its own.

use alloc::boxed::Box;

use x86::msr;

use super::page::{Pages, zeroed};

/// I/O permission map: a bit a port, and some bits beyond for accesses that cross the end.
pub type IoMap = Pages<0x3000>;
/// MSR permission map: two bits an MSR (read, write), three ranges in use.
pub type MsrMap = Pages<0x2000>;

/// MSRs that the guest reads and writes by itself.
pub const DIRECT_MSRS: [u32; 10] = [
    msr::IA32_SYSENTER_CS,
    msr::IA32_SYSENTER_ESP,
    msr::IA32_SYSENTER_EIP,
    msr::IA32_STAR,
    msr::IA32_LSTAR,
    msr::IA32_CSTAR,
    msr::IA32_FMASK,
    msr::IA32_FS_BASE,
    msr::IA32_GS_BASE,
    msr::IA32_KERNEL_GSBASE,
];

/// Byte and bit of an MSR's read permission; that for writing is the next bit. `None`: always intercepted.
pub fn msr_position(msr: u32) -> Option<(usize, u32)> {
    let range_base = match msr {
        0x0000_0000..=0x0000_1fff => 0x000,
        0xc000_0000..=0xc000_1fff => 0x800,
        0xc001_0000..=0xc001_1fff => 0x1000,
        _ => return None,
    };
    let number = msr & 0x1fff;
    Some((range_base + (number / 4) as usize, number % 4 * 2))
}

/// All ports exit.
pub fn io_map() -> Box<IoMap> {
    let mut map = zeroed::<IoMap>();
    map.0.fill(0xff);
    map
}

/// All MSRs exit but [`DIRECT_MSRS`].
pub fn msr_map() -> Box<MsrMap> {
    let mut map = zeroed::<MsrMap>();
    map.0.fill(0xff);
    for msr in DIRECT_MSRS {
        if let Some((byte, bit)) = msr_position(msr)
            && let Some(byte) = map.0.get_mut(byte)
        {
            *byte &= !(0b11 << bit);
        }
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_those_of_the_manual() {
        assert_eq!(msr_position(0), Some((0, 0)));
        assert_eq!(msr_position(0x174), Some((0x5d, 0)));
        assert_eq!(msr_position(0x1fff), Some((0x7ff, 6)));
        assert_eq!(msr_position(0xc000_0080), Some((0x820, 0)));
        assert_eq!(msr_position(0xc000_0082), Some((0x820, 4)));
        assert_eq!(msr_position(0xc001_0114), Some((0x1045, 0)));
        assert_eq!(msr_position(0xc001_1fff), Some((0x17ff, 6)));
        assert_eq!(msr_position(0x2000), None);
        assert_eq!(msr_position(0x4b56_4d00), None);
    }

    #[test]
    fn only_switched_msrs_are_let_through() {
        let map = msr_map();
        let open: u32 = map.0.iter().map(|byte| byte.count_zeros()).sum();
        assert_eq!(open, 20, "two bits for each of ten MSRs");
        for closed in [
            msr::IA32_EFER,
            msr::IA32_TSC_AUX,
            msr::IA32_APIC_BASE,
            msr::IA32_PAT,
            0xc001_0117,
        ] {
            let (byte, bit) = msr_position(closed).unwrap();
            assert_eq!(map.0[byte] >> bit & 0b11, 0b11, "{closed:#x}");
        }
        let (byte, bit) = msr_position(msr::IA32_KERNEL_GSBASE).unwrap();
        assert_eq!(map.0[byte] >> bit & 0b11, 0);
    }

    #[test]
    fn every_port_exits() {
        assert!(io_map().0.iter().all(|&byte| byte == 0xff));
    }
}
