//! Which CPUs share a core, a socket, a NUMA node.
//!
//! The caller gives it: the image from CPUID and the firmware's tables, the simulator as it likes.

use crate::units::{CpuId, CpuSet};
use alloc::boxed::Box;

/// Where one CPU is. The numbers are identities: each means the same thing on all CPUs of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CpuPlace {
    /// The core, unique in the machine: threads of one core have the same.
    pub core: u32,
    /// The socket (package).
    pub socket: u32,
    /// The NUMA node.
    pub node: u32,
}

/// Where all CPUs are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    places: Box<[CpuPlace]>,
}

impl Topology {
    /// A machine whose CPU `n` is at the `n`th place.
    pub fn new(places: impl IntoIterator<Item = CpuPlace>) -> Self {
        Self {
            places: places.into_iter().collect(),
        }
    }

    /// One socket of so many cores with one thread each: what is assumed of a machine that tells nothing.
    pub fn flat(cpus: usize) -> Self {
        Self::regular(1, cpus, 1)
    }

    /// Sockets of equal cores of equal threads, each socket a node; numbered threads first.
    pub fn regular(sockets: usize, cores: usize, threads: usize) -> Self {
        let threads = threads.max(1);
        let place = |cpu: usize| CpuPlace {
            core: (cpu / threads) as u32,
            socket: (cpu / threads / cores.max(1)) as u32,
            node: (cpu / threads / cores.max(1)) as u32,
        };
        Self::new((0..sockets * cores * threads).map(place))
    }

    /// As CPUID tells it: leaf 1Fh, else 0Bh, else 8000_001Eh; `read` answers (leaf, sub-leaf) with EAX, EBX, ECX, EDX.
    ///
    /// `apic_ids` are those of all CPUs in order; a CPU without one is alone. Each socket is taken as a NUMA node. Without
    /// any of these leaves, all CPUs are cores of one socket.
    ///
    /// Source: Intel SDM, volume 2, CPUID leaves 0Bh and 1Fh; AMD APM, volume 3, Fn0000_000B and Fn8000_001E.
    pub fn from_cpuid(read: impl Fn(u32, u32) -> [u32; 4], apic_ids: &[Option<u32>]) -> Self {
        let highest = read(0, 0)[0];
        let levels = [0x1F, 0xB]
            .into_iter()
            .filter(|&leaf| leaf <= highest)
            .find_map(|leaf| shifts(&read, leaf));
        let extended = || {
            let there = read(0x8000_0000, 0)[0] >= 0x8000_001E && highest >= 1;
            let threads = there.then(|| (read(0x8000_001E, 0)[1] >> 8 & 0xFF) + 1)?;
            // Leaf 1 says how many ids a package has, rounded up to a power of two.
            let package = (read(1, 0)[1] >> 16 & 0xFF).max(1).next_power_of_two();
            Some((threads.next_power_of_two().ilog2(), package.ilog2()))
        };
        let Some((thread, package)) = levels.or_else(extended) else {
            return Self::flat(apic_ids.len());
        };
        let place = |(cpu, id): (usize, &Option<u32>)| match id {
            Some(id) => CpuPlace {
                core: id >> thread,
                socket: id >> package,
                node: id >> package,
            },
            None => Self::alone(CpuId::new(cpu as u32)),
        };
        Self::new(apic_ids.iter().enumerate().map(place))
    }

    const fn alone(cpu: CpuId) -> CpuPlace {
        let nobody_else = u32::MAX - cpu.get();
        CpuPlace {
            core: nobody_else,
            socket: nobody_else,
            node: nobody_else,
        }
    }

    /// How many CPUs there are.
    pub fn cpus(&self) -> usize {
        self.places.len()
    }

    /// Where a CPU is. One that the topology does not know is alone on everything.
    pub fn place(&self, cpu: CpuId) -> CpuPlace {
        let place = self.places.get(cpu.index()).copied();
        place.unwrap_or(Self::alone(cpu))
    }

    /// The threads of a CPU's core, itself included.
    pub fn siblings(&self, cpu: CpuId) -> CpuSet {
        let core = self.place(cpu).core;
        let mut threads: CpuSet = self
            .places
            .iter()
            .enumerate()
            .filter(|(_, place)| place.core == core)
            .map(|(index, _)| CpuId::new(index as u32))
            .collect();
        threads.insert(cpu);
        threads
    }
}

