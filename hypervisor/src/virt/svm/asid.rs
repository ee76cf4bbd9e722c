//! Address space identifiers: what keeps the translations of guests apart in one CPU's TLB.
//!
//! Each pCPU hands out its own ASIDs, in generations. A vCPU keeps its ASID as long as it stays on the pCPU and the generation
//! lasts; else it gets the next one. When they run out, a new generation begins, and what the TLB holds from the old one is
//! flushed: all of it at the next entry, or, where the CPU can flush by ASID, each ASID at its first use.
//!
//! Invariant: an ASID is never entered twice in the life of a TLB entry for two different vCPUs. A flush that was decided stays
//! due until an entry has really happened ([`AsidPool::entered`]): the gate may close in between.

use alloc::collections::BTreeMap;
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU64, Ordering};

use lull_core::units::CpuId;

use super::vmcb::TlbControl;

/// A vCPU's hold on an ASID.
#[derive(Clone, Copy, Debug, Default)]
pub struct AsidTag {
    held: Option<(CpuId, u64)>,
    asid: u32,
    /// Flush this ASID at the next entry.
    flush: bool,
    /// Whose translations the TLB holds under it: told apart from all others, by debug builds.
    owner: Owner,
}

/// A vCPU, between two moments at which its translations have to go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Owner {
    vcpu: Option<NonZeroU64>,
    generation: u64,
}

/// Numbers vCPUs.
static VCPUS: AtomicU64 = AtomicU64::new(1);

impl AsidTag {
    /// Forgets the ASID, and with it all translations of the vCPU.
    pub fn drop_translations(&mut self) {
        self.held = None;
        self.owner.generation += 1;
    }
}

/// The ASIDs of one pCPU.
#[derive(Debug)]
pub struct AsidPool {
    cpu: CpuId,
    /// Identifiers run from 1 to this one.
    last: u32,
    flush_by_asid: bool,
    generation: u64,
    next: u32,
    flush_all: bool,
    /// Whose translations the TLB may hold, by ASID; `None` before it was ever flushed. Kept in debug builds.
    holds: Option<BTreeMap<u32, Owner>>,
}

impl AsidPool {
    /// `count` as CPUID tells it: identifiers, with 0, which is the host's.
    pub fn new(cpu: CpuId, count: u32, flush_by_asid: bool) -> Self {
        Self {
            cpu,
            last: count.saturating_sub(1).max(1),
            flush_by_asid,
            generation: 1,
            next: 1,
            flush_all: true,
            holds: None,
        }
    }

    /// The ASID for the next entry of the vCPU that owns `tag`, and what to flush at it.
    pub fn assign(&mut self, tag: &mut AsidTag) -> (u32, TlbControl) {
        if tag.owner.vcpu.is_none() {
            tag.owner.vcpu = NonZeroU64::new(VCPUS.fetch_add(1, Ordering::Relaxed));
        }
        if tag.held.is_none_or(|(cpu, _)| cpu != self.cpu) {
            // What the TLB holds from an earlier stay is out of date.
            tag.owner.generation += 1;
        }
        if tag.held != Some((self.cpu, self.generation)) {
            if self.next > self.last {
                self.generation += 1;
                self.next = 1;
                self.flush_all |= !self.flush_by_asid;
            }
            tag.flush = self.flush_by_asid && self.generation > 1;
            tag.asid = self.next;
            tag.held = Some((self.cpu, self.generation));
            self.next += 1;
        }
        let flush = match (self.flush_all, tag.flush) {
            (true, _) => TlbControl::FlushAll,
            (false, true) => TlbControl::FlushAsid,
            (false, false) => TlbControl::Keep,
        };
        (tag.asid, flush)
    }

    /// The last look before an entry with these, in debug builds.
    ///
    /// # Panics
    /// If the TLB may hold translations under the ASID that are another vCPU's, or out of date, and that are not flushed.
    pub fn check(&self, tag: &AsidTag, asid: u32, flush: u8) {
        if flush == TlbControl::FlushAll as u8 {
            return;
        }
        let Some(holds) = &self.holds else {
            panic!("the first entry on {} does not flush the TLB", self.cpu);
        };
        let held = holds.get(&asid);
        assert!(
            flush == TlbControl::FlushAsid as u8 || held.is_none_or(|owner| *owner == tag.owner),
            "entry of {:?} with ASID {asid}, under which the TLB of {} may hold translations of {held:?}: a flush is missing",
            tag.owner,
            self.cpu
        );
    }

