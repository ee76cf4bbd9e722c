//! Every governor there is, chosen by name at run time without dynamic dispatch.

use super::{
    DeepestFit, Governor, HaltPoll, IdleContext, IdleOutcome, Ladder, LatencyPrice, Lull, Menu,
    MenuXen, Selection, Teo, Tick,
};
use crate::cstate::CStateTable;

/// One of the governors.
///
/// One per CPU, 9.7 KiB, allocated once at boot.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "the largest variant is the default one, and there is one value per CPU"
)]
pub enum AnyGovernor {
    /// `lull`, the default.
    Lull(Lull),
    /// `menu` and `menu+tick`.
    Menu(Menu),
    /// `teo` and `teo+tick`.
    Teo(Teo),
    /// `menu-xen`.
    MenuXen(MenuXen),
    /// `ladder`.
    Ladder(Ladder),
    /// `haltpoll`.
    HaltPoll(HaltPoll),
    /// `deepest-fit`.
    DeepestFit(DeepestFit),
}

impl AnyGovernor {
    /// The names that [`AnyGovernor::by_name`] knows, the default first.
    pub const NAMES: [&'static str; 9] = [
        "lull",
        "menu",
        "menu+tick",
        "menu-xen",
        "teo",
        "teo+tick",
        "ladder",
        "haltpoll",
        "deepest-fit",
    ];

    /// A governor that has seen nothing yet; `None` for a name that is none of [`AnyGovernor::NAMES`].
    pub fn by_name(name: &str) -> Option<Self> {
        Some(match name {
            "lull" => Self::Lull(Lull::default()),
            "menu" => Self::Menu(Menu::default()),
            "menu+tick" => Self::Menu(Menu::new(Tick::OnDemand)),
            "menu-xen" => Self::MenuXen(MenuXen::default()),
            "teo" => Self::Teo(Teo::default()),
            "teo+tick" => Self::Teo(Teo::new(Tick::OnDemand)),
            "ladder" => Self::Ladder(Ladder::default()),
            "haltpoll" => Self::HaltPoll(HaltPoll::default()),
            "deepest-fit" => Self::DeepestFit(DeepestFit),
            _ => return None,
        })
    }

    /// The same governor, trading energy for latency at this price, if it is one that does.
    pub fn at_price(self, price: LatencyPrice) -> Self {
        match self {
            Self::Lull(_) => Self::Lull(Lull::new(price)),
            other => other,
        }
    }
}

impl Default for AnyGovernor {
    fn default() -> Self {
        Self::Lull(Lull::default())
    }
}

macro_rules! each {
    ($any:expr, $governor:ident => $call:expr) => {
        match $any {
            AnyGovernor::Lull($governor) => $call,
            AnyGovernor::Menu($governor) => $call,
            AnyGovernor::Teo($governor) => $call,
            AnyGovernor::MenuXen($governor) => $call,
            AnyGovernor::Ladder($governor) => $call,
            AnyGovernor::HaltPoll($governor) => $call,
            AnyGovernor::DeepestFit($governor) => $call,
        }
    };
}

