//! One idle entry: from "nothing to run" to "awake, and accounted".
//!
//! Called by the dispatch loop of a CPU that has nothing to run, with interrupts off; returns with interrupts off, the
//! wake word AWAKE, and every event taken. The order of the steps is what makes it right, and each is where it is for
//! a reason:
//!
//! 1. An event that is pending already, or a deadline that has passed, is not slept on.
//! 2. The governor chooses. A state that must not be entered just now (an interrupt is in service where an erratum
//!    forbids that, or a bus master is active) is replaced by C1, which the governor is told. Then the one-shot is armed
//!    for the next deadline (or cancelled).
//! 3. WATCHING or HALTED is published by the compare-and-swap that fails if an event came meanwhile. From here on a
//!    waker knows what it owes. For HLT this is the last check: interrupts stay off until the STI directly before it.
//! 4. What the state and the CPU need before the sleep is done, buffers cleared, caches flushed. For MWAIT, the monitor is
//!    armed **after** that on the same word, and the word is read once more: an event posted
//!    before the arming is seen by the read, one posted after it is seen by the monitor.
//! 5. The entry stamp, the sleep, the exit stamp, the account. Interrupts are opened inside of the sleep only, never
//!    before step 4: a handler that ran there would post an event that nobody looks for.
//! 6. An interrupt that only ended the sleep is taken, the word is swapped back to AWAKE, and the governor learns.
//!
//! An attempt that ends in step 1, 3 or 4 is *aborted*: it is counted as that and as nothing else.

use crate::cstate::{CStateFlags, CStateTable, EntryMethod, StateId};
use crate::governor::{Governor, IdleContext, IdleOutcome, Selection, StateSet, WakeReason};
use crate::platform::Platform;
use crate::residency::CpuAccount;
use crate::trace::Recorder;
use crate::units::{Nanos, Ticks};
use crate::wake::{Events, SleepState, Taken, WakeWord};

mod control;
mod stopped_tsc;

pub use control::IdleControl;
pub use stopped_tsc::{Anchor, ClockPair, MOST_MADE_GOOD, PlatformTimer};

/// Whether stores end a sleep in MWAIT on this CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MonitorTrust {
    /// They do: a waker that saw WATCHING sends no interrupt.
    SeesStores,
    /// They may be missed (a listed erratum, or the self-test at boot said so): WATCHING is never published for MWAIT.
    MissesStores,
}

/// What one idle entry came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the events have been taken from the wake word: dropping them loses wakeups"]
pub struct IdleReport {
    /// Everything that was asked of the CPU. Empty after a spurious wake.
    pub events: Events,
    /// What the governor was told.
    pub outcome: IdleOutcome,
    /// What the wake word said at the end: what the CPU did until then, and who posted first.
    pub taken: Taken,
}

impl IdleReport {
    /// Must the scheduler be asked? Only for RESCHED: a CPU woken by a cross-CPU call alone goes back to sleep without.
    pub const fn needs_pass(&self) -> bool {
        self.events.contains(Events::RESCHED)
    }
}

/// The idle side of one CPU: the states it has, and the governor that chooses among them.
#[derive(Debug)]
pub struct CpuIdle<G> {
    table: CStateTable,
    governor: G,
    monitor: MonitorTrust,
    store_wakes: bool,
    latency_limit: Option<Nanos>,
    disabled: StateSet,
    safe: StateId,
    recorder: Option<Recorder>,
    /// The last sleep was a poll that nothing has ended.
    polled_in_vain: bool,
}

/// What makes a state one that must not always be entered.
const CHECKS: CStateFlags = CStateFlags::CHECK_IN_SERVICE.union(CStateFlags::CHECK_BUS_MASTER);

impl<G: Governor> CpuIdle<G> {
    /// The idle side of a CPU with these states.
    pub fn new(table: CStateTable, governor: G, monitor: MonitorTrust) -> Self {
        Self {
            table,
            governor,
            monitor,
            store_wakes: true,
            latency_limit: None,
            disabled: StateSet::NONE,
            safe: safe(&table),
            recorder: None,
            polled_in_vain: false,
        }
    }

    /// `false`: wakers are told to interrupt it, even where its monitor or its poll would see their store. To compare.
    pub fn set_store_wakes(&mut self, on: bool) {
        self.store_wakes = on;
    }

    /// The CPU's states.
    pub fn table(&self) -> &CStateTable {
        &self.table
    }

    /// Whether its monitor can be trusted.
    pub fn monitor(&self) -> MonitorTrust {
        self.monitor
    }

    /// The CPU's governor.
    pub fn governor(&self) -> &G {
        &self.governor
    }

    /// Limits the exit latency of what is chosen from now on; `None` for no limit.
    pub fn set_latency_limit(&mut self, limit: Option<Nanos>) {
        self.latency_limit = limit;
    }

    /// Takes states out of the choice, and back into it, from now on.
    pub fn set_disabled(&mut self, disabled: StateSet) {
        self.disabled = disabled;
    }