/// How far an x2APIC id is shifted right to name the core, and to name the package, by a topology leaf.
fn shifts(read: &impl Fn(u32, u32) -> [u32; 4], leaf: u32) -> Option<(u32, u32)> {
    const THREAD: u32 = 1;
    /// More levels than any CPU has.
    const MAX_LEVELS: u32 = 8;
    let mut found: Option<(u32, u32)> = None;
    for sub in 0..MAX_LEVELS {
        let [eax, _, ecx, _] = read(leaf, sub);
        let (shift, kind) = (eax & 0x1F, ecx >> 8 & 0xFF);
        if kind == 0 {
            break;
        }
        let thread = found.map_or(if kind == THREAD { shift } else { 0 }, |(thread, _)| thread);
        found = Some((thread, shift.max(thread)));
    }
    found
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn cpuid_tells_cores_and_packages() {
        // Two threads a core, eight ids a package.
        let read = |leaf, sub| match (leaf, sub) {
            (0, _) => [0xB, 0, 0, 0],
            (0xB, 0) => [1, 2, 1 << 8, 0],
            (0xB, 1) => [3, 4, 2 << 8, 0],
            _ => [0; 4],
        };
        let topology = Topology::from_cpuid(read, &[Some(0), Some(1), Some(2), Some(9), None]);
        assert_eq!(topology.siblings(CpuId::new(0)), CpuSet::inclusive(0, 1));
        assert_eq!(
            topology.siblings(CpuId::new(2)),
            CpuSet::single(CpuId::new(2))
        );
        let socket = |cpu| topology.place(CpuId::new(cpu)).socket;
        assert_eq!((socket(0), socket(2), socket(3)), (0, 0, 1));
        assert!(socket(4) > 1, "one that nobody knows is alone");
        // A die between core and package: the last level is the package.
        let dies = |leaf, sub| match (leaf, sub) {
            (0, _) => [0x1F, 0, 0, 0],
            (0x1F, 0) => [0, 1, 1 << 8, 0],
            (0x1F, 1) => [2, 4, 2 << 8, 0],
            (0x1F, 2) => [4, 8, 5 << 8, 0],
            _ => [0; 4],
        };
        let topology = Topology::from_cpuid(dies, &[Some(0), Some(5), Some(16)]);
        assert_eq!(
            topology.place(CpuId::new(1)),
            CpuPlace {
                core: 5,
                socket: 0,
                node: 0
            }
        );
        assert_eq!(topology.place(CpuId::new(2)).socket, 1);
    }

    #[test]
    fn an_older_cpu_tells_by_the_extended_leaf_or_not_at_all() {
        let amd = |leaf, _| match leaf {
            0 => [1, 0, 0, 0],
            1 => [0, 4 << 16, 0, 0],
            0x8000_0000 => [0x8000_001E, 0, 0, 0],
            0x8000_001E => [0, 1 << 8, 0, 0],
            _ => [0; 4],
        };
        let ids = [Some(0), Some(1), Some(2), Some(4)];
        let topology = Topology::from_cpuid(amd, &ids);
        assert_eq!(topology.siblings(CpuId::new(1)), CpuSet::inclusive(0, 1));
        assert_eq!(topology.place(CpuId::new(3)).socket, 1);
        assert_eq!(Topology::from_cpuid(|_, _| [0; 4], &ids), Topology::flat(4));
    }

    #[test]
    fn threads_of_a_core_are_siblings() {
        let two_by_two = Topology::regular(2, 2, 2);
        assert_eq!(two_by_two.cpus(), 8);
        assert_eq!(two_by_two.siblings(CpuId::new(5)), CpuSet::inclusive(4, 5));
        assert_eq!(two_by_two.place(CpuId::new(5)).socket, 1);
        let flat = Topology::flat(3);
        assert_eq!(flat.siblings(CpuId::new(1)), CpuSet::single(CpuId::new(1)));
        assert_eq!(
            flat.siblings(CpuId::new(9)),
            CpuSet::single(CpuId::new(9)),
            "beyond the machine"
        );
    }
}