impl Governor for AnyGovernor {
    fn name(&self) -> &'static str {
        each!(self, governor => governor.name())
    }

    fn select(&mut self, context: &IdleContext<'_>) -> Selection {
        each!(self, governor => governor.select(context))
    }

    fn again(&mut self, context: &IdleContext<'_>) {
        each!(self, governor => governor.again(context));
    }

    fn reflect(&mut self, table: &CStateTable, outcome: &IdleOutcome) {
        each!(self, governor => governor.reflect(table, outcome));
    }

    fn change_to(&mut self, name: &str) -> bool {
        if self.name() == name {
            return true;
        }
        let Some(other) = Self::by_name(name) else {
            return false;
        };
        *self = other;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cstate::{CState, CStateFlags, EntryMethod, StateId};
    use crate::governor::{StateSet, WakeReason};
    use crate::units::{Micros, Nanos};
    use proptest::prelude::*;

    fn table(figures: &[(u64, u64)], with_poll: bool) -> CStateTable {
        let poll = with_poll.then_some(CState::POLL);
        let states = figures.iter().map(|&(latency, residency)| CState {
            name: "C",
            method: EntryMethod::Halt,
            flags: CStateFlags::empty(),
            exit_latency: Micros::new(latency),
            target_residency: Micros::new(residency),
        });
        CStateTable::new(&poll.into_iter().chain(states).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn one_is_as_large_as_its_description_says() {
        assert!(
            (9_728..=10_000).contains(&size_of::<AnyGovernor>()),
            "{}",
            size_of::<AnyGovernor>()
        );
    }

    #[test]
    fn each_name_gives_the_governor_of_that_name() {
        for name in AnyGovernor::NAMES {
            assert_eq!(AnyGovernor::by_name(name).unwrap().name(), name);
        }
        assert!(AnyGovernor::by_name("Lull").is_none());
        assert_eq!(AnyGovernor::default().name(), AnyGovernor::NAMES[0]);
    }

    #[test]
    fn a_price_changes_what_lull_chooses_and_nobody_else() {
        let table = table(&[(2, 2), (10, 20), (133, 600)], true);
        let context = IdleContext {
            table: &table,
            sleep_length: Some(Nanos::new(800_000)),
            latency_limit: None,
            disabled: StateSet::NONE,
            now: Nanos::ZERO,
        };
        let choice = |name, price| {
            let governor = AnyGovernor::by_name(name).unwrap();
            let mut governor = governor.at_price(LatencyPrice(price));
            // Nothing but timers, so that its own plans are known to be right.
            for _ in 0..40 {
                let selection = governor.select(&context);
                let slept = IdleOutcome::Slept {
                    requested: selection.state,
                    entered: selection.state,
                    residency: Nanos::new(800_000),
                    irq: Nanos::ZERO,
                    wake: WakeReason::Timer,
                };
                governor.reflect(&table, &slept);
            }
            governor.select(&context).state.index()
        };
        assert_eq!([choice("lull", 0), choice("lull", 4096)], [3, 2]);
        assert_eq!([choice("menu", 0), choice("menu", 4096)], [3, 3]);
    }

    #[test]
    fn one_becomes_another_but_for_no_name() {
        let mut governor = AnyGovernor::default();
        for name in AnyGovernor::NAMES {
            assert!(governor.change_to(name));
            assert!(!governor.change_to("nobody"));
            assert_eq!(governor.name(), name);
        }
    }

    /// What a governor chooses over many idle periods, if it is told of each what `told` makes of the state that it chose
    /// and the length, and is asked once more before each if `aborts`.
    fn choices(
        name: &str,
        aborts: bool,
        told: impl Fn(StateId, Nanos) -> IdleOutcome,
    ) -> Vec<StateId> {
        let table = table(&[(2, 2), (10, 20), (133, 600)], true);
        let mut governor = AnyGovernor::by_name(name).unwrap();
        let mut now = 0;
        let lengths = [5, 40, 300, 900, 30_000].into_iter().cycle().take(400);
        let mut choose = |(period, us): (u64, u64)| {
            let context = IdleContext {
                table: &table,
                sleep_length: Some(Nanos::new(50_000_000)),
                latency_limit: None,
                disabled: StateSet::NONE,
                now: Nanos::new(now),
            };
            // The first question teaches the originals something by itself.
            if aborts && period > 0 {
                let _ = governor.select(&context);
                governor.reflect(&table, &IdleOutcome::Aborted);
            }
            let state = governor.select(&context).state;
            // Each length lasts for a while, so that there is something to learn.
            let length = Nanos::new((us + period % 3) * 1_000);
            governor.reflect(&table, &told(state, length));
            now += length.get() + 30_000;
            state
        };
        let mut lengths: Vec<u64> = lengths.collect();
        lengths.sort_unstable();
        (0..).zip(lengths).map(&mut choose).collect()
    }

    fn woken(requested: StateId, entered: StateId, residency: Nanos, irq: u64) -> IdleOutcome {
        IdleOutcome::Slept {
            requested,
            entered,
            residency,
            irq: Nanos::new(irq),
            wake: WakeReason::Store,
        }
    }

    #[test]
    fn the_time_of_handlers_is_not_learned_from() {
        for name in AnyGovernor::NAMES {
            let with = |irq| {
                choices(name, false, |state, length| {
                    woken(state, state, length, irq)
                })
            };
            assert_eq!(with(0), with(20_000_000), "{name}");
        }
    }

    /// Xen's menu goes by the state that was selected, as the original does.
    const LEARN_FROM_ENTERED: fn(&&&str) -> bool = |name| **name != "menu-xen";

    #[test]
    fn a_demoted_sleep_is_one_in_the_state_that_was_entered() {
        let c1 = table(&[(2, 2)], true).id(1).unwrap();
        for name in AnyGovernor::NAMES.iter().filter(LEARN_FROM_ENTERED) {
            let demoted = choices(name, false, |state, length| woken(state, c1, length, 0));
            let asked_for = choices(name, false, |_, length| woken(c1, c1, length, 0));
            assert_eq!(demoted, asked_for, "{name}");
        }
    }

    #[test]
    fn a_latency_limit_holds_even_if_all_that_it_allows_is_disabled() {
        let table = table(&[(2, 2), (133, 600)], true);
        let (all, deepest) = (StateSet::from_bits(0b111), StateSet::from_bits(0b011));
        for name in AnyGovernor::NAMES {
            for (limit, disabled) in [(5, deepest), (1, deepest), (0, all), (5, all)] {
                let context = IdleContext {
                    table: &table,
                    sleep_length: None,
                    latency_limit: Some(Nanos::new(limit * 1_000)),
                    disabled,
                    now: Nanos::ZERO,
                };
                let context = context.with_limit_first();
                let mut governor = AnyGovernor::by_name(name).unwrap();
                let chosen = governor.select(&context).state;
                assert_eq!(chosen.index(), 0, "{name}: {limit} {disabled:?}");
            }
        }
    }

    /// Not of those that count questions, as their originals do: Xen's menu and haltpoll.
    #[test]
    fn an_aborted_entry_is_no_sleep() {
        for name in [
            "lull",
            "menu",
            "menu+tick",
            "teo",
            "teo+tick",
            "ladder",
            "deepest-fit",
        ] {
            let told = |state: StateId, length: Nanos| woken(state, state, length, 0);
            assert_eq!(
                choices(name, true, told),
                choices(name, false, told),
                "{name}"
            );
        }
    }

    fn sleeps() -> impl Strategy<Value = Vec<(Option<u64>, u64, u8, u16, u8)>> {
        let timer = prop_oneof![
            Just(None),
            Just(Some(u64::MAX)),
            (0..20_000_000_u64).prop_map(Some),
        ];
        let limit = 0..6_u8;
        let row = (timer, 0..30_000_000_u64, limit, 0..16_u16, 0..8_u8);
        proptest::collection::vec(row, 1..200)
    }

    proptest! {
        /// Whatever happens to a governor: its choice is in the table, enabled, and within the latency limit, if there is
        /// such a state.
        #[test]
        fn limits_are_honoured(
            sleeps in sleeps(),
            name in proptest::sample::select(&AnyGovernor::NAMES[..]),
            with_poll: bool,
            count in 1..=3_usize,
        ) {
            let figures = [(2, 2), (10, 20), (133, 600)];
            let table = table(&figures[..count], with_poll);
            let mut governor = AnyGovernor::by_name(name).unwrap();
            let mut now = 0;
            for (timer, length, limit, off, how) in sleeps {
                let disabled = table
                    .iter()
                    .fold(StateSet::NONE, |set, (id, _)| set.with(id, off >> id.index() & 1 == 1));
                let context = IdleContext {
                    table: &table,
                    sleep_length: timer.map(Nanos::new),
                    latency_limit: [None, Some(0), Some(1_000), Some(5_000), Some(50_000), Some(1 << 63)]
                        [usize::from(limit)].map(Nanos::new),
                    disabled,
                    now: Nanos::new(now),
                };
                let selection = governor.select(&context);
                prop_assert!(selection.state.index() < table.count());
                if table.iter().any(|(id, _)| context.admits(id)) {
                    prop_assert!(context.admits(selection.state), "{name}: {selection:?} {context:?}");
                }
                prop_assert!(selection.limit.is_none_or(|limit| limit > Nanos::ZERO));
                let slept = |wake| IdleOutcome::Slept {
                    requested: selection.state,
                    entered: selection.state,
                    residency: Nanos::new(length),
                    irq: Nanos::ZERO,
                    wake,
                };
                let requested = selection.state;
                governor.reflect(&table, &match how {
                    0 => IdleOutcome::Aborted,
                    1 => IdleOutcome::Rejected { requested },
                    2 => slept(WakeReason::Timer),
                    3 => slept(WakeReason::Limit),
                    4 => slept(WakeReason::Spurious),
                    5 => slept(WakeReason::Interrupt),
                    _ => slept(WakeReason::Store),
                });
                now += length;
            }
        }
    }
}
