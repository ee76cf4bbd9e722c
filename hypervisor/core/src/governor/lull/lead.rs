//! By how much one expert has been better than another lately, and how sure that is.

/// Costs are compared in units of so many ns of a busy core.
const UNIT: i64 = 16;
/// No single period counts for more than this: two seconds.
const MOST: i64 = 1 << 27;

/// What plans of one would have cost less than those of the other, fading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lead {
    saved: i64,
    /// The sum of the squares.
    squares: i64,
}

impl Lead {
    pub const NONE: Self = Self {
        saved: 0,
        squares: 0,
    };

    /// Adds a period in which `saved` ns were saved; against it earlier ones lose one part in 2^`memory`, and what is too
    /// small for that fades to nothing, too.
    pub fn add(&mut self, saved: i64, memory: u32) {
        let saved = (saved / UNIT).clamp(-MOST, MOST);
        self.saved += saved - (self.saved >> memory) - i64::from(self.saved > 0);
        self.squares += saved * saved - (self.squares >> memory);
    }

    pub fn saved(&self) -> i64 {
        self.saved
    }

    /// How much the sum would spread if each period's saving were as likely a loss.
    ///
    /// What was saved in n periods that are alike is `sqrt(n)` times this, whatever the unit.
    pub fn spread(&self) -> i64 {
        self.squares.max(0).unsigned_abs().isqrt() as i64
    }

    /// No expert is so far behind that it could not catch up: at most by so many spreads.
    pub fn forgive(&mut self, spreads: i64) {
        if self.turned().is_ahead(spreads) {
            self.saved = -spreads * self.spread();
        }
    }

    /// Is more saved than so many spreads? What a comparison of the numbers says, without the root.
    pub fn is_ahead(&self, spreads: i64) -> bool {
        // More than n whole spreads: the n-th part, rounded up, is more than one.
        let part = (self.saved + spreads - 1) / spreads;
        self.saved > 0 && part.saturating_mul(part) > self.squares.max(0)
    }

    /// The same, seen from the other.
    pub fn turned(&self) -> Self {
        Self {
            saved: -self.saved,
            ..*self
        }
    }
}

/// A cost in ns of a busy core, in the unit that savings are counted in.
pub(super) fn in_units(cost: u64) -> i64 {
    i64::try_from(cost).unwrap_or(i64::MAX) / UNIT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lead_is_as_many_spreads_as_the_root_of_its_periods() {
        let mut lead = Lead::NONE;
        for periods in 1..=4 {
            lead.add(160_000, 20);
            let expected = (1e8 * f64::from(periods)).sqrt() as i64;
            assert!(
                (expected - 2..=expected).contains(&lead.spread()),
                "{lead:?}"
            );
        }
        // A little of it fades each time.
        assert!((39_990..=40_000).contains(&lead.saved()), "{lead:?}");
    }

    #[test]
    fn what_is_small_fades_on_both_sides_of_zero() {
        for saved in [1_600, -1_600] {
            let mut lead = Lead::NONE;
            lead.add(saved, 7);
            for _ in 0..200 {
                lead.add(0, 7);
            }
            assert_eq!(lead.saved(), 0, "{saved}");
        }
    }

    #[test]
    fn being_ahead_is_what_the_root_says() {
        for squares in (0..200_i64).chain([1 << 40, (1 << 40) - 1, 1 << 61]) {
            let root = squares.unsigned_abs().isqrt() as i64;
            let near = |spreads: i64| (-3..=3).map(move |by| root.saturating_mul(spreads) + by);
            for saved in (-40..40).chain(near(1)).chain(near(2)).chain(near(-2)) {
                let lead = Lead { saved, squares };
                for spreads in [1, 2] {
                    let expected = saved > spreads * lead.spread();
                    assert_eq!(lead.is_ahead(spreads), expected, "{lead:?} {spreads}");
                }
            }
        }
    }

    #[test]
    fn nothing_runs_over_and_nobody_is_hopeless() {
        let mut lead = Lead::NONE;
        for _ in 0..10_000 {
            lead.add(i64::MIN / 2, 7);
        }
        assert!(lead.saved() < 0 && lead.spread() > 0, "{lead:?}");
        lead.forgive(2);
        assert_eq!(lead.saved(), -2 * lead.spread());
        assert_eq!(lead.turned().saved(), 2 * lead.spread());
    }
}
