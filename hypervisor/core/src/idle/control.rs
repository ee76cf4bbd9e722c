//! What others have asked of one CPU's sleeps: states that are off, limits on exit latency, the governor.
//!
//! Written by any CPU (the console, a vCPU that moves), read by the own CPU before each sleep ([`CpuIdle::follow`]).
//! The values are independent of each other, so each is an atomic of its own. Whoever changes one posts CALL to the CPU
//! if that may be asleep by the old value.
//!
//! Lock: the list of the vCPUs' limits is a leaf.
//!
//! [`CpuIdle::follow`]: super::CpuIdle::follow

use crate::governor::{AnyGovernor, StateSet};
use crate::sync::Lock;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::units::{Nanos, VcpuId};
use alloc::vec::Vec;

const NO_LIMIT: u64 = u64::MAX;
const NO_GOVERNOR: u32 = u32::MAX;

/// What was asked of one CPU.
#[derive(Debug)]
pub struct IdleControl {
    /// Switched off one by one: by the firmware, by options, by the console.
    off: AtomicU32,
    /// Over the limit on depth.
    too_deep: AtomicU32,
    /// The CPU's own limit on exit latency, in ns.
    own_limit: AtomicU64,
    /// The smallest of `claims`.
    claimed: AtomicU64,
    /// The limits of the vCPUs that last ran here. Room for all of them, so that a move allocates nothing.
    claims: Lock<Vec<(VcpuId, Nanos)>>,
    /// Index in [`AnyGovernor::NAMES`].
    governor: AtomicU32,
    /// How often something was changed. Counted after the change is made.
    changes: AtomicU32,
}

impl IdleControl {
    /// Nothing is asked. There are at most so many vCPUs.
    pub fn new(vcpus: usize) -> Self {
        Self {
            off: AtomicU32::new(0),
            too_deep: AtomicU32::new(0),
            own_limit: AtomicU64::new(NO_LIMIT),
            claimed: AtomicU64::new(NO_LIMIT),
            claims: Lock::new(Vec::with_capacity(vcpus)),
            governor: AtomicU32::new(NO_GOVERNOR),
            changes: AtomicU32::new(0),
        }
    }

    /// How often something was changed so far. As long as this is the same, so is all else.
    #[inline]
    pub fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// The states that were switched off.
    pub fn off(&self) -> StateSet {
        StateSet::from_bits(self.off.load(Ordering::Relaxed) as u16)
    }

    /// Switches states off, and all others on.
    pub fn set_off(&self, states: StateSet) {
        self.off.store(states.bits().into(), Ordering::Relaxed);
        self.changed();
    }

    /// The states that are over the limit on depth.
    pub fn too_deep(&self) -> StateSet {
        StateSet::from_bits(self.too_deep.load(Ordering::Relaxed) as u16)
    }

    /// Sets which states are over the limit on depth.
    pub fn set_too_deep(&self, states: StateSet) {
        self.too_deep.store(states.bits().into(), Ordering::Relaxed);
        self.changed();
    }

    /// The states that must not be chosen, for whatever reason.
    pub fn disabled(&self) -> StateSet {
        StateSet::from_bits(self.off().bits() | self.too_deep().bits())
    }

    /// The CPU's own limit on exit latency.
    pub fn own_limit(&self) -> Option<Nanos> {
        limit(self.own_limit.load(Ordering::Relaxed))
    }

    /// Sets the CPU's own limit on exit latency.
    pub fn set_own_limit(&self, limit: Option<Nanos>) {
        let raw = limit.map_or(NO_LIMIT, |limit| limit.get().min(NO_LIMIT - 1));
        self.own_limit.store(raw, Ordering::Relaxed);
        self.changed();
    }

    /// The smallest limit of the vCPUs that last ran here.
    pub fn claimed_limit(&self) -> Option<Nanos> {
        limit(self.claimed.load(Ordering::Relaxed))
    }

    /// The limit that holds: the smallest of all.
    pub fn latency_limit(&self) -> Option<Nanos> {
        let own = self.own_limit.load(Ordering::Relaxed);
        limit(own.min(self.claimed.load(Ordering::Relaxed)))
    }

