//! All domains of the machine, and which of them a vCPU slot belongs to.
//!
//! Filled once at boot, before the first guest starts; read without a lock from then on.

use alloc::vec::Vec;

use lull_core::dispatch::RunOutcome;
use lull_core::units::{CpuId, DomId, VcpuId};
use lull_core::wake::WakeWord;

use super::{Domain, Vcpu, VcpuHost};
use crate::virt::GateEvent;

/// The domains.
#[derive(Debug, Default)]
pub struct DomainTable {
    domains: Vec<Domain>,
    slots: Vec<(usize, usize)>,
}

impl DomainTable {
    /// No domain.
    pub const fn new() -> Self {
        Self {
            domains: Vec::new(),
            slots: Vec::new(),
        }
    }

    /// The slot of the next domain's first vCPU.
    pub fn next_slot(&self) -> VcpuId {
        // There are far fewer than 2^32.
        VcpuId::new(u32::try_from(self.slots.len()).unwrap_or(u32::MAX))
    }

    /// Adds a domain that was created for [`next_slot`](Self::next_slot).
    pub fn push(&mut self, domain: Domain) {
        debug_assert_eq!(domain.vcpus().first().map(Vcpu::id), Some(self.next_slot()));
        let index = self.domains.len();
        self.slots
            .extend((0..domain.vcpus().len()).map(|vcpu| (index, vcpu)));
        self.domains.push(domain);
    }

    /// How many vCPU slots there are.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// All domains, in order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &Domain> {
        self.domains.iter()
    }

    /// A domain.
    pub fn domain(&self, id: DomId) -> Option<&Domain> {
        self.domains.iter().find(|d| d.id() == id)
    }

    /// A vCPU and its domain.
    pub fn vcpu(&self, v: VcpuId) -> Option<(&Domain, &Vcpu)> {
        let (domain, vcpu) = *self.slots.get(v.index())?;
        let domain = self.domains.get(domain)?;
        Some((domain, domain.vcpus().get(vcpu)?))
    }

    /// Whether every domain has ended and been left (also if there is none).
    pub fn all_ended(&self) -> bool {
        self.domains
            .iter()
            .all(|d| d.end_report().is_some_and(|report| report.all_left))
    }

    /// [`Domain::enter`] by slot. An unknown slot is gone.
    pub fn enter(
        &self,
        v: VcpuId,
        host: &impl VcpuHost,
        cpu: CpuId,
        word: &WakeWord,
        on_gate: &mut dyn FnMut(GateEvent),
    ) -> RunOutcome {
        self.vcpu(v).map_or(RunOutcome::Gone, |(domain, vcpu)| {
            domain.enter(vcpu, host, cpu, word, on_gate)
        })
    }

    /// [`Domain::load`] by slot.
    pub fn load(&self, v: VcpuId, cpu: CpuId) {
        if let Some((domain, vcpu)) = self.vcpu(v) {
            domain.load(vcpu, cpu);
        }
    }

    /// [`Domain::save`] by slot.
    pub fn save(&self, v: VcpuId) {
        if let Some((domain, vcpu)) = self.vcpu(v) {
            domain.save(vcpu);
        }
    }

    /// [`Domain::timer_expired`] by slot.
    pub fn timer_expired(&self, v: VcpuId, host: &impl VcpuHost) {
        if let Some((domain, vcpu)) = self.vcpu(v) {
            domain.timer_expired(vcpu, host);
        }
    }
}