    /// Records idle periods from now on.
    pub fn record(&mut self, recorder: Recorder) {
        self.recorder = Some(recorder);
    }

    /// Does from now on what was asked of this CPU.
    pub fn follow(&mut self, control: &IdleControl) {
        self.disabled = control.disabled();
        self.latency_limit = control.latency_limit();
        if let Some(name) = control.governor()
            && name != self.governor.name()
        {
            // A governor that is the only one of its kind stays.
            self.governor.change_to(name);
        }
    }

    /// Sleeps once, at most until `next_deadline`, and says what woke the CPU.
    ///
    /// `word` and `account` are the own CPU's. The caller handles the events, and comes back if there is still nothing
    /// to run.
    pub fn idle_once<P: Platform>(
        &mut self,
        platform: &P,
        word: &WakeWord,
        account: &CpuAccount,
        next_deadline: Option<Ticks>,
    ) -> IdleReport {
        let now = platform.now();
        if next_deadline.is_some_and(|deadline| deadline <= now) {
            word.post_local(Events::TIMER);
        }
        if word.is_pending() {
            return self.aborted(word, account);
        }

        let context = IdleContext {
            table: &self.table,
            sleep_length: next_deadline.map(|deadline| platform.rate().to_nanos(deadline - now)),
            latency_limit: self.latency_limit,
            disabled: self.disabled,
            now: platform.rate().to_nanos(now),
        };
        let context = self.after_poll(context);
        let selection = self.governor.select(&context);
        if let Some(recorder) = &mut self.recorder {
            recorder.selected(&context, selection.state);
        }
        let entered = self.allowed(platform, selection.state);
        let method = self.table.state(entered).method;
        let flags = self.table.state(entered).flags;
        let stay = match method {
            EntryMethod::Poll => longest_poll(&context, selection),
            _ => selection
                .limit
                .into_iter()
                .chain(platform.longest_stay(flags))
                .min(),
        };
        let limit_at = stay.map(|limit| now + platform.rate().ticks(limit));
        // A poll looks at its limit by itself; every other stay is ended by the one-shot.
        let alarm = limit_at.filter(|_| method != EntryMethod::Poll);
        match alarm.into_iter().chain(next_deadline).min() {
            Some(alarm) => platform.arm(alarm),
            None => platform.cancel(),
        }

        let monitored = matches!(method, EntryMethod::Mwait { .. });
        if word
            .commit(platform, self.announced(method), flags, monitored)
            .is_err()
        {
            return self.aborted(word, account);
        }
        if entered != selection.state {
            account.count_rejected(selection.state);
        }
        let sleep = self.sleep(platform, word, account, entered, limit_at);
        let taken = word.take_all();
        let events = taken.events;

        let wake = sleep.wake_reason(events, next_deadline);
        self.polled_in_vain = method == EntryMethod::Poll && wake == WakeReason::Limit;
        if wake == WakeReason::Spurious {
            account.count_spurious();
        }
        let outcome = IdleOutcome::Slept {
            requested: selection.state,
            entered,
            residency: platform.rate().to_nanos(sleep.woken_at - sleep.entered_at),
            irq: platform.rate().to_nanos(sleep.left_at - sleep.woken_at),
            wake,
        };
        self.report(taken, outcome)
    }

