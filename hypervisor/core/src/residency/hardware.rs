//! The CPU's own residency counters: which a model has, and the account of one CPU's.
//!
//! They count TSC ticks in a core, module or package C-state, since reset. Only the own core can read a core's counter,
//! and nobody is woken for a reading: each CPU samples its own when it comes out of a sleep, and readers see the last
//! sample, with its time. A counter that faults once is not read again.
//!
//! Sources: Intel SDM, volume 4 (model-specific registers); which model has which, as the cstate events of Linux 6.18's
//! perf (Intel) and Xen 4.22's `c` key have it. Where the two differ, a counter is read only if both have it; where only
//! one knows the model, as that one has it. AMD documents no such counters.

use crate::cstate::models::Identity;
use crate::sync::SeqCount;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::Ticks;

/// A counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HwCounter {
    /// Core C1.
    Cc1,
    /// Core C3.
    Cc3,
    /// Core C6.
    Cc6,
    /// Core C7.
    Cc7,
    /// Module C6: cores that share their L2 cache.
    Mc6,
    /// Package C2.
    Pc2,
    /// Package C3.
    Pc3,
    /// Package C4, on early Atoms.
    Pc4,
    /// Package C6.
    Pc6,
    /// Package C7.
    Pc7,
    /// Package C8.
    Pc8,
    /// Package C9.
    Pc9,
    /// Package C10.
    Pc10,
}

impl HwCounter {
    /// All, core first, shallow to deep.
    pub const ALL: [Self; 13] = [
        Self::Cc1,
        Self::Cc3,
        Self::Cc6,
        Self::Cc7,
        Self::Mc6,
        Self::Pc2,
        Self::Pc3,
        Self::Pc4,
        Self::Pc6,
        Self::Pc7,
        Self::Pc8,
        Self::Pc9,
        Self::Pc10,
    ];

    /// As people write it: `CC6`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cc1 => "CC1",
            Self::Cc3 => "CC3",
            Self::Cc6 => "CC6",
            Self::Cc7 => "CC7",
            Self::Mc6 => "MC6",
            Self::Pc2 => "PC2",
            Self::Pc3 => "PC3",
            Self::Pc4 => "PC4",
            Self::Pc6 => "PC6",
            Self::Pc7 => "PC7",
            Self::Pc8 => "PC8",
            Self::Pc9 => "PC9",
            Self::Pc10 => "PC10",
        }
    }
}

/// A counter, and the MSR that holds it on some model.
pub type HwRegister = (HwCounter, u32);

const CC1: HwRegister = (HwCounter::Cc1, 0x660);
const CC3: HwRegister = (HwCounter::Cc3, 0x3FC);
const CC6: HwRegister = (HwCounter::Cc6, 0x3FD);
const CC7: HwRegister = (HwCounter::Cc7, 0x3FE);
const MC6: HwRegister = (HwCounter::Mc6, 0x664);
const PC2: HwRegister = (HwCounter::Pc2, 0x60D);
const PC3: HwRegister = (HwCounter::Pc3, 0x3F8);
const PC6: HwRegister = (HwCounter::Pc6, 0x3F9);
const PC7: HwRegister = (HwCounter::Pc7, 0x3FA);
const PC8: HwRegister = (HwCounter::Pc8, 0x630);
const PC9: HwRegister = (HwCounter::Pc9, 0x631);
const PC10: HwRegister = (HwCounter::Pc10, 0x632);

