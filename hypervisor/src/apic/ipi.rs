//! Interrupting other CPUs, by the names that the rest of Lull knows them by.
//!
//! [`icr::write`] gives the guarantees. Before the local APIC is set up nothing is sent: there is nobody to send to.
use super::icr::{self, Delivery, Destination};
use super::local::{self, Mode};
use core::sync::atomic::{AtomicU32, Ordering};
use lull_core::units::{CpuId, CpuSet, MAX_CPUS};

const UNKNOWN: u32 = u32::MAX;

/// APIC id of each CPU, set before it starts, never changed after.
static APIC_IDS: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(UNKNOWN) }; MAX_CPUS];

/// Notes which APIC id a CPU has.
pub fn set_apic_id(cpu: CpuId, apic_id: u32) {
    if let Some(slot) = APIC_IDS.get(cpu.index())
        && slot.swap(apic_id, Ordering::Relaxed) == UNKNOWN
    {
        KNOWN.fetch_add(1, Ordering::Relaxed);
    }
}

/// The APIC id of a CPU, if it has one.
pub fn apic_id(cpu: CpuId) -> Option<u32> {
    APIC_IDS
        .get(cpu.index())
        .map(|slot| slot.load(Ordering::Relaxed))
        .filter(|id| *id != UNKNOWN)
}

fn to_cpu(cpu: CpuId, delivery: Delivery) {
    if let (Some(apic), Some(id)) = (local::get(), apic_id(cpu)) {
        icr::write(apic, Destination::Id(id), delivery);
    }
}

fn to(destination: Destination, delivery: Delivery) {
    if let Some(apic) = local::get() {
        icr::write(apic, destination, delivery);
    }
}

/// Sends an interrupt of `vector` to `cpu`, which may be the sender.
#[inline]
pub fn send(cpu: CpuId, vector: u8) {
    to_cpu(cpu, Delivery::Fixed(vector));
}

/// How many CPUs have an id.
static KNOWN: AtomicU32 = AtomicU32::new(0);

/// Sends an interrupt of `vector` to these CPUs, none of which is the sender, with as few commands as can be: one for all others, or
/// one for those of a cluster of 16 (x2APIC); in xAPIC mode, one for all of them if the machine has eight CPUs at most, else one for
/// each.
pub fn send_many(cpus: &CpuSet, vector: u8) {
    let Some(apic) = local::get() else { return };
    let delivery = Delivery::Fixed(vector);
    if cpus.len() + 1 == KNOWN.load(Ordering::Relaxed) as usize {
        return icr::write(apic, Destination::Others, delivery);
    }
    let ids = cpus.iter().filter_map(apic_id);
    match apic.mode() {
        Mode::XApic => match flat(cpus, KNOWN.load(Ordering::Relaxed)) {
            Some(some) => icr::write(apic, some, delivery),
            None => icr::write_all(apic, ids.map(Destination::Id), delivery),
        },
        Mode::X2Apic => icr::write_all(apic, Clusters::new(ids), delivery),
    }
}

/// These CPUs in the flat logical model: of a machine of eight CPUs at most, as with more some chipsets do not deliver by it. Never all
/// eight, which would reach even those that nobody has started: the sender is none of them.
fn flat(cpus: &CpuSet, known: u32) -> Option<Destination> {
    let members = u8::try_from(cpus.word(0)).ok()?;
    let all = known <= u8::BITS && members.count_ones() as usize == cpus.len();
    (all && cpus.len() > 1 && members != u8::MAX).then_some(Destination::Flat { members })
}

/// APIC ids, those of one cluster together as long as they come one after the other.
struct Clusters<I: Iterator<Item = u32>> {
    ids: core::iter::Peekable<I>,
}

impl<I: Iterator<Item = u32>> Clusters<I> {
    fn new(ids: I) -> Self {
        Self {
            ids: ids.peekable(),
        }
    }
}

impl<I: Iterator<Item = u32>> Iterator for Clusters<I> {
    type Item = Destination;

    fn next(&mut self) -> Option<Destination> {
        let first = self.ids.next()?;
        // A logical id has 16 bits for the cluster.
        let Ok(cluster) = u16::try_from(first >> 4) else {
            return Some(Destination::Id(first));
        };
        let mut members = 1_u16 << (first & 0xF);
        while let Some(id) = self.ids.next_if(|id| id >> 4 == first >> 4) {
            members |= 1 << (id & 0xF);
        }
        Some(if members.is_power_of_two() {
            Destination::Id(first)
        } else {
            Destination::Cluster { cluster, members }
        })
    }
}

/// Sends an interrupt of `vector` to the sender.
pub fn send_self(vector: u8) {
    to(Destination::Myself, Delivery::Fixed(vector));
}

/// Sends an NMI to `cpu`.
pub fn send_nmi(cpu: CpuId) {
    to_cpu(cpu, Delivery::Nmi);
}

/// Sends an NMI to all CPUs but the sender: running, halted, or waiting for start-up (these ignore it). The only send that
/// a dying machine may use.
pub fn broadcast_nmi() {
    to(Destination::Others, Delivery::Nmi);
}

/// Sends INIT to the CPU of this APIC id.
pub fn send_init(apic_id: u32) {
    to(Destination::Id(apic_id), Delivery::Init);
}

/// Sends a start-up IPI: the CPU starts in real mode at `page << 12`.
pub fn send_start_up(apic_id: u32, page: u8) {
    to(Destination::Id(apic_id), Delivery::StartUp { page });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_reached_by_one_command() {
        let sent: Vec<Destination> = Clusters::new([1, 3, 15, 16, 35, 36].into_iter()).collect();
        assert_eq!(
            sent,
            [
                Destination::Cluster {
                    cluster: 0,
                    members: 1 << 1 | 1 << 3 | 1 << 15
                },
                Destination::Id(16),
                Destination::Cluster {
                    cluster: 2,
                    members: 1 << 3 | 1 << 4
                },
            ]
        );
        let far: Vec<Destination> = Clusters::new([0x10_0000].into_iter()).collect();
        assert_eq!(far, [Destination::Id(0x10_0000)]);
    }

    #[test]
    fn few_are_reached_by_one_command_in_a_small_machine() {
        let cpus = |list: &[u32]| list.iter().map(|&cpu| CpuId::new(cpu)).collect::<CpuSet>();
        let some = Destination::Flat {
            members: 0b1000_0110,
        };
        assert_eq!(flat(&cpus(&[1, 2, 7]), 8), Some(some));
        assert_eq!(flat(&cpus(&[1, 2, 7]), 9), None);
        assert_eq!(flat(&cpus(&[1, 2, 70]), 8), None);
        assert_eq!(flat(&cpus(&[1]), 8), None);
        assert_eq!(flat(&CpuSet::first(8), 8), None);
    }

    #[test]
    fn ids_are_known_once_set() {
        assert_eq!(apic_id(CpuId::new(77)), None);
        set_apic_id(CpuId::new(77), 0);
        assert_eq!(apic_id(CpuId::new(77)), Some(0));
        assert_eq!(apic_id(CpuId::new(9999)), None);
    }
}
