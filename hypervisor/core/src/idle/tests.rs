//! Idle entries on a scripted machine: a wake is placed at every call that the idle path makes, before it and after it.
//!
//! The machine never forgives: a sleep that nothing will end panics as a lost wakeup.

use super::*;
use crate::cstate::{CState, CStateFlags, MwaitHint, StateId};
use crate::governor::{DeepestFit, Selection};
use crate::platform::{Clock, Ipi, IrqGate, OneShot, Sleeper};
use crate::residency::Snapshot;
use crate::units::{CpuId, Micros, TickRate};
use crate::wake::{Wake, WakeStats};
use std::cell::{Cell, RefCell};
use std::string::String;
use std::vec::Vec;

/// Where in the idle path another CPU acts: around the n-th call to the machine, or while the CPU sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Before(usize),
    After(usize),
    Asleep,
}

/// A machine of one CPU with a script. Every call costs one tick.
struct Machine<'a> {
    word: &'a WakeWord,
    script: RefCell<Vec<(Moment, Events)>>,
    calls: RefCell<Vec<String>>,
    wakes: WakeStats,
    now: Cell<u64>,
    one_shot: Cell<Option<u64>>,
    monitor: Cell<Option<u64>>,
    ipi: Cell<bool>,
    first_irq: Cell<Option<u64>>,
    spurious: Cell<bool>,
    posted_at: Cell<u64>,
    stores_wake: bool,
    in_service: Cell<bool>,
    bus_master: Cell<bool>,
}

const HANDLER: u64 = 7;

impl<'a> Machine<'a> {
    fn new(word: &'a WakeWord, script: Vec<(Moment, Events)>) -> Self {
        Self {
            word,
            script: RefCell::new(script),
            calls: RefCell::default(),
            wakes: WakeStats::default(),
            now: Cell::new(1000),
            one_shot: Cell::new(None),
            monitor: Cell::new(None),
            ipi: Cell::new(false),
            first_irq: Cell::new(None),
            spurious: Cell::new(false),
            posted_at: Cell::new(0),
            stores_wake: true,
            in_service: Cell::new(false),
            bus_master: Cell::new(false),
        }
    }

    /// Another CPU posts what the script says for this moment, and sends the interrupt if it owes one.
    fn others_act(&self, moment: Moment) {
        self.script.borrow_mut().retain(|&(at, events)| {
            if at == moment {
                self.posted_at.set(self.now.get());
                if self.wakes.count(events, self.word.post(events)).needs_ipi() {
                    self.ipi.set(true);
                }
            }
            at != moment
        });
    }

    fn call<T>(&self, name: &str, effect: impl FnOnce() -> T) -> T {
        let number = self.calls.borrow().len();
        self.others_act(Moment::Before(number));
        self.calls.borrow_mut().push(String::from(name));
        self.now.set(self.now.get() + 1);
        let result = effect();
        self.others_act(Moment::After(number));
        result
    }

    fn timer_due(&self) -> bool {
        self.one_shot
            .get()
            .is_some_and(|deadline| deadline <= self.now.get())
    }

    /// Takes what is pending, as an open interrupt flag does.
    fn take_interrupts(&self) {
        if !self.ipi.get() && !self.timer_due() {
            return;
        }
        if self.first_irq.get().is_none() {
            self.first_irq.set(Some(self.now.get()));
        }
        if self.timer_due() {
            self.one_shot.set(None);
            self.word.post_local(Events::TIMER);
        }
        self.ipi.set(false);
        self.now.set(self.now.get() + HANDLER);
    }

    /// Sleeps until something ends it. Only what the hardware would notice does.
    fn sleep(&self, watches: bool) {
        let noticed = || {
            let stored = self
                .monitor
                .get()
                .is_some_and(|armed| armed != self.word.value());
            self.ipi.get()
                || self.timer_due()
                || self.spurious.take()
                || (watches && self.stores_wake && stored)
        };
        if noticed() {
            return;
        }
        self.now.set(self.now.get() + 100);
        self.others_act(Moment::Asleep);
        if noticed() {
            return;
        }
        let deadline = self
            .one_shot
            .get()
            .unwrap_or_else(|| panic!("lost wakeup: {:?}", self.calls.borrow()));
        self.now.set(deadline);
    }
}

impl Clock for Machine<'_> {
    fn now(&self) -> Ticks {
        self.call("now", || Ticks::new(self.now.get()))
    }

    /// One tick is one nanosecond. Asking costs nothing: it is a constant of the machine.
    fn rate(&self) -> TickRate {
        TickRate::from_hz(1_000_000_000).unwrap()
    }
}

impl OneShot for Machine<'_> {
    fn arm(&self, deadline: Ticks) {
        self.call("arm", || self.one_shot.set(Some(deadline.get())));
    }

    fn cancel(&self) {
        self.call("cancel", || self.one_shot.set(None));
    }
}