const NEHALEM: &[HwRegister] = &[CC3, CC6, PC3, PC6, PC7];
const SANDY_BRIDGE: &[HwRegister] = &[CC3, CC6, CC7, PC2, PC3, PC6, PC7];
const HASWELL_ULT: &[HwRegister] = &[CC3, CC6, CC7, PC2, PC3, PC6, PC7, PC8, PC9, PC10];
const CANNON_LAKE: &[HwRegister] = &[CC1, CC6, CC7, PC2, PC3, PC6, PC7, PC8, PC9, PC10];
const ICE_LAKE: &[HwRegister] = &[CC6, CC7, PC2, PC3, PC6, PC7, PC8, PC9, PC10];
const ICE_LAKE_SERVER: &[HwRegister] = &[CC1, CC6, PC2, PC6];
const ALDER_LAKE: &[HwRegister] = &[CC1, CC6, CC7, PC2, PC3, PC6, PC8, PC10];
const LUNAR_LAKE: &[HwRegister] = &[CC1, CC6, CC7, PC2, PC6, PC10];
/// PC6 is where others have PC7.
const SILVERMONT: &[HwRegister] = &[CC1, CC6, MC6, (HwCounter::Pc6, 0x3FA)];
const GOLDMONT: &[HwRegister] = &[CC1, CC3, CC6, PC2, PC3, PC6, PC10];
const SIERRA_FOREST: &[HwRegister] = &[CC1, CC6, MC6, PC6];
const GRAND_RIDGE: &[HwRegister] = &[CC1, CC6, MC6];
/// Core C6 has an MSR of its own.
const XEON_PHI: &[HwRegister] = &[(HwCounter::Cc6, 0x3FF), PC2, PC3, PC6];
/// The MSRs of PC3, PC6 and PC7 hold other states.
const PENWELL: &[HwRegister] = &[
    (HwCounter::Pc2, 0x3F8),
    (HwCounter::Pc4, 0x3F9),
    (HwCounter::Pc6, 0x3FA),
];

/// The counters of a model; none where it is not known which there are.
pub fn registers(id: &Identity) -> &'static [HwRegister] {
    if id.vendor != crate::cstate::models::Vendor::Intel || id.family != 6 {
        return &[];
    }
    match id.model {
        0x1A | 0x1E | 0x1F | 0x2E | 0x25 | 0x2C | 0x2F => NEHALEM,
        0x2A | 0x2D | 0x3A | 0x3E | 0x3C | 0x3F | 0x46 => SANDY_BRIDGE,
        0x3D | 0x47 | 0x4F | 0x56 | 0x4E | 0x55 | 0x5E => SANDY_BRIDGE,
        0x45 | 0x8E | 0x9E | 0xA5 | 0xA6 => HASWELL_ULT,
        0x66 => CANNON_LAKE,
        0x7D | 0x7E | 0x8C | 0x8D | 0xA7 => ICE_LAKE,
        0x6A | 0x6C | 0x8F | 0xCF | 0xAD | 0xAE => ICE_LAKE_SERVER,
        0x97 | 0x9A | 0xBE | 0xB7 | 0xBA | 0xBF | 0xAA | 0xAC | 0xB5 | 0xC5 | 0xC6 => ALDER_LAKE,
        0xBD | 0xCC => LUNAR_LAKE,
        0x37 | 0x4A | 0x4C | 0x4D | 0x5A | 0x5D => SILVERMONT,
        0x5C | 0x5F | 0x7A | 0x86 | 0x96 | 0x9C => GOLDMONT,
        0xAF | 0xDD => SIERRA_FOREST,
        0xB6 => GRAND_RIDGE,
        0x57 | 0x85 => XEON_PHI,
        0x27 => PENWELL,
        _ => &[],
    }
}

const COUNT: usize = HwCounter::ALL.len();

/// What is known of one CPU's counters. Written by the own CPU, with interrupts off.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct HwAccount {
    seq: SeqCount,
    /// When the last sample was taken; 0 before the first.
    at: AtomicU64,
    /// Bit n: the counter with this index counts.
    counts: AtomicU64,
    /// Bit n: it should be there, and reading it faults.
    faults: AtomicU64,
    first: [AtomicU64; COUNT],
    last: [AtomicU64; COUNT],
}

impl HwAccount {
    /// No sample yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Is the last sample older than this, or is there none?
    pub fn is_due(&self, now: Ticks, age: Ticks) -> bool {
        let at = self.at.load(Ordering::Relaxed);
        at == 0 || now.get().saturating_sub(at) >= age.get()
    }

