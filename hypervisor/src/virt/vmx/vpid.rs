//! Virtual-processor identifiers: what keeps the translations of vCPUs apart in the TLBs (SDM vol. 3, 31.1).
//!
//! A vCPU has its own for life, on all CPUs. What a CPU still holds under it, from an earlier stay of the vCPU or from an earlier
//! owner of the number, is dropped when the vCPU comes to the CPU from another one.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

/// Hands out identifiers.
#[derive(Debug, Default)]
pub struct VpidPool {
    free: Vec<u16>,
    /// The largest one ever given out.
    most: u16,
}

/// The identifier of vCPUs that have none of their own: without the control, and all translations go at each entry and exit.
pub const NONE: u16 = 0;

impl VpidPool {
    /// One that no other vCPU has; [`NONE`] when all are taken.
    pub fn take(&mut self) -> u16 {
        self.free.pop().unwrap_or_else(|| {
            self.most
                .checked_add(1)
                .inspect(|&next| self.most = next)
                .unwrap_or(NONE)
        })
    }

    /// The vCPU is gone.
    pub fn give_back(&mut self, vpid: u16) {
        if vpid != NONE {
            self.free.push(vpid);
        }
    }
}

/// Whose translations a CPU may hold under each VPID, for debug builds: no emulator would notice one that is out of date.
#[derive(Debug, Default)]
pub struct Held(BTreeMap<u16, Owner>);

/// A vCPU, between two moments at which its translations have to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    vcpu: u64,
    generation: u64,
}

impl Owner {
    /// A vCPU that is made.
    pub fn new() -> Self {
        static VCPUS: AtomicU64 = AtomicU64::new(0);
        Self {
            vcpu: VCPUS.fetch_add(1, Ordering::Relaxed),
            generation: 0,
        }
    }

    /// What CPUs hold of it so far is out of date.
    pub fn outdate(&mut self) {
        self.generation += 1;
    }
}

impl Held {
    /// All translations under a VPID were dropped.
    pub fn dropped(&mut self, vpid: u16) {
        self.0.remove(&vpid);
    }

    /// The last look before an entry.
    ///
    /// # Panics
    /// If the CPU may hold translations that are another vCPU's, or out of date.
    pub fn enter(&mut self, vpid: u16, owner: Owner) {
        let held = *self.0.entry(vpid).or_insert(owner);
        assert!(
            vpid == NONE || held == owner,
            "entry of {owner:?} with VPID {vpid}, under which this CPU may hold translations of {held:?}: INVVPID is missing"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_vcpus_have_the_same() {
        let mut pool = VpidPool::default();
        let taken: BTreeSet<u16> = (0..u16::MAX).map(|_| pool.take()).collect();
        assert_eq!(taken.len(), usize::from(u16::MAX));
        assert!(!taken.contains(&NONE));
        assert_eq!(pool.take(), NONE, "all are taken");
        pool.give_back(77);
        pool.give_back(NONE);
        assert_eq!((pool.take(), pool.take()), (77, NONE));
    }

    #[test]
    fn what_was_dropped_may_be_anybody_s() {
        let (mut held, a, b) = (Held::default(), Owner::new(), Owner::new());
        held.enter(1, a);
        held.enter(1, a);
        held.enter(2, b);
        held.dropped(1);
        held.enter(1, b);
        held.enter(NONE, a);
        held.enter(NONE, b);
    }

    #[test]
    #[should_panic(expected = "INVVPID is missing")]
    fn a_vpid_of_a_vcpu_that_is_gone_is_caught() {
        let mut held = Held::default();
        held.enter(1, Owner::new());
        held.enter(1, Owner::new());
    }
}