impl Sleeper for Machine<'_> {
    fn interrupt_in_service(&self) -> bool {
        self.in_service.get()
    }

    fn bus_master_active(&self) -> bool {
        self.bus_master.get()
    }

    fn prepare(&self, flags: CStateFlags) {
        if !flags.is_empty() {
            self.call("prepare", || ());
        }
    }

    fn recover(&self, flags: CStateFlags) {
        if !flags.is_empty() {
            self.call("recover", || ());
        }
    }

    fn arm_monitor(&self, word: &WakeWord) {
        self.call("monitor", || self.monitor.set(Some(word.value())));
    }

    fn mwait(&self, _hint: MwaitHint, gate: IrqGate) {
        self.call("mwait", || self.sleep(true));
        self.monitor.set(None);
        if gate == IrqGate::Open {
            self.take_interrupts();
        }
    }

    fn halt(&self) {
        self.call("halt", || self.sleep(false));
        self.take_interrupts();
    }

    fn io_read(&self, _port: u16, settle: bool) {
        self.call("io_read", || self.sleep(false));
        if settle {
            self.call("settle", || ());
        }
    }

    fn poll(&self) {
        self.call("poll", || ());
        self.others_act(Moment::Asleep);
        self.take_interrupts();
    }

    fn interrupt_window(&self) {
        self.call("window", || self.take_interrupts());
    }

    fn take_first_irq(&self) -> Option<Ticks> {
        self.first_irq.take().map(Ticks::new)
    }
}

impl Ipi for Machine<'_> {
    fn send(&self, _target: CpuId) {
        self.ipi.set(true);
    }
}

impl Platform for Machine<'_> {
    fn cpu(&self) -> CpuId {
        CpuId::new(0)
    }
}

/// A governor that always takes the deepest state, and writes down what it is told.
#[derive(Default)]
struct Recorder {
    limit: Option<Nanos>,
    outcomes: Vec<IdleOutcome>,
}

impl Governor for Recorder {
    fn name(&self) -> &'static str {
        "recorder"
    }

    fn select(&mut self, context: &IdleContext<'_>) -> Selection {
        let (state, _) = context.table.iter().next_back().unwrap();
        Selection {
            state,
            limit: self.limit,
            predicted: None,
        }
    }

    fn reflect(&mut self, _table: &CStateTable, outcome: &IdleOutcome) {
        self.outcomes.push(*outcome);
    }
}

const METHODS: [EntryMethod; 5] = [
    EntryMethod::Halt,
    EntryMethod::Mwait {
        hint: MwaitHint::C1,
        gate: IrqGate::Masked,
    },
    EntryMethod::Mwait {
        hint: MwaitHint::C1,
        gate: IrqGate::Open,
    },
    EntryMethod::IoRead(0x1814),
    EntryMethod::Poll,
];

fn table_of(method: EntryMethod) -> CStateTable {
    let state = CState {
        name: "C1",
        method,
        flags: CStateFlags::empty(),
        exit_latency: Micros::ZERO,
        target_residency: Micros::ZERO,
    };
    CStateTable::new(&[state]).unwrap()
}

/// One CPU, its idle side, and what it has seen.
struct Cpu<'a> {
    machine: &'a Machine<'a>,
    idle: CpuIdle<Recorder>,
    account: CpuAccount,
}

impl<'a> Cpu<'a> {
    fn new(machine: &'a Machine<'a>, method: EntryMethod, monitor: MonitorTrust) -> Self {
        let account = CpuAccount::new();
        account.start(Ticks::new(machine.now.get()));
        Self {
            machine,
            idle: CpuIdle::new(table_of(method), Recorder::default(), monitor),
            account,
        }
    }

    fn idle_once(&mut self, deadline: Option<u64>) -> IdleReport {
        self.idle.idle_once(
            self.machine,
            self.machine.word,
            &self.account,
            deadline.map(Ticks::new),
        )
    }

    fn row(&self) -> Snapshot {
        let row = self.account.snapshot(self.machine);
        assert_eq!(row.check(Ticks::ZERO), Ok(()), "{row:?}");
        row
    }

    fn outcomes(&self) -> &[IdleOutcome] {
        &self.idle.governor().outcomes
    }
}

fn usage(row: &Snapshot) -> u64 {
    row.states(&table_of(EntryMethod::Halt))
        .map(|state| state.usage)
        .sum()
}

/// Every place at which a single wake can meet one idle entry, for every way into a state, with a good and a bad monitor.
#[test]
fn a_wake_at_any_moment_is_seen_in_the_same_or_the_next_entry() {
    let mut tried = 0;
    for method in METHODS {
        for (monitor, stores_wake) in [
            (MonitorTrust::SeesStores, true),
            (MonitorTrust::MissesStores, false),
        ] {
            let moments = (0..8)
                .flat_map(|call| [Moment::Before(call), Moment::After(call)])
                .chain([Moment::Asleep]);
            for moment in moments {
                let word = WakeWord::new();
                let machine = Machine {
                    stores_wake,
                    ..Machine::new(&word, std::vec![(moment, Events::CALL)])
                };
                let mut cpu = Cpu::new(&machine, method, monitor);
                let mut seen = Events::empty();
                let mut entries = 0;
                // The second entry's timer ends the sleep where the wake came after the end of the first.
                while !seen.contains(Events::CALL) && entries < 3 {
                    seen |= cpu.idle_once(Some(machine.now.get() + 500)).events;
                    entries += 1;
                }
                let story = std::format!(
                    "{method:?} {monitor:?} {moment:?}: {:?}",
                    machine.calls.borrow()
                );
                assert!(seen.contains(Events::CALL), "{story}");
                // Soon, and not only when the timer happens to end the sleep.
                let delay = machine.now.get() - machine.posted_at.get();
                assert!(delay < 50, "lost for {delay} ticks: {story}");
                assert!(entries <= 2, "{story}");
                let row = cpu.row();
                assert_eq!(
                    usage(&row) + row.aborted,
                    entries,
                    "each entry sleeps or is aborted: {story}"
                );
                assert_eq!(cpu.outcomes().len() as u64, entries, "{story}");
                assert_eq!(machine.wakes.counts().posted(), 1);
                assert_eq!(word.state(), SleepState::Awake, "{story}");
                tried += 1;
            }
        }
    }
    assert_eq!(tried, 5 * 2 * 17);
}