    /// Reads the `registers` of this CPU's model through `read`, which gives `None` where a read faults. The first sample is
    /// what later ones are counted from.
    pub fn sample(
        &self,
        now: Ticks,
        registers: &[HwRegister],
        mut read: impl FnMut(u32) -> Option<u64>,
    ) {
        let faults = self.faults.load(Ordering::Relaxed);
        let is_first = self.at.load(Ordering::Relaxed) == 0;
        let mut values = [None; COUNT];
        let mut faulted = faults;
        for &(counter, msr) in registers {
            let index = counter as usize;
            if faults & 1 << index != 0 {
                continue;
            }
            match read(msr) {
                Some(value) => values[index] = Some(value),
                None => faulted |= 1 << index,
            }
        }
        self.seq.write(|| {
            let mut counts = 0;
            for (index, value) in values.into_iter().enumerate() {
                let Some(value) = value else { continue };
                counts |= 1 << index;
                if is_first {
                    self.first[index].store(value, Ordering::Relaxed);
                }
                self.last[index].store(value, Ordering::Relaxed);
            }
            self.counts.store(counts, Ordering::Relaxed);
            self.faults.store(faulted, Ordering::Relaxed);
            self.at.store(now.get().max(1), Ordering::Relaxed);
        });
    }

    /// The last sample. Wakes nobody.
    pub fn snapshot(&self) -> HwSnapshot {
        self.seq.read(|| {
            let (counts, faults) = (
                self.counts.load(Ordering::Relaxed),
                self.faults.load(Ordering::Relaxed),
            );
            HwSnapshot {
                at: Ticks::new(self.at.load(Ordering::Relaxed)),
                values: core::array::from_fn(|index| {
                    if faults & 1 << index != 0 {
                        HwValue::Faults
                    } else if counts & 1 << index != 0 {
                        let first = self.first[index].load(Ordering::Relaxed);
                        let last = self.last[index].load(Ordering::Relaxed);
                        // A counter may wrap, and only the difference means anything.
                        HwValue::Ticks(Ticks::new(last.wrapping_sub(first)))
                    } else {
                        HwValue::Absent
                    }
                }),
            }
        })
    }
}

/// What one counter says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HwValue {
    /// The model has none.
    #[default]
    Absent,
    /// The model should have it, and reading it faults: an emulator, or another hypervisor, does not.
    Faults,
    /// The time since the CPU's first sample.
    Ticks(Ticks),
}

/// One CPU's counters, at the moment of the last sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HwSnapshot {
    /// When; zero if there was none.
    pub at: Ticks,
    values: [HwValue; COUNT],
}

