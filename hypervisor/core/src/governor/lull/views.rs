//! Several views of the past, and which of them to believe.

use super::arrivals::{Arrivals, Ended, bin_of};
use super::costs::Costs;
use super::plan::Plan;

const VIEWS: usize = 4;
/// The bins of a time that a view distinguishes, four octave halves in one.
const CLASSES: usize = 9;
/// By view: how slowly the past fades (a sleep loses one part in two to the power of this with each later one).
const MEMORY: [u32; VIEWS] = [4, 8, 5, 7];
/// How slowly losses fade.
const LOSS_MEMORY: u32 = 8;
/// Another view must have lost less by one part in two to the power of this, or chance would change views all the time.
const HYSTERESIS: u32 = 4;
/// With less than this in it, about an eighth of what it can hold, a view that distinguishes cases knows nothing yet.
const ENOUGH: u32 = 4096;

const FAST: usize = 0;
const SLOW: usize = 1;
const BY_LAST: usize = 2;

/// What is known of the past.
#[derive(Clone, Debug)]
pub(super) struct Views {
    /// The last few sleeps.
    fast: Arrivals,
    /// The last few hundred.
    slow: Arrivals,
    /// By the length of the idle period before.
    by_last: [Arrivals; CLASSES],
    /// By the length of the busy period before.
    by_busy: [Arrivals; CLASSES],
    last: usize,
    busy: usize,
    /// What each view would do in the present idle period.
    plans: [Plan; VIEWS],
    /// What each plan has cost more than the best of them, fading.
    losses: [u64; VIEWS],
    costs: Option<Costs>,
    followed: usize,
}

impl Views {
    pub const fn new() -> Self {
        Self {
            fast: Arrivals::unknown(MEMORY[FAST]),
            slow: Arrivals::unknown(MEMORY[SLOW]),
            by_last: [Arrivals::NONE; CLASSES],
            by_busy: [Arrivals::NONE; CLASSES],
            last: 0,
            busy: 0,
            plans: [Plan::NONE; VIEWS],
            losses: [0; VIEWS],
            costs: None,
            followed: SLOW,
        }
    }

    /// What a view goes by now.
    fn view(&self, index: usize) -> &Arrivals {
        let cases = match index {
            FAST => return &self.fast,
            SLOW => return &self.slow,
            BY_LAST => &self.by_last[self.last],
            _ => &self.by_busy[self.busy],
        };
        if cases.weight() < ENOUGH {
            &self.slow
        } else {
            cases
        }
    }

    /// The plan for an idle period that begins.
    pub fn plan(&mut self, costs: &Costs, to_timer: u64, busy: u64) -> Plan {
        self.busy = class_of(busy);
        self.costs = Some(*costs);
        for index in 0..VIEWS {
            self.plans[index] = Plan::cheapest(costs, &self.view(index).survival(0), to_timer);
        }
        for index in 0..VIEWS {
            let loss = self.losses[index];
            if loss + (loss >> HYSTERESIS) < self.losses[self.followed] {
                self.followed = index;
            }
        }
        self.plans[self.followed]
    }

    /// The plan for the rest of an idle period that has lasted `slept` so far.
    pub fn again(&self, costs: &Costs, slept: u64, to_timer: u64) -> Plan {
        Plan::cheapest(costs, &self.view(self.followed).survival(slept), to_timer)
    }

    /// An idle period has ended.
    pub fn learn(&mut self, slept: u64, ended: Ended) {
        if let Some(costs) = self.costs {
            let paid = self.plans.map(|plan| plan.cost(&costs, slept));
            let least = paid.into_iter().min().unwrap_or(0);
            for (loss, paid) in self.losses.iter_mut().zip(paid) {
                *loss -= *loss >> LOSS_MEMORY;
                *loss = loss.saturating_add(paid - least);
            }
        }
        let bin = bin_of(slept);
        let views = [
            &mut self.fast,
            &mut self.slow,
            &mut self.by_last[self.last],
            &mut self.by_busy[self.busy],
        ];
        for (view, memory) in views.into_iter().zip(MEMORY) {
            view.add(bin, ended, memory);
        }
        self.last = class_of(slept);
    }
}

fn class_of(time: u64) -> usize {
    (bin_of(time) / 4).min(CLASSES - 1)
}