#[test]
fn only_a_cpu_that_sees_no_store_costs_an_interrupt() {
    use EntryMethod::{Halt, IoRead, Mwait, Poll};
    let masked = Mwait {
        hint: MwaitHint::C1,
        gate: IrqGate::Masked,
    };
    for (method, monitor, owed) in [
        (Halt, MonitorTrust::SeesStores, Wake::SendIpi),
        (IoRead(0x1814), MonitorTrust::SeesStores, Wake::SendIpi),
        (masked, MonitorTrust::SeesStores, Wake::StoreWakes),
        (masked, MonitorTrust::MissesStores, Wake::SendIpi),
        (Poll, MonitorTrust::MissesStores, Wake::StoreWakes),
    ] {
        let word = WakeWord::new();
        let machine = Machine::new(&word, std::vec![(Moment::Asleep, Events::CALL)]);
        let mut cpu = Cpu::new(&machine, method, monitor);
        let report = cpu.idle_once(None);
        assert_eq!(report.events, Events::CALL);
        let counts = machine.wakes.counts();
        assert_eq!(
            (counts.ipis() == 1, counts.of(Wake::StoreWakes) == 1),
            (owed.needs_ipi(), !owed.needs_ipi()),
            "{method:?} {monitor:?}"
        );
        let IdleOutcome::Slept { wake, .. } = report.outcome else {
            panic!("{report:?}")
        };
        let expected = if owed.needs_ipi() {
            WakeReason::Interrupt
        } else {
            WakeReason::Store
        };
        assert_eq!(wake, expected, "{method:?} {monitor:?}");
    }
}

#[test]
fn the_order_of_the_steps_is_fixed() {
    let word = WakeWord::new();
    let machine = Machine::new(&word, Vec::new());
    let method = EntryMethod::Mwait {
        hint: MwaitHint::C1,
        gate: IrqGate::Masked,
    };
    let mut cpu = Cpu::new(&machine, method, MonitorTrust::SeesStores);
    assert_eq!(cpu.idle_once(Some(2000)).events, Events::TIMER);
    assert_eq!(
        *machine.calls.borrow(),
        ["now", "arm", "monitor", "now", "mwait", "now", "window"]
    );
}

#[test]
fn an_aborted_entry_never_reaches_the_state_and_counts_nowhere_else() {
    // Before anything; after the choice, so that publishing fails; and between publishing and the monitor.
    for (moment, calls) in [
        (Moment::Before(0), 1),
        (Moment::After(1), 2),
        (Moment::Before(2), 3),
        (Moment::After(2), 3),
    ] {
        let word = WakeWord::new();
        let machine = Machine::new(&word, std::vec![(moment, Events::RESCHED)]);
        let method = EntryMethod::Mwait {
            hint: MwaitHint::C1,
            gate: IrqGate::Open,
        };
        let mut cpu = Cpu::new(&machine, method, MonitorTrust::SeesStores);
        let report = cpu.idle_once(None);
        assert_eq!(
            (report.events, report.outcome),
            (Events::RESCHED, IdleOutcome::Aborted),
            "{moment:?}"
        );
        assert!(report.needs_pass());
        assert_eq!(
            machine.calls.borrow().len(),
            calls,
            "{moment:?} {:?}",
            machine.calls.borrow()
        );
        assert_eq!(cpu.outcomes(), [IdleOutcome::Aborted]);
        let row = cpu.row();
        assert_eq!(
            (usage(&row), row.aborted, row.residency()),
            (0, 1, Ticks::ZERO),
            "{moment:?}"
        );
    }
}

#[test]
fn a_deadline_that_has_passed_is_not_slept_on() {
    let word = WakeWord::new();
    let machine = Machine::new(&word, Vec::new());
    let mut cpu = Cpu::new(&machine, EntryMethod::Halt, MonitorTrust::SeesStores);
    let report = cpu.idle_once(Some(1000));
    assert_eq!(
        (report.events, report.outcome),
        (Events::TIMER, IdleOutcome::Aborted)
    );
    assert_eq!(*machine.calls.borrow(), ["now"]);
}

