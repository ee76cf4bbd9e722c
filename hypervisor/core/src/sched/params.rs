//! What a unit is given: its share, its bounds, where it may run.

use crate::units::{CpuSet, DomId, Micros, Nanos};
use core::fmt;
use core::num::NonZeroU16;

/// The share of a unit relative to others: one of weight 512 gets twice the time of one of weight 256.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(NonZeroU16);

impl Weight {
    /// What a unit has that is not given another: 256, as in Xen's credit schedulers.
    pub const DEFAULT: Self = match NonZeroU16::new(256) {
        Some(weight) => Self(weight),
        None => Self(NonZeroU16::MIN),
    };

    /// A weight from 1 to 65535; `None` for zero.
    pub const fn new(weight: u16) -> Option<Self> {
        match NonZeroU16::new(weight) {
            Some(weight) => Some(Self(weight)),
            None => None,
        }
    }

    /// The number, from 1.
    pub const fn get(self) -> u16 {
        self.0.get()
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The most that a domain may have, in percent of one pCPU: 250 is two and a half of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cap(NonZeroU16);

impl Cap {
    /// The largest: 64 vCPUs at 100 %.
    pub const MAX: u16 = 6400;

    /// A cap from 1 to [`Cap::MAX`] percent; `None` for any other number.
    pub const fn new(percent: u16) -> Option<Self> {
        match NonZeroU16::new(percent) {
            Some(percent) if percent.get() <= Self::MAX => Some(Self(percent)),
            _ => None,
        }
    }

    /// The percentage, from 1.
    pub const fn percent(self) -> u16 {
        self.0.get()
    }
}

impl fmt::Display for Cap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A reservation: so much time in each period (scheduler `rtds`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RtParams {
    period: Micros,
    budget: Micros,
    /// It may have more, when nobody else needs the time.
    pub extratime: bool,
}

impl RtParams {
    /// The shortest period, and the smallest budget.
    pub const MIN: Micros = Micros::new(10);
    /// The longest period: an hour.
    pub const MAX: Micros = Micros::new(3_600_000_000);
    /// What a unit has that is given none: 4 ms in 10 ms, and what is left over.
    pub const DEFAULT: Self = Self {
        period: Micros::new(10_000),
        budget: Micros::new(4_000),
        extratime: true,
    };

    /// A reservation; `None` if the period is out of bounds, or the budget below [`RtParams::MIN`] or above the period.
    ///
    /// All ways to set one come through here.
    pub fn new(period: Micros, budget: Micros, extratime: bool) -> Option<Self> {
        let good =
            (Self::MIN..=Self::MAX).contains(&period) && (Self::MIN..=period).contains(&budget);
        good.then_some(Self {
            period,
            budget,
            extratime,
        })
    }

    /// How often the budget is given.
    pub const fn period(self) -> Micros {
        self.period
    }

    /// How much time that is.
    pub const fn budget(self) -> Micros {
        self.budget
    }
}

impl Default for RtParams {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// What a unit is given when it is added. A scheduler uses what it knows, and says in its documentation what it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitParams {
    /// The guest that it belongs to.
    pub domain: DomId,
    /// Its share.
    pub weight: Weight,
    /// The most that its domain may have. The first unit that is added to a domain says so for all.
    pub cap: Option<Cap>,
    /// The pCPUs it may run on. At least one of them must be online.
    pub affinity: CpuSet,
    /// The pCPUs it prefers among these. All: no preference.
    pub soft: CpuSet,
    /// Its reservation.
    pub rt: RtParams,
    /// The exit latency that it was promised at most, for the choice of an idle pCPU.
    pub latency: Option<Nanos>,
}

impl Default for UnitParams {
    fn default() -> Self {
        Self {
            domain: DomId::new(0),
            weight: Weight::DEFAULT,
            cap: None,
            affinity: CpuSet::ALL,
            soft: CpuSet::ALL,
            rt: RtParams::DEFAULT,
            latency: None,
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn parameters_out_of_bounds_do_not_exist() {
        assert_eq!(Weight::new(0), None);
        assert_eq!(Cap::new(0), None);
        assert_eq!(Cap::new(6401), None);
        assert_eq!(Cap::new(6400).unwrap().percent(), 6400);
        let rt = |period, budget| RtParams::new(Micros::new(period), Micros::new(budget), true);
        assert!(rt(10, 10).is_some());
        assert!(rt(9, 9).is_none(), "period too short");
        assert!(rt(100, 9).is_none(), "budget too small");
        assert!(rt(100, 101).is_none(), "budget over period");
        assert!(rt(3_600_000_001, 100).is_none(), "period too long");
    }
}