    /// Who has polled in vain sleeps next, whatever the governor makes of it: a poll does not follow a poll.
    fn after_poll<'a>(&self, mut context: IdleContext<'a>) -> IdleContext<'a> {
        if self.polled_in_vain {
            let polls = context
                .table
                .iter()
                .filter(|(_, state)| state.method == EntryMethod::Poll);
            let without = polls.fold(context.disabled, |set, (id, _)| set.with(id, true));
            let less = IdleContext {
                disabled: without,
                ..context
            };
            if context.table.iter().any(|(id, _)| less.admits(id)) {
                context.disabled = without;
            }
        }
        context
    }

    /// The state to enter for the one that was chosen: itself, or C1 if it must not be entered now.
    fn allowed<P: Platform>(&self, platform: &P, chosen: StateId) -> StateId {
        let flags = self.table.state(chosen).flags;
        let in_service =
            flags.contains(CStateFlags::CHECK_IN_SERVICE) && platform.interrupt_in_service();
        let busy = flags.contains(CStateFlags::CHECK_BUS_MASTER) && platform.bus_master_active();
        if in_service || busy {
            self.safe
        } else {
            chosen
        }
    }

    /// Steps 5 and 6, up to the point where the word can be swapped back.
    fn sleep<P: Platform>(
        &self,
        platform: &P,
        word: &WakeWord,
        account: &CpuAccount,
        state: StateId,
        limit_at: Option<Ticks>,
    ) -> Sleep {
        let method = self.table.state(state).method;
        let flags = self.table.state(state).flags;
        platform.take_first_irq(); // Forget the handlers that ran before this sleep.
        let entered_at = platform.now();
        account.enter_idle(state, entered_at);

        let during_poll = match method {
            EntryMethod::Poll => poll(platform, word, limit_at),
            EntryMethod::Halt => {
                platform.halt();
                None
            }
            EntryMethod::Mwait { hint, gate } => {
                platform.mwait(hint, gate);
                None
            }
            EntryMethod::IoRead(port) => {
                platform.io_read(port, flags.contains(CStateFlags::READ_PM_TIMER));
                None
            }
        };
        platform.recover(flags);
        let first_irq = during_poll.or_else(|| platform.take_first_irq());

        let left_at = platform.now();
        let woken_at = first_irq.unwrap_or(left_at);
        let slept = platform.rate().to_nanos(woken_at - entered_at);
        account.leave_idle(left_at, first_irq, self.table.fit(state, slept));

        let mut handler_ran = first_irq.is_some();
        if !method.runs_handlers() {
            platform.interrupt_window();
            handler_ran |= platform.take_first_irq().is_some();
        }
        Sleep {
            entered_at,
            woken_at,
            left_at,
            handler_ran,
            limit_at,
        }
    }

    /// What wakers are told while the CPU is in a state that is entered in this way.
    fn announced(&self, method: EntryMethod) -> SleepState {
        // A poll reads the word itself, and needs no monitor.
        let sees_stores = self.store_wakes
            && (method == EntryMethod::Poll || self.monitor == MonitorTrust::SeesStores);
        if method.watches() && sees_stores {
            SleepState::Watching
        } else {
            SleepState::Halted
        }
    }

    fn aborted(&mut self, word: &WakeWord, account: &CpuAccount) -> IdleReport {
        account.count_aborted();
        self.report(word.take_all(), IdleOutcome::Aborted)
    }

    fn report(&mut self, taken: Taken, outcome: IdleOutcome) -> IdleReport {
        self.governor.reflect(&self.table, &outcome);
        if let Some(recorder) = &mut self.recorder {
            recorder.ended(&outcome);
        }
        IdleReport {
            events: taken.events,
            outcome,
            taken,
        }
    }
}

/// One sleep, as measured.
struct Sleep {
    entered_at: Ticks,
    /// When the first handler inside the state began; the exit stamp if none did.
    woken_at: Ticks,
    left_at: Ticks,
    /// Did any handler run, inside the state or in the window after it?
    handler_ran: bool,
    /// The end of the stay, if the governor set one.
    limit_at: Option<Ticks>,
}

impl Sleep {
    fn wake_reason(&self, events: Events, deadline: Option<Ticks>) -> WakeReason {
        let reached = |time: Option<Ticks>| time.is_some_and(|time| time <= self.woken_at);
        if reached(deadline) {
            WakeReason::Timer
        } else if reached(self.limit_at) && events.difference(Events::TIMER).is_empty() {
            // The one-shot's handler posts TIMER here too.
            WakeReason::Limit
        } else if self.handler_ran {
            WakeReason::Interrupt
        } else if !events.is_empty() {
            WakeReason::Store
        } else {
            WakeReason::Spurious
        }
    }
}

/// No poll is shorter or longer than this by its own limit. Sources: Linux' cpuidle, for the idea and the figures.
const POLL_LIMITS: (Nanos, Nanos) = (Nanos::new(10_000), Nanos::new(250_000));

/// How long to poll at most: what the governor says, and in any case for no longer than it takes to be worth a sleep. Without
/// limit only where there is nothing else that may be chosen.
fn longest_poll(context: &IdleContext<'_>, selection: Selection) -> Option<Nanos> {
    let other = context
        .table
        .iter()
        .find(|(id, state)| state.method != EntryMethod::Poll && context.admits(*id));
    let own = other.map(|(_, state)| {
        let pays = state.target_residency.to_nanos();
        pays.max(POLL_LIMITS.0).min(POLL_LIMITS.1)
    });
    selection.limit.into_iter().chain(own).min()
}

/// What is entered instead of a state that must not be entered now: the shallowest sleep that may always be.
fn safe(table: &CStateTable) -> StateId {
    let mut sleeps = table
        .iter()
        .filter(|(_, state)| state.method != EntryMethod::Poll);
    let always = sleeps.find(|(_, state)| !state.flags.intersects(CHECKS));
    always.map_or(table.shallowest(), |(id, _)| id)
}

/// Polls the word until it has an event, a handler has run (the timer's, at the next deadline), or the limit is reached. As with HLT, the first handler ends it,
/// so that what follows the handler is not taken for interrupt time.
fn poll(platform: &impl Platform, word: &WakeWord, until: Option<Ticks>) -> Option<Ticks> {
    loop {
        if word.is_pending() || until.is_some_and(|until| until <= platform.now()) {
            return None;
        }
        platform.poll();
        let first_irq = platform.take_first_irq();
        if first_irq.is_some() {
            return first_irq;
        }
    }
}

#[cfg(test)]
mod tests;
