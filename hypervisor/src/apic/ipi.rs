//! Interrupting other CPUs, by the names that the rest of Lull knows them by.
//!
//! [`icr::write`] gives the guarantees. Before the local APIC is set up nothing is sent: there is nobody to send to.
use super::icr::{self, Delivery, Destination};
use super::local;
use core::sync::atomic::{AtomicU32, Ordering};
use lull_core::units::{CpuId, MAX_CPUS};

const UNKNOWN: u32 = u32::MAX;

/// APIC id of each CPU, set before it starts, never changed after.
static APIC_IDS: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(UNKNOWN) }; MAX_CPUS];

/// Notes which APIC id a CPU has.
pub fn set_apic_id(cpu: CpuId, apic_id: u32) {
    if let Some(slot) = APIC_IDS.get(cpu.index()) {
        slot.store(apic_id, Ordering::Relaxed);
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
    fn ids_are_known_once_set() {
        assert_eq!(apic_id(CpuId::new(77)), None);
        set_apic_id(CpuId::new(77), 0);
        assert_eq!(apic_id(CpuId::new(77)), Some(0));
        assert_eq!(apic_id(CpuId::new(9999)), None);
    }
}