impl HwSnapshot {
    /// What each counter says that the model has or should have.
    pub fn iter(&self) -> impl Iterator<Item = (HwCounter, HwValue)> + '_ {
        HwCounter::ALL
            .into_iter()
            .zip(self.values)
            .filter(|(_, value)| *value != HwValue::Absent)
    }

    /// What one counter says.
    pub fn get(&self, counter: HwCounter) -> HwValue {
        self.values[counter as usize]
    }

    /// The change since an earlier sample of the same CPU.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            at: self.at,
            values: core::array::from_fn(|index| {
                match (self.values[index], earlier.values[index]) {
                    (HwValue::Ticks(now), HwValue::Ticks(then)) => HwValue::Ticks(now - then),
                    (value, _) => value,
                }
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cstate::models::{MODELS, Vendor};

    fn intel(model: u8) -> Identity {
        Identity {
            vendor: Vendor::Intel,
            family: 6,
            model,
            stepping: 0,
        }
    }

    fn names(model: u8) -> Vec<&'static str> {
        registers(&intel(model))
            .iter()
            .map(|(counter, _)| counter.name())
            .collect()
    }

    #[test]
    fn each_counter_has_its_index() {
        for (index, counter) in HwCounter::ALL.into_iter().enumerate() {
            assert_eq!(counter as usize, index);
        }
    }

    #[test]
    fn models_have_what_is_known_of_them() {
        // Broadwell has no 0x630 to 0x632, Cannon Lake no 0x3FC but 0x660, Haswell only as ULT.
        for model in [0x3D, 0x47, 0x4F, 0x56, 0x3C, 0x3F, 0x46] {
            assert!(!names(model).contains(&"PC8"), "{model:#x}");
        }
        assert!(names(0x45).contains(&"PC10"));
        assert!(!names(0x66).contains(&"CC3") && names(0x66).contains(&"CC1"));
        assert_eq!(names(0x8F), ["CC1", "CC6", "PC2", "PC6"]);
        assert_eq!(names(0xB6), ["CC1", "CC6", "MC6"]);
        assert_eq!(
            registers(&intel(0x4C)).last(),
            Some(&(HwCounter::Pc6, 0x3FA))
        );
        assert_eq!(
            registers(&intel(0x57)).first(),
            Some(&(HwCounter::Cc6, 0x3FF))
        );
        assert_eq!(
            registers(&intel(0x27)),
            [
                (HwCounter::Pc2, 0x3F8),
                (HwCounter::Pc4, 0x3F9),
                (HwCounter::Pc6, 0x3FA)
            ]
        );
    }

    #[test]
    fn a_model_whose_counters_are_not_known_is_left_alone() {
        assert_eq!(registers(&intel(0x1C)), []);
        assert_eq!(
            registers(&Identity {
                family: 19,
                ..intel(1)
            }),
            []
        );
        let amd = Identity {
            vendor: Vendor::Amd,
            ..intel(0x55)
        };
        assert_eq!(registers(&amd), []);
    }

    #[test]
    fn no_list_names_a_counter_or_an_msr_twice() {
        for model in 0..=u8::MAX {
            let list = registers(&intel(model));
            for (index, (counter, msr)) in list.iter().enumerate() {
                let rest = &list[index + 1..];
                assert!(
                    rest.iter().all(|(c, m)| c != counter && m != msr),
                    "{model:#x}"
                );
            }
        }
    }

    #[test]
    fn nearly_every_model_with_a_table_is_known() {
        let missing: Vec<u8> = MODELS
            .iter()
            .filter(|model| registers(&intel(model.model)).is_empty())
            .map(|model| model.model)
            .collect();
        // The first Atoms have none.
        assert_eq!(missing, [0x1C, 0x26, 0x36]);
    }

    #[test]
    fn time_counts_from_the_first_sample_and_over_the_end() {
        let account = HwAccount::new();
        let list = [CC6, PC6];
        assert!(account.is_due(Ticks::new(5), Ticks::new(100)));
        account.sample(Ticks::new(10), &list, |msr| match msr {
            0x3FD => Some(u64::MAX - 9),
            _ => Some(1000),
        });
        assert!(!account.is_due(Ticks::new(100), Ticks::new(100)));
        assert!(account.is_due(Ticks::new(110), Ticks::new(100)));
        let before = account.snapshot();
        assert_eq!(before.get(HwCounter::Cc6), HwValue::Ticks(Ticks::ZERO));
        account.sample(Ticks::new(50), &list, |msr| match msr {
            0x3FD => Some(10),
            _ => Some(1200),
        });
        let now = account.snapshot();
        assert_eq!(now.at, Ticks::new(50));
        assert_eq!(now.get(HwCounter::Cc6), HwValue::Ticks(Ticks::new(20)));
        assert_eq!(now.get(HwCounter::Pc6), HwValue::Ticks(Ticks::new(200)));
        assert_eq!(now.get(HwCounter::Cc3), HwValue::Absent);
        assert_eq!(
            now.since(&before).get(HwCounter::Pc6),
            HwValue::Ticks(Ticks::new(200))
        );
        assert_eq!(now.iter().count(), 2);
    }

    #[test]
    fn a_counter_that_faults_is_named_and_not_read_again() {
        let account = HwAccount::new();
        let mut read = Vec::new();
        for now in [10, 20] {
            account.sample(Ticks::new(now), &[CC6, PC6], |msr| {
                read.push(msr);
                (msr == 0x3F9).then_some(7)
            });
        }
        assert_eq!(read, [0x3FD, 0x3F9, 0x3F9]);
        let row = account.snapshot();
        assert_eq!(row.get(HwCounter::Cc6), HwValue::Faults);
        assert_eq!(row.get(HwCounter::Pc6), HwValue::Ticks(Ticks::ZERO));
    }
}