    /// Sets, changes or (by `None`) drops the limit of a vCPU that last ran here. `true` if another limit holds now.
    pub(crate) fn claim(&self, v: VcpuId, wanted: Option<Nanos>) -> bool {
        let before = self.latency_limit();
        let mut claims = self.claims.lock();
        let at = claims.iter().position(|(other, _)| *other == v);
        match (at, wanted) {
            (Some(at), Some(wanted)) => claims[at].1 = wanted,
            (Some(at), None) => {
                claims.swap_remove(at);
            }
            (None, Some(wanted)) => claims.push((v, wanted)),
            (None, None) => {}
        }
        let smallest = claims.iter().map(|(_, limit)| limit.get()).min();
        let raw = smallest.map_or(NO_LIMIT, |limit| limit.min(NO_LIMIT - 1));
        self.claimed.store(raw, Ordering::Relaxed);
        drop(claims);
        self.changed();
        self.latency_limit() != before
    }

    /// The governor that is to choose, by its name; `None` if nobody has said.
    pub fn governor(&self) -> Option<&'static str> {
        let index = self.governor.load(Ordering::Relaxed);
        AnyGovernor::NAMES.get(index as usize).copied()
    }

    /// Sets the governor. `false` if there is none of that name.
    pub fn set_governor(&self, name: &str) -> bool {
        let index = AnyGovernor::NAMES.iter().position(|known| *known == name);
        if let Some(index) = index {
            self.governor.store(index as u32, Ordering::Relaxed);
            self.changed();
        }
        index.is_some()
    }
}

const fn limit(raw: u64) -> Option<Nanos> {
    if raw == NO_LIMIT {
        None
    } else {
        Some(Nanos::new(raw))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_smallest_limit_holds() {
        let control = IdleControl::new(4);
        assert_eq!(control.latency_limit(), None);
        assert!(control.claim(VcpuId::new(1), Some(Nanos::new(500))));
        assert!(!control.claim(VcpuId::new(2), Some(Nanos::new(900))));
        control.set_own_limit(Some(Nanos::new(300)));
        assert_eq!(control.latency_limit(), Some(Nanos::new(300)));
        assert!(!control.claim(VcpuId::new(1), None), "the CPU's own holds");
        control.set_own_limit(None);
        assert_eq!(control.latency_limit(), Some(Nanos::new(900)));
        assert_eq!(control.claimed_limit(), Some(Nanos::new(900)));
        assert!(control.claim(VcpuId::new(2), None));
        assert_eq!(control.latency_limit(), None);
    }

    #[test]
    fn a_limit_of_all_ones_is_still_one() {
        let control = IdleControl::new(1);
        control.set_own_limit(Some(Nanos::new(u64::MAX)));
        assert_eq!(control.own_limit(), Some(Nanos::new(u64::MAX - 1)));
        assert!(control.claim(VcpuId::new(0), Some(Nanos::new(0))));
        assert_eq!(control.latency_limit(), Some(Nanos::ZERO));
    }

    #[test]
    fn states_are_off_for_either_reason() {
        let control = IdleControl::new(0);
        control.set_off(StateSet::from_bits(0b0100));
        control.set_too_deep(StateSet::from_bits(0b1000));
        assert_eq!(control.disabled(), StateSet::from_bits(0b1100));
        control.set_too_deep(StateSet::NONE);
        assert_eq!(control.disabled(), StateSet::from_bits(0b0100));
    }

    #[test]
    fn governors_are_known_by_name() {
        let control = IdleControl::new(0);
        assert_eq!(control.governor(), None);
        assert!(control.set_governor("teo"));
        assert!(!control.set_governor("nobody"));
        assert_eq!(control.governor(), Some("teo"));
    }

    proptest! {
        /// Whatever vCPUs come, change their minds and go: the limit is the smallest of those that are here.
        #[test]
        fn claims_are_a_map(steps in proptest::collection::vec((0..8_u32, proptest::option::of(0..1000_u64)), 0..60)) {
            let control = IdleControl::new(8);
            let mut map = BTreeMap::new();
            for (v, wanted) in steps {
                let before = map.values().min().copied();
                match wanted {
                    Some(wanted) => map.insert(v, wanted),
                    None => map.remove(&v),
                };
                let after = map.values().min().copied();
                let changed = control.claim(VcpuId::new(v), wanted.map(Nanos::new));
                prop_assert_eq!(changed, before != after);
                prop_assert_eq!(control.latency_limit(), after.map(Nanos::new));
            }
        }
    }
}