#[test]
fn handlers_inside_a_state_are_interrupt_time_and_not_residency() {
    for (method, inside) in [
        (EntryMethod::Halt, true),
        (EntryMethod::IoRead(0x1814), false),
        (
            EntryMethod::Mwait {
                hint: MwaitHint::C1,
                gate: IrqGate::Open,
            },
            true,
        ),
        // The handler runs after the exit stamp: this state has no interrupt time.
        (
            EntryMethod::Mwait {
                hint: MwaitHint::C1,
                gate: IrqGate::Masked,
            },
            false,
        ),
    ] {
        let word = WakeWord::new();
        let machine = Machine::new(&word, Vec::new());
        let mut cpu = Cpu::new(&machine, method, MonitorTrust::SeesStores);
        let report = cpu.idle_once(Some(5000));
        assert_eq!(report.events, Events::TIMER, "{method:?}");
        let IdleOutcome::Slept {
            residency,
            irq,
            wake,
            ..
        } = report.outcome
        else {
            panic!("{report:?}")
        };
        assert_eq!(wake, WakeReason::Timer);
        let row = cpu.row();
        assert_eq!(
            row.residency().get(),
            residency.get(),
            "one tick is one nanosecond"
        );
        assert_eq!(row.irq().get(), irq.get());
        assert_eq!(
            row.irq() >= Ticks::new(HANDLER),
            inside,
            "{method:?}: {}",
            row.irq()
        );
        // Up at 1000; the sleep begins some ticks later, and ends at the deadline.
        assert!(
            (3980..=4000).contains(&residency.get()),
            "{method:?}: {residency}"
        );
    }
}

/// C1 by HLT, and a deep state with these flags.
fn with_deep(machine: &Machine<'_>, method: EntryMethod, flags: CStateFlags) -> CpuIdle<Recorder> {
    let deep = CState {
        name: "C6",
        method,
        flags,
        exit_latency: Micros::new(133),
        target_residency: Micros::new(600),
    };
    let table = CStateTable::new(&[CState::POLL, CState::C1_HALT, deep]).unwrap();
    machine.calls.borrow_mut().clear();
    CpuIdle::new(table, Recorder::default(), MonitorTrust::SeesStores)
}

const DEEP: EntryMethod = EntryMethod::Mwait {
    hint: MwaitHint::new(0x20),
    gate: IrqGate::Masked,
};

#[test]
fn a_state_that_must_not_be_entered_now_is_replaced_by_c1_and_the_governor_is_told() {
    for (flags, in_service, bus_master, replaced) in [
        (CStateFlags::CHECK_IN_SERVICE, true, false, true),
        (CStateFlags::CHECK_IN_SERVICE, false, true, false),
        (CStateFlags::CHECK_BUS_MASTER, false, true, true),
        (CStateFlags::CHECK_BUS_MASTER, true, false, false),
        (CStateFlags::TLB_FLUSHED, true, true, false),
    ] {
        let word = WakeWord::new();
        let machine = Machine::new(&word, Vec::new());
        machine.in_service.set(in_service);
        machine.bus_master.set(bus_master);
        let mut idle = with_deep(&machine, DEEP, flags);
        let account = CpuAccount::new();
        account.start(Ticks::new(1000));
        let report = idle.idle_once(&machine, &word, &account, Some(Ticks::new(900_000)));
        let IdleOutcome::Slept {
            requested, entered, ..
        } = report.outcome
        else {
            panic!("{report:?}")
        };
        let story = std::format!("{flags:?} {in_service} {bus_master}");
        assert_eq!(requested.index(), 2, "{story}");
        assert_eq!(entered.index(), if replaced { 1 } else { 2 }, "{story}");
        let calls = machine.calls.borrow().clone();
        let halted = calls.iter().any(|call| call == "halt");
        assert_eq!(halted, replaced, "{calls:?}");
        // The books have it where the CPU was.
        let row = account.snapshot(&machine);
        let usage: Vec<u64> = row.states(idle.table()).map(|state| state.usage).collect();
        assert_eq!(usage[entered.index()], 1, "{story}: {usage:?}");
        let rejected: Vec<u64> = row
            .states(idle.table())
            .map(|state| state.rejected)
            .collect();
        assert_eq!(rejected, [0, 0, u64::from(replaced)], "{story}");
        assert_eq!(idle.governor().outcomes, [report.outcome], "{story}");
    }
}

#[test]
fn a_table_of_nothing_but_checked_states_falls_back_to_its_shallowest() {
    let word = WakeWord::new();
    let machine = Machine::new(&word, Vec::new());
    machine.in_service.set(true);
    let deep = CState {
        method: DEEP,
        flags: CStateFlags::CHECK_IN_SERVICE,
        ..CState::C1_HALT
    };
    let table = CStateTable::new(&[CState::POLL, deep]).unwrap();
    let mut idle = CpuIdle::new(table, Recorder::default(), MonitorTrust::SeesStores);
    let account = CpuAccount::new();
    account.start(Ticks::new(1000));
    let report = idle.idle_once(&machine, &word, &account, Some(Ticks::new(1500)));
    assert!(
        matches!(report.outcome, IdleOutcome::Slept { entered, .. } if entered.index() == 0),
        "{report:?}"
    );
}

