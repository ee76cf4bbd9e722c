//! What CPUID says about clocks. Pure over the reader, so that recorded leaves test it.
use raw_cpuid::{CpuId, CpuIdReader, Hypervisor};

/// The rate of the TSC by leaves 15h and 16h (Intel SDM vol. 3, 20.7.3), in Hz.
///
/// Where leaf 15h leaves the crystal out, the processor base frequency of leaf 16h is the TSC's nominal rate.
pub fn from_cpuid<R: CpuIdReader>(cpuid: &CpuId<R>) -> Option<u64> {
    let tsc = cpuid.get_tsc_info()?;
    let (numerator, denominator) = (u64::from(tsc.numerator()), u64::from(tsc.denominator()));
    if numerator == 0 || denominator == 0 {
        return None;
    }
    match u64::from(tsc.nominal_frequency()) {
        0 => {
            let base = u64::from(
                cpuid
                    .get_processor_frequency_info()?
                    .processor_base_frequency(),
            );
            (base != 0).then_some(base * 1_000_000)
        }
        crystal => Some(crystal * numerator / denominator),
    }
}

/// The rate of the TSC by leaf 4000_0010h, in Hz, if the hypervisor below is one that defines this leaf.
pub fn from_hypervisor<R: CpuIdReader>(cpuid: &CpuId<R>) -> Option<u64> {
    let info = cpuid.get_hypervisor_info()?;
    let defined = match info.identify() {
        Hypervisor::VMware | Hypervisor::KVM => true,
        Hypervisor::Unknown(b, c, d) => [b, c, d] == LULL,
        _ => false,
    };
    let khz = info.tsc_frequency().filter(|khz| defined && *khz != 0)?;
    Some(u64::from(khz) * 1000)
}

/// Our own signature "LullLullLull", for Lull under Lull.
const LULL: [u32; 3] = [u32::from_le_bytes(*b"Lull"); 3];

/// Whether the TSC runs at a constant rate in every power state (CPUID 8000_0007h EDX bit 8).
pub fn nonstop<R: CpuIdReader>(cpuid: &CpuId<R>) -> bool {
    cpuid
        .get_advanced_power_mgmt_info()
        .is_some_and(|info| info.has_invariant_tsc())
}

#[cfg(test)]
mod tests {
    use super::*;
    use raw_cpuid::CpuIdResult;
    use std::collections::BTreeMap;

    #[derive(Clone)]
    struct Leaves(BTreeMap<u32, [u32; 4]>);

    impl CpuIdReader for Leaves {
        fn cpuid2(&self, eax: u32, _ecx: u32) -> CpuIdResult {
            let [eax, ebx, ecx, edx] = self.0.get(&eax).copied().unwrap_or_default();
            CpuIdResult { eax, ebx, ecx, edx }
        }
    }

    fn cpuid(leaves: &[(u32, [u32; 4])]) -> CpuId<Leaves> {
        let mut map: BTreeMap<u32, [u32; 4]> = leaves.iter().copied().collect();
        let max = leaves
            .iter()
            .map(|l| l.0)
            .filter(|l| *l < 0x4000_0000)
            .max()
            .unwrap_or(1);
        map.entry(0)
            .or_insert([max, 0x756e_6547, 0x6c65_746e, 0x4965_6e69]);
        map.entry(0x8000_0000).or_insert([0x8000_0008, 0, 0, 0]);
        // Without the hypervisor bit the hypervisor leaves mean nothing.
        map.entry(1).or_insert([0, 0, 1 << 31, 0]);
        CpuId::with_cpuid_reader(Leaves(map))
    }

    #[test]
    fn leaf_15_with_crystal() {
        let c = cpuid(&[
            (0x15, [2, 184, 24_000_000, 0]),
            (0x16, [2200, 3200, 100, 0]),
        ]);
        assert_eq!(from_cpuid(&c), Some(2_208_000_000));
    }

    #[test]
    fn leaf_15_without_crystal_takes_the_base_frequency() {
        assert_eq!(
            from_cpuid(&cpuid(&[
                (0x15, [2, 292, 0, 0]),
                (0x16, [3500, 4000, 100, 0])
            ])),
            Some(3_500_000_000)
        );
        assert_eq!(from_cpuid(&cpuid(&[(0x15, [2, 292, 0, 0])])), None);
        assert_eq!(from_cpuid(&cpuid(&[(0x15, [0, 0, 24_000_000, 0])])), None);
        assert_eq!(from_cpuid(&cpuid(&[(0xD, [0; 4])])), None);
    }

    #[test]
    fn timing_leaf_counts_only_where_it_is_defined() {
        let leaf = |name: &[u8; 12], max| {
            let word = |i: usize| u32::from_le_bytes(name[i..i + 4].try_into().unwrap());
            from_hypervisor(&cpuid(&[
                (0x4000_0000, [max, word(0), word(4), word(8)]),
                (0x4000_0010, [2_100_000, 1_000_000, 0, 0]),
            ]))
        };
        assert_eq!(leaf(b"KVMKVMKVM\0\0\0", 0x4000_0010), Some(2_100_000_000));
        assert_eq!(leaf(b"VMwareVMware", 0x4000_0010), Some(2_100_000_000));
        assert_eq!(leaf(b"LullLullLull", 0x4000_0010), Some(2_100_000_000));
        assert_eq!(leaf(b"KVMKVMKVM\0\0\0", 0x4000_0001), None);
        assert_eq!(leaf(b"TCGTCGTCGTCG", 0x4000_0010), None);
        assert_eq!(leaf(b"XenVMMXenVMM", 0x4000_0010), None);
    }

    #[test]
    fn nonstop_is_bit_8() {
        assert!(nonstop(&cpuid(&[(0x8000_0007, [0, 0, 0, 0x100])])));
        assert!(!nonstop(&cpuid(&[(0x8000_0007, [0, 0, 0, 0xFF])])));
    }
}
