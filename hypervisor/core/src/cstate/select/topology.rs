//! How many packages and threads there are, from APIC ids.

use super::facts::{Registers, Topology};
use alloc::vec::Vec;

impl Topology {
    /// The topology of the online CPUs with these APIC ids, read through CPUID leaf Bh of any of them.
    ///
    /// Without that leaf it is one package; threads are then assumed where leaf 1 says that a package has several logical
    /// CPUs, since a limit that was not needed does no harm. Source: Intel SDM, volume 2, CPUID leaf 0Bh; AMD APM, volume 3,
    /// Fn0000_000B.
    pub fn from_cpuid(read: impl Fn(u32, u32) -> Registers, apic_ids: &[u32]) -> Self {
        let cpus = u32::try_from(apic_ids.len()).unwrap_or(u32::MAX).max(1);
        let has_leaf = read(0, 0).eax >= 0xB;
        let levels = [read(0xB, 0), read(0xB, 1)];
        // ECX bits 15:8 are the level's type; 0 is none.
        if !has_leaf || levels[0].ecx >> 8 & 0xFF == 0 {
            let several = read(1, 0).edx & 1 << 28 != 0;
            return Self {
                packages: 1,
                cpus,
                smt: several && cpus > 1,
            };
        }
        let shift = |level: Registers| level.eax & 0x1F;
        let mut cores: Vec<u32> = apic_ids.iter().map(|id| id >> shift(levels[0])).collect();
        cores.sort_unstable();
        let smt = cores.windows(2).any(|pair| pair[0] == pair[1]);
        let package = |id: &u32| id >> shift(levels[1]);
        Self {
            packages: apic_ids
                .iter()
                .map(package)
                .max()
                .unwrap_or(0)
                .saturating_add(1),
            cpus,
            smt,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(smt_shift: u32, package_shift: u32) -> impl Fn(u32, u32) -> Registers {
        move |leaf, sub| {
            let (eax, ecx) = match (leaf, sub) {
                (0, _) => (0xB, 0),
                (0xB, 0) => (smt_shift, 1 << 8),
                (0xB, 1) => (package_shift, 2 << 8),
                _ => (0, 0),
            };
            Registers {
                eax,
                ecx,
                ..Registers::default()
            }
        }
    }

    #[test]
    fn packages_and_threads_are_counted_among_those_online() {
        let found = |ids: &[u32]| Topology::from_cpuid(leaves(1, 5), ids);
        let expected = |packages, cpus, smt| Topology {
            packages,
            cpus,
            smt,
        };
        assert_eq!(found(&[0, 1, 2, 3]), expected(1, 4, true));
        assert_eq!(found(&[0, 2, 4]), expected(1, 3, false), "siblings offline");
        // The largest number plus one, whatever is in between.
        assert_eq!(found(&[0, 32, 128]), expected(5, 3, false));
        assert_eq!(found(&[]), expected(1, 1, false));
    }

    #[test]
    fn without_the_leaf_threads_are_assumed() {
        let old = |leaf, _| match leaf {
            0 => Registers {
                eax: 5,
                ..Registers::default()
            },
            1 => Registers {
                edx: 1 << 28,
                ..Registers::default()
            },
            _ => Registers {
                eax: 7,
                ebx: 7,
                ecx: 7,
                edx: 7,
            },
        };
        let found = Topology::from_cpuid(old, &[0, 9]);
        assert!(found.smt && found.packages == 1);
    }
}