#[test]
fn what_a_state_needs_is_done_before_the_monitor_and_undone_after_the_sleep() {
    let word = WakeWord::new();
    let machine = Machine::new(&word, Vec::new());
    let mut idle = with_deep(&machine, DEEP, CStateFlags::CLEAR_SPEC_CTRL);
    let account = CpuAccount::new();
    account.start(Ticks::new(1000));
    let _ = idle.idle_once(&machine, &word, &account, Some(Ticks::new(2000)));
    assert_eq!(
        *machine.calls.borrow(),
        [
            "now", "arm", "prepare", "monitor", "now", "mwait", "recover", "now", "window"
        ]
    );

    // An attempt that is aborted at the monitor undoes it too.
    let word = WakeWord::new();
    let machine = Machine::new(&word, std::vec![(Moment::After(3), Events::CALL)]);
    let mut idle = with_deep(&machine, DEEP, CStateFlags::CLEAR_SPEC_CTRL);
    let report = idle.idle_once(&machine, &word, &account, Some(Ticks::new(9000)));
    assert_eq!(report.outcome, IdleOutcome::Aborted);
    assert_eq!(
        *machine.calls.borrow(),
        ["now", "arm", "prepare", "monitor", "recover"]
    );

    // The port is read, and the PM timer directly after it.
    let word = WakeWord::new();
    let machine = Machine::new(&word, Vec::new());
    let mut idle = with_deep(
        &machine,
        EntryMethod::IoRead(0x1815),
        CStateFlags::READ_PM_TIMER,
    );
    let _ = idle.idle_once(&machine, &word, &account, Some(Ticks::new(9000)));
    assert_eq!(
        *machine.calls.borrow(),
        [
            "now", "arm", "prepare", "now", "io_read", "settle", "recover", "now", "window"
        ]
    );
}

#[test]
fn a_stale_handler_stamp_is_forgotten_before_the_sleep() {
    let word = WakeWord::new();
    let machine = Machine::new(&word, Vec::new());
    machine.first_irq.set(Some(3));
    let mut cpu = Cpu::new(&machine, EntryMethod::Halt, MonitorTrust::SeesStores);
    let _ = cpu.idle_once(Some(5000));
    assert!(cpu.row().residency() > Ticks::new(3900));
}

#[test]
fn a_poll_is_ended_by_a_store_its_limit_or_a_handler() {
    // By a store.
    let word = WakeWord::new();
    let machine = Machine::new(&word, std::vec![(Moment::Asleep, Events::CALL)]);
    let mut cpu = Cpu::new(&machine, EntryMethod::Poll, MonitorTrust::SeesStores);
    let report = cpu.idle_once(None);
    assert_eq!(report.events, Events::CALL);
    assert!(!report.needs_pass());
    assert!(
        matches!(
            report.outcome,
            IdleOutcome::Slept {
                wake: WakeReason::Store,
                ..
            }
        ),
        "{report:?}"
    );

    // By its limit.
    cpu.idle.governor.limit = Some(Nanos::new(50));
    let report = cpu.idle_once(None);
    assert!(
        matches!(
            report.outcome,
            IdleOutcome::Slept {
                wake: WakeReason::Limit,
                ..
            }
        ),
        "{report:?}"
    );
    assert_eq!(cpu.row().spurious, 0, "a limit is a reason");

    // By a handler, and what comes after the handler is not interrupt time.
    cpu.idle.governor.limit = None;
    let before = cpu.row();
    let report = cpu.idle_once(Some(machine.now.get() + 60));
    assert_eq!(report.events, Events::TIMER);
    let change = cpu.row().since(&before);
    assert!(
        (HANDLER..HANDLER + 4).contains(&change.irq().get()),
        "{}",
        change.irq()
    );
}

#[test]
fn a_stay_that_reaches_its_limit_is_ended_by_the_one_shot() {
    for method in METHODS {
        let word = WakeWord::new();
        let machine = Machine::new(&word, Vec::new());
        let mut cpu = Cpu::new(&machine, method, MonitorTrust::SeesStores);
        cpu.idle.governor.limit = Some(Nanos::new(500));
        let before = machine.now.get();
        let report = cpu.idle_once(Some(before + 100_000));
        let IdleOutcome::Slept {
            wake, residency, ..
        } = report.outcome
        else {
            panic!("{report:?}");
        };
        assert_eq!(wake, WakeReason::Limit, "{method:?}");
        assert!((490..600).contains(&residency.get()), "{residency}");
        assert!(!report.needs_pass());

        // A deadline before the limit is the deadline's wake.
        let report = cpu.idle_once(Some(machine.now.get() + 100));
        assert!(
            matches!(
                report.outcome,
                IdleOutcome::Slept {
                    wake: WakeReason::Timer,
                    ..
                }
            ),
            "{report:?}"
        );
    }
}

#[test]
fn a_wake_for_nothing_is_counted_as_that() {
    let word = WakeWord::new();
    let machine = Machine::new(&word, Vec::new());
    machine.spurious.set(true);
    let mut cpu = Cpu::new(&machine, EntryMethod::Halt, MonitorTrust::SeesStores);
    let report = cpu.idle_once(None);
    assert_eq!(report.events, Events::empty());
    assert!(
        matches!(
            report.outcome,
            IdleOutcome::Slept {
                wake: WakeReason::Spurious,
                ..
            }
        ),
        "{report:?}"
    );
    let row = cpu.row();
    assert_eq!((usage(&row), row.spurious, row.aborted), (1, 1, 0));
}