    /// The entry for which `assign` was called, and told to `flush`, has taken place.
    pub fn entered(&mut self, tag: &mut AsidTag, flush: TlbControl) {
        if cfg!(debug_assertions) {
            if flush == TlbControl::FlushAll {
                self.holds = Some(BTreeMap::new());
            }
            if let Some(holds) = &mut self.holds {
                holds.insert(tag.asid, tag.owner);
            }
        }
        self.flush_all = false;
        tag.flush = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A TLB that remembers which vCPU's translations sit under which ASID.
    #[derive(Default)]
    struct Tlb([Option<usize>; 32]);

    impl Tlb {
        fn enter(&mut self, vcpu: usize, asid: u32, flush: TlbControl) {
            match flush {
                TlbControl::FlushAll => self.0.fill(None),
                TlbControl::FlushAsid => self.0[asid as usize] = None,
                TlbControl::Keep => {}
            }
            let slot = &mut self.0[asid as usize];
            assert!(
                slot.is_none_or(|owner| owner == vcpu),
                "vCPU {vcpu} sees translations of {slot:?} under {asid}"
            );
            *slot = Some(vcpu);
        }
    }

    /// Many vCPUs wander over two CPUs; gates close at times. Returns the flushes of all ASIDs.
    fn wander(flush_by_asid: bool) -> usize {
        let mut pools = [0, 1].map(|cpu| AsidPool::new(CpuId::new(cpu), 4, flush_by_asid));
        let mut tlbs = [Tlb::default(), Tlb::default()];
        let mut tags = [AsidTag::default(); 7];
        let (mut seed, mut flushes) = (1u64, 0);
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (cpu, vcpu) = ((seed >> 33) as usize % 2, (seed >> 40) as usize % 7);
            let (asid, flush) = pools[cpu].assign(&mut tags[vcpu]);
            assert!((1..=3).contains(&asid));
            if seed >> 60 == 0 {
                continue; // the gate closed
            }
            flushes += usize::from(flush == TlbControl::FlushAll);
            pools[cpu].check(&tags[vcpu], asid, flush as u8);
            tlbs[cpu].enter(vcpu, asid, flush);
            pools[cpu].entered(&mut tags[vcpu], flush);
        }
        flushes
    }

    #[test]
    fn no_vcpu_ever_sees_translations_of_another() {
        assert!(
            wander(false) > 1000,
            "three ASIDs for seven vCPUs run out often"
        );
        assert_eq!(wander(true), 2, "only the first entry of each CPU");
    }

    #[test]
    fn an_asid_is_kept_while_the_vcpu_stays() {
        let mut pool = AsidPool::new(CpuId::new(0), 16, false);
        let (mut a, mut b) = (AsidTag::default(), AsidTag::default());
        assert_eq!(pool.assign(&mut a), (1, TlbControl::FlushAll));
        assert_eq!(
            pool.assign(&mut a),
            (1, TlbControl::FlushAll),
            "not entered yet: the flush is still due"
        );
        pool.entered(&mut a, TlbControl::FlushAll);
        assert_eq!(pool.assign(&mut b), (2, TlbControl::Keep));
        pool.entered(&mut b, TlbControl::Keep);
        assert_eq!(pool.assign(&mut a), (1, TlbControl::Keep));
        a.drop_translations();
        assert_eq!(pool.assign(&mut a), (3, TlbControl::Keep));
    }

    #[test]
    fn a_single_asid_is_enough_to_be_safe() {
        let mut pool = AsidPool::new(CpuId::new(0), 2, false);
        let (mut a, mut b) = (AsidTag::default(), AsidTag::default());
        for tag in [&mut a, &mut b] {
            assert_eq!(pool.assign(tag), (1, TlbControl::FlushAll));
            pool.entered(tag, TlbControl::FlushAll);
        }
        assert_eq!(pool.assign(&mut a), (1, TlbControl::FlushAll));
    }

    /// Two vCPUs have shared the only ASID, or one has gone and come back; then an entry without the flush that is due.
    fn entry_without_its_flush(prepare: impl FnOnce(&mut AsidPool, &mut AsidTag)) {
        let mut pool = AsidPool::new(CpuId::new(0), 2, false);
        let mut tag = AsidTag::default();
        let (_, flush) = pool.assign(&mut tag);
        pool.entered(&mut tag, flush);
        prepare(&mut pool, &mut tag);
        let (asid, flush) = pool.assign(&mut tag);
        assert_eq!(flush, TlbControl::FlushAll);
        pool.check(&tag, asid, TlbControl::Keep as u8);
    }

    #[test]
    #[should_panic(expected = "a flush is missing")]
    fn an_asid_of_another_vcpu_is_caught() {
        entry_without_its_flush(|pool, _| {
            let mut other = AsidTag::default();
            let (_, flush) = pool.assign(&mut other);
            pool.entered(&mut other, flush);
        });
    }

    #[test]
    #[should_panic(expected = "a flush is missing")]
    fn an_asid_after_a_reset_is_caught() {
        entry_without_its_flush(|_, tag| tag.drop_translations());
    }

    #[test]
    #[should_panic(expected = "a flush is missing")]
    fn an_asid_of_an_earlier_stay_is_caught() {
        entry_without_its_flush(|_, tag| {
            AsidPool::new(CpuId::new(1), 2, false).assign(tag);
        });
    }

    #[test]
    #[should_panic(expected = "does not flush the TLB")]
    fn a_first_entry_without_a_flush_is_caught() {
        let pool = AsidPool::new(CpuId::new(0), 2, false);
        pool.check(&AsidTag::default(), 1, TlbControl::Keep as u8);
    }
}