/// A burst of calls costs no scheduling pass; the one RESCHED among them costs exactly one.
#[test]
fn only_resched_costs_a_pass() {
    let word = WakeWord::new();
    let machine = Machine::new(&word, Vec::new());
    let mut cpu = Cpu::new(&machine, EntryMethod::Halt, MonitorTrust::SeesStores);
    let mut passes = 0;
    for round in 0..10 {
        let events = if round == 4 {
            Events::CALL | Events::RESCHED
        } else {
            Events::CALL
        };
        machine.script.borrow_mut().push((Moment::Asleep, events));
        let report = cpu.idle_once(None);
        assert_eq!(report.events, events);
        passes += u32::from(report.needs_pass());
    }
    assert_eq!(passes, 1);
    assert_eq!(usage(&cpu.row()), 10);
}

#[test]
fn the_default_governor_leaves_room_for_the_deadline() {
    let word = WakeWord::new();
    let machine = Machine::new(&word, Vec::new());
    let table = CStateTable::new(&[CState::POLL, CState::C1_HALT]).unwrap();
    let mut idle = CpuIdle::new(table, DeepestFit, MonitorTrust::SeesStores);
    let account = CpuAccount::new();
    account.start(Ticks::new(1000));
    let mut entered = |deadline: Option<Ticks>| -> Option<StateId> {
        match idle.idle_once(&machine, &word, &account, deadline).outcome {
            IdleOutcome::Slept { entered, .. } => Some(entered),
            _ => None,
        }
    };
    // C1 needs 2 us, which is 2000 ticks here.
    assert_eq!(entered(Some(Ticks::new(2000))), table.id(0));
    assert_eq!(entered(Some(Ticks::new(9000))), table.id(1));
}

/// Chooses POLL whenever it may, without a limit.
struct Poller;

impl Governor for Poller {
    fn name(&self) -> &'static str {
        "poller"
    }

    fn select(&mut self, context: &IdleContext<'_>) -> Selection {
        Selection {
            state: context.nearest(0),
            limit: None,
            predicted: None,
        }
    }

    fn reflect(&mut self, _table: &CStateTable, _outcome: &IdleOutcome) {}
}

#[test]
fn a_poll_has_a_limit_and_does_not_follow_a_poll() {
    let word = WakeWord::new();
    let machine = Machine::new(&word, Vec::new());
    let table = CStateTable::new(&[CState::POLL, CState::C1_HALT]).unwrap();
    let mut idle = CpuIdle::new(table, Poller, MonitorTrust::SeesStores);
    let account = CpuAccount::new();
    account.start(Ticks::new(1000));
    let deadline = Some(Ticks::new(1_000_000));
    let outcome = idle.idle_once(&machine, &word, &account, deadline).outcome;
    let IdleOutcome::Slept {
        entered,
        residency,
        wake,
        ..
    } = outcome
    else {
        panic!("{outcome:?}")
    };
    assert_eq!((entered.index(), wake), (0, WakeReason::Limit));
    // C1 pays after 2 us, and no poll is shorter than 10.
    assert!((10_000..10_100).contains(&residency.get()), "{residency:?}");
    let outcome = idle.idle_once(&machine, &word, &account, deadline).outcome;
    assert!(
        matches!(outcome, IdleOutcome::Slept { entered, wake: WakeReason::Timer, .. } if entered.index() == 1),
        "{outcome:?}"
    );
    // That sleep has ended for a reason: the next one may be a poll again.
    let next = Some(machine.now() + Ticks::new(5_000));
    let outcome = idle.idle_once(&machine, &word, &account, next).outcome;
    assert!(
        matches!(outcome, IdleOutcome::Slept { entered, .. } if entered.index() == 0),
        "{outcome:?}"
    );
}

#[test]
fn where_only_poll_is_allowed_it_has_no_limit_of_its_own() {
    let word = WakeWord::new();
    let machine = Machine::new(&word, Vec::new());
    let table = CStateTable::new(&[CState::POLL, CState::C1_HALT]).unwrap();
    let mut idle = CpuIdle::new(table, Poller, MonitorTrust::SeesStores);
    idle.set_latency_limit(Some(Nanos::ZERO));
    let account = CpuAccount::new();
    account.start(Ticks::new(1000));
    let deadline = Some(Ticks::new(1_000_000));
    let outcome = idle.idle_once(&machine, &word, &account, deadline).outcome;
    assert!(
        matches!(outcome, IdleOutcome::Slept { entered, wake: WakeReason::Timer, .. } if entered.index() == 0),
        "{outcome:?}"
    );
}

/// A host that counts.
#[derive(Default)]
struct Host {
    served: Cell<u64>,
    served_at: Cell<u64>,
    stayed: Cell<u64>,
    aborted: Cell<u64>,
    leave: Cell<bool>,
}

struct Hosted<'a, 'b>(&'a Host, &'a Machine<'b>);

impl IdleHost for Hosted<'_, '_> {
    fn serve_calls(&self) {
        self.0.served.set(self.0.served.get() + 1);
        self.0.served_at.set(self.1.calls.borrow().len() as u64);
    }

    fn may_stay(&self, _: Option<Ticks>) -> bool {
        !self.0.leave.get()
    }

    fn stays(&self, taken: &Taken) {
        assert_eq!(taken.events, Events::CALL);
        self.0.stayed.set(self.0.stayed.get() + 1);
    }

    fn aborted(&self, taken: &Taken) {
        assert_eq!(taken.events, Events::CALL);
        self.0.aborted.set(self.0.aborted.get() + 1);
    }
}

/// One call during each of these sleeps; then the timer.
fn called(method: EntryMethod, sleeps: usize, deadline: u64) -> (Host, Vec<IdleOutcome>, Snapshot) {
    let word = WakeWord::new();
    let machine = Machine::new(&word, std::vec![(Moment::Asleep, Events::CALL)]);
    let left = Cell::new(sleeps - 1);
    let mut cpu = Cpu::new(&machine, method, MonitorTrust::SeesStores);
    let host = Host::default();
    struct Again<'a, 'b>(Hosted<'a, 'b>, &'a Cell<usize>);
    impl IdleHost for Again<'_, '_> {
        fn serve_calls(&self) {
            self.0.serve_calls();
            if let Some(left) = self.1.get().checked_sub(1) {
                self.1.set(left);
                let again = (Moment::Asleep, Events::CALL);
                self.0.1.script.borrow_mut().push(again);
            }
        }
        fn may_stay(&self, deadline: Option<Ticks>) -> bool {
            self.0.may_stay(deadline)
        }
        fn stays(&self, taken: &Taken) {
            self.0.stays(taken);
        }
        fn aborted(&self, taken: &Taken) {
            self.0.aborted(taken);
        }
    }
    let again = Again(Hosted(&host, &machine), &left);
    let until = Some(Ticks::new(deadline));
    let report = cpu.idle.idle(&machine, &word, &cpu.account, until, &again);
    assert!(report.events.contains(Events::TIMER), "{report:?}");
    let outcomes = cpu.outcomes().to_vec();
    (host, outcomes, cpu.row())
}

#[test]
fn calls_do_not_end_the_idle_entry_and_all_is_told_and_accounted_for() {
    for method in METHODS {
        // The mock sleeps to the deadline where nothing else comes.
        let (host, outcomes, row) = called(method, 5, 50_000);
        assert_eq!((host.served.get(), host.stayed.get()), (5, 5), "{method:?}");
        assert_eq!(usage(&row), 6, "{method:?}");
        assert_eq!(outcomes.len(), 6, "{method:?}: {outcomes:?}");
        let told: u64 = outcomes
            .iter()
            .map(|outcome| match outcome {
                IdleOutcome::Slept { residency, .. } => residency.get(),
                other => panic!("{other:?}"),
            })
            .sum();
        assert_eq!(
            told,
            row.residency().get(),
            "{method:?}: a tick is a nanosecond"
        );
        let called = &outcomes[..5];
        assert!(
            called.iter().all(|outcome| matches!(
                outcome,
                IdleOutcome::Slept {
                    wake: WakeReason::Store | WakeReason::Interrupt,
                    ..
                }
            )),
            "{method:?}: {called:?}"
        );
    }
}

#[test]
fn a_call_is_served_right_after_the_exit_stamp() {
    let word = WakeWord::new();
    let machine = Machine::new(&word, std::vec![(Moment::Asleep, Events::CALL)]);
    let method = EntryMethod::Mwait {
        hint: MwaitHint::C1,
        gate: IrqGate::Masked,
    };
    let mut cpu = Cpu::new(&machine, method, MonitorTrust::SeesStores);
    let host = Host::default();
    let hosted = Hosted(&host, &machine);
    let until = Some(Ticks::new(5000));
    let report = cpu.idle.idle(&machine, &word, &cpu.account, until, &hosted);
    assert_eq!(report.events, Events::TIMER);
    assert_eq!(
        *machine.calls.borrow(),
        [
            "now", "arm", "monitor", "now", "mwait", "now", "window", "monitor", "now", "mwait",
            "now", "window"
        ]
    );
    assert_eq!(
        host.served_at.get(),
        6,
        "after the exit stamp, before the window"
    );
}

#[test]
fn a_choice_serves_a_bounded_number_of_calls() {
    let method = EntryMethod::Mwait {
        hint: MwaitHint::C1,
        gate: IrqGate::Masked,
    };
    let word = WakeWord::new();
    let machine = Machine::new(&word, Vec::new());
    let mut cpu = Cpu::new(&machine, method, MonitorTrust::SeesStores);
    let host = Host::default();
    struct Endless<'a, 'b>(Hosted<'a, 'b>);
    impl IdleHost for Endless<'_, '_> {
        fn serve_calls(&self) {
            self.0.serve_calls();
            self.0
                .1
                .script
                .borrow_mut()
                .push((Moment::Asleep, Events::CALL));
        }
        fn may_stay(&self, deadline: Option<Ticks>) -> bool {
            self.0.may_stay(deadline)
        }
        fn stays(&self, taken: &Taken) {
            self.0.stays(taken);
        }
        fn aborted(&self, taken: &Taken) {
            self.0.aborted(taken);
        }
    }
    machine
        .script
        .borrow_mut()
        .push((Moment::Asleep, Events::CALL));
    let endless = Endless(Hosted(&host, &machine));
    let report = cpu.idle.idle(&machine, &word, &cpu.account, None, &endless);
    assert_eq!(report.events, Events::CALL);
    assert_eq!(host.stayed.get(), 31);
    assert_eq!(cpu.outcomes().len(), 32, "the last one was told, too");
    // Whoever is asked to leave leaves at once.
    host.leave.set(true);
    let report = cpu.idle.idle(&machine, &word, &cpu.account, None, &endless);
    assert_eq!((report.events, host.stayed.get()), (Events::CALL, 31));
}

#[test]
fn a_call_before_the_sleep_aborts_the_entry_and_the_choice_stands() {
    let method = EntryMethod::Mwait {
        hint: MwaitHint::C1,
        gate: IrqGate::Masked,
    };
    // After the choice, and between the monitor and the sleep.
    for moment in [Moment::After(1), Moment::After(2)] {
        let word = WakeWord::new();
        let machine = Machine::new(&word, std::vec![(moment, Events::CALL)]);
        let mut cpu = Cpu::new(&machine, method, MonitorTrust::SeesStores);
        let host = Host::default();
        let hosted = Hosted(&host, &machine);
        let until = Some(Ticks::new(5000));
        let report = cpu.idle.idle(&machine, &word, &cpu.account, until, &hosted);
        assert_eq!(report.events, Events::TIMER, "{moment:?}");
        let counts = (host.served.get(), host.aborted.get(), host.stayed.get());
        assert_eq!(counts, (1, 1, 0), "{moment:?}");
        let row = cpu.row();
        assert_eq!((usage(&row), row.aborted), (1, 1), "{moment:?}");
        assert_eq!(cpu.outcomes().len(), 1, "{moment:?}");
    }
}

/// A host whose calls come in quick succession, and of which one sets a timer.
struct SetsTimer<'a, 'b> {
    hosted: Hosted<'a, 'b>,
    /// So many calls bring the next one, before one sets the timer.
    more: Cell<u32>,
    /// Of those, the last so many bring it at once, the others in the next sleep.
    at_once: u32,
}

impl IdleHost for SetsTimer<'_, '_> {
    fn serve_calls(&self) {
        self.hosted.serve_calls();
        let Some(more) = self.more.get().checked_sub(1) else {
            self.hosted.0.leave.set(true);
            return;
        };
        self.more.set(more);
        let machine = self.hosted.1;
        if more < self.at_once {
            let _ = machine.word.post(Events::CALL);
        } else {
            let next = (Moment::Asleep, Events::CALL);
            machine.script.borrow_mut().push(next);
        }
    }
    fn may_stay(&self, deadline: Option<Ticks>) -> bool {
        self.hosted.may_stay(deadline)
    }
    fn stays(&self, taken: &Taken) {
        self.hosted.stays(taken);
    }
    fn aborted(&self, taken: &Taken) {
        self.hosted.aborted(taken);
    }
}

#[test]
fn whatever_call_sets_a_timer_is_the_last_before_a_new_choice() {
    for method in METHODS {
        // In the sleep or before it, after none, few and many others, asleep in between or not: the CPU never sleeps by a choice
        // that knows nothing of the timer.
        for moment in [Moment::Asleep, Moment::After(1), Moment::After(2)] {
            // A CPU that has been called in a few sleeps knows how long its way is, and looks for calls that come sooner.
            let successions = (0..30).flat_map(|more| [0, 1, 2, 3, more].map(|last| (more, last)));
            for (more, at_once) in successions {
                let word = WakeWord::new();
                let machine = Machine::new(&word, std::vec![(moment, Events::CALL)]);
                let mut cpu = Cpu::new(&machine, method, MonitorTrust::SeesStores);
                let host = Host::default();
                let sets = SetsTimer {
                    hosted: Hosted(&host, &machine),
                    more: Cell::new(more),
                    at_once,
                };
                let far = Some(Ticks::new(1_000_000));
                let report = cpu.idle.idle(&machine, &word, &cpu.account, far, &sets);
                let what = format!("{method:?} {moment:?} {more} {at_once}: {report:?}");
                assert!(host.leave.get(), "{what}");
                assert!(machine.now.get() < 1_000_000, "{what}");
                assert!(!word.is_pending(), "{what}");
                let row = cpu.row();
                assert_eq!(row.check(Ticks::ZERO), Ok(()), "{what}");
                let slept = cpu
                    .outcomes()
                    .iter()
                    .filter(|outcome| matches!(outcome, IdleOutcome::Slept { .. }));
                assert_eq!(slept.count() as u64, usage(&row), "{what}");
            }
        }
    }
}

#[test]
fn time_in_a_call_is_not_the_states() {
    let account = CpuAccount::new();
    let word = WakeWord::new();
    let machine = Machine::new(&word, Vec::new());
    let state = table_of(EntryMethod::Halt).shallowest();
    account.start(Ticks::new(0));
    account.enter_idle(state, Ticks::new(100));
    assert!(account.is_asleep());
    account.pause_idle(Ticks::new(150));
    assert!(!account.is_asleep());
    machine.now.set(400);
    let row = account.snapshot(&machine);
    assert_eq!(row.residency(), Ticks::new(50));
    assert_eq!(row.check(Ticks::ZERO), Ok(()));
    account.resume_idle(Ticks::new(150), None, Fit::Right, Ticks::new(500));
    machine.now.set(600);
    let row = account.snapshot(&machine);
    assert_eq!(row.check(Ticks::ZERO), Ok(()));
    let since = row.now.get() - 500;
    assert_eq!((row.residency().get(), usage(&row)), (50 + since, 2));
}
