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
//!
//! A sleep that was ended by CALL and nothing else is not worth all that. The calls are served first of all, right after the exit
//! stamp, so that the caller waits for nothing but them; then comes the account, and from there the way leads back to step 3, if
//! the choice may serve again. If calls come on that way already, or shortly after it, the CPU looks for another one for a moment each
//! time it has served one, before it tries to sleep again.

use crate::cstate::{CState, CStateFlags, CStateTable, EntryMethod, Fit, StateId};
use crate::governor::{Governor, IdleContext, IdleOutcome, Selection, StateSet, WakeReason};
use crate::platform::Platform;
use crate::residency::CpuAccount;
use crate::trace::Recorder;
use crate::units::{Nanos, Ticks};
use crate::wake::{Events, NotAsleep, SleepState, Taken, WakeWord};
use stays::{Pace, Stay, Stays};

mod control;
mod stays;
mod stopped_tsc;

pub use control::IdleControl;
pub use stays::{IdleHost, NoCalls};
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
    /// Stays in this idle entry that the governor has not been told of.
    untold: Stays,
    /// How fast calls come, and the CPU can go back to sleep.
    pace: Pace,
    /// The changes that were [followed](Self::follow).
    followed: Option<u32>,
    /// The CPU is offline: it sleeps as deep as it can.
    parked: bool,
}

/// What one idle entry sleeps by.
#[derive(Clone, Copy)]
struct Choice {
    requested: StateId,
    entered: StateId,
    method: EntryMethod,
    flags: CStateFlags,
    /// What wakers are told.
    announced: SleepState,
    /// How long to stay at most.
    longest: Option<Ticks>,
    /// The end of the stay by that.
    limit_at: Option<Ticks>,
    deadline: Option<Ticks>,
}

impl Choice {
    /// What the one-shot is armed for. A poll looks at its limit by itself; every other stay is ended by the one-shot.
    fn alarm(&self) -> Option<Ticks> {
        let limit = self.limit_at.filter(|_| self.method != EntryMethod::Poll);
        limit.into_iter().chain(self.deadline).min()
    }

    /// The stay begins anew.
    #[inline]
    fn restart<P: Platform>(&mut self, platform: &P, now: Ticks) {
        if let Some(longest) = self.longest {
            self.limit_at = Some(now + longest);
            if let Some(alarm) = self.alarm() {
                platform.arm(alarm);
            }
        }
    }

    /// Are its limit and the deadline still ahead?
    #[inline]
    fn is_ahead(&self, now: Ticks) -> bool {
        let ahead = |time: Option<Ticks>| time.is_none_or(|time| time > now);
        ahead(self.limit_at) && ahead(self.deadline)
    }
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
            untold: Stays::new(),
            pace: Pace::new(),
            followed: None,
            parked: false,
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

    /// `true`: the CPU is offline, and sleeps in its deepest state that is not off, whatever its governor and limits on latency
    /// would make of it.
    pub fn set_parked(&mut self, parked: bool) {
        self.parked = parked;
    }

    /// The states that must not be chosen now, and the limit on exit latency.
    fn bounds(&self) -> (StateSet, Option<Nanos>) {
        if !self.parked {
            return (self.disabled, self.latency_limit);
        }
        let on = |&(id, state): &(StateId, &CState)| {
            state.method != EntryMethod::Poll && !self.disabled.contains(id)
        };
        let deepest = self.table.iter().filter(on).last();
        match deepest {
            None => (self.disabled, self.latency_limit),
            Some((deepest, _)) => {
                let others = self.table.iter().filter(|(id, _)| *id != deepest);
                (
                    others.fold(self.disabled, |set, (id, _)| set.with(id, true)),
                    None,
                )
            }
        }
    }

    /// Records idle periods from now on.
    pub fn record(&mut self, recorder: Recorder) {
        self.recorder = Some(recorder);
    }

    /// Does from now on what was asked of this CPU. `true` if that has changed.
    pub fn follow(&mut self, control: &IdleControl) -> bool {
        let changes = Some(control.changes());
        if changes == self.followed {
            return false;
        }
        self.followed = changes;
        self.disabled = control.disabled();
        self.latency_limit = control.latency_limit();
        if let Some(name) = control.governor()
            && name != self.governor.name()
        {
            // A governor that is the only one of its kind stays.
            self.governor.change_to(name);
        }
        true
    }

    /// [`idle`](Self::idle) of a CPU that nobody calls.
    pub fn idle_once<P: Platform>(
        &mut self,
        platform: &P,
        word: &WakeWord,
        account: &CpuAccount,
        next_deadline: Option<Ticks>,
    ) -> IdleReport {
        self.idle(platform, word, account, next_deadline, &NoCalls)
    }

    /// Sleeps, at most until `next_deadline`, and says what woke the CPU. Calls alone do not, as long as the host lets it stay: they
    /// are served here.
    ///
    /// `word` and `account` are the own CPU's. The caller handles the events, and comes back if there is still nothing
    /// to run.
    pub fn idle<P: Platform>(
        &mut self,
        platform: &P,
        word: &WakeWord,
        account: &CpuAccount,
        next_deadline: Option<Ticks>,
        host: &impl IdleHost,
    ) -> IdleReport {
        let now = platform.now();
        if next_deadline.is_some_and(|deadline| deadline <= now) {
            word.post_local(Events::TIMER);
        }
        if word.is_pending() {
            return self.aborted(word, account);
        }
        let mut choice = self.choose(platform, now, next_deadline);
        let mut rejected = choice.entered != choice.requested;
        // The stay that calls have ended, until it is accounted for.
        let mut last: Option<(Sleep, Fit, Nanos)> = None;
        loop {
            if self.commit(platform, word, &choice).is_err() {
                let left_at = self.settle(account, &mut last);
                match self.only_calls(platform, word, account, host, &choice, left_at) {
                    Ok(()) => continue,
                    Err(taken) => {
                        self.tell(platform, &choice);
                        return self.report(taken, IdleOutcome::Aborted);
                    }
                }
            }
            if core::mem::take(&mut rejected) {
                account.count_rejected(choice.requested);
            }
            platform.take_first_irq(); // Forget the handlers that ran before this sleep.
            let entered_at = platform.now();
            match last.take() {
                None => account.enter_idle(choice.entered, entered_at),
                Some((sleep, fit, slept)) => {
                    self.pace.took(entered_at - sleep.left_at);
                    account.resume_idle(sleep.left_at, sleep.first_irq(), fit, entered_at);
                    self.untold.add(sleep.stay(slept, entered_at));
                }
            }
            let sleep = self.sleep(platform, word, &choice, entered_at);
            if !word.is_exactly(Events::CALL) {
                return self.back(platform, word, account, &choice, sleep, None);
            }
            account.pause_idle(sleep.left_at);
            let taken = word.take_all();
            host.serve_calls();
            let slept = sleep.residency(platform);
            let fit = self.table.fit(choice.entered, slept, self.disabled);
            let stays = taken.events == Events::CALL
                && choice.is_ahead(sleep.left_at)
                && stays::serves_again(self.table.state(choice.entered), fit)
                && self.may_stay(platform, host, &choice);
            if !stays {
                return self.back(platform, word, account, &choice, sleep, Some(taken));
            }
            host.stays(&taken);
            let sleep = sleep.with_window(platform, &choice, taken.state);
            last = Some((sleep, fit, slept));
            choice.restart(platform, sleep.left_at);
            let fast = sleep.left_at - entered_at < self.pace.way();
            if fast && !self.linger(platform, word, host, &choice) {
                self.settle(account, &mut last);
                self.tell(platform, &choice);
                return self.report(word.take_all(), IdleOutcome::Aborted);
            }
        }
    }

    /// Accounts for the last stay, after which none follows. Gives its end.
    fn settle(
        &mut self,
        account: &CpuAccount,
        last: &mut Option<(Sleep, Fit, Nanos)>,
    ) -> Option<Ticks> {
        let (sleep, fit, slept) = last.take()?;
        account.leave_idle(sleep.left_at, sleep.first_irq(), fit);
        self.untold.add(sleep.stay(slept, sleep.left_at));
        Some(sleep.left_at)
    }

    /// An event came before the sleep. If it is CALL alone, it is served, and the choice is as good as before, unless the call has
    /// changed what it was made of; otherwise gives the events.
    fn only_calls<P: Platform>(
        &mut self,
        platform: &P,
        word: &WakeWord,
        account: &CpuAccount,
        host: &impl IdleHost,
        choice: &Choice,
        left_at: Option<Ticks>,
    ) -> Result<(), Taken> {
        account.count_aborted();
        let calls = word.is_exactly(Events::CALL) && self.may_stay(platform, host, choice) && {
            let now = platform.now();
            if let Some(left_at) = left_at {
                self.pace.took(now - left_at);
            }
            // Interrupts may have been off for long.
            choice.is_ahead(now)
        };
        let taken = word.take_all();
        if !calls || taken.events != Events::CALL {
            return Err(taken);
        }
        host.serve_calls();
        // A call may set a timer that comes before the one that is armed.
        if !self.may_stay(platform, host, choice) {
            return Err(taken);
        }
        host.aborted(&taken);
        if self.linger(platform, word, host, choice) {
            Ok(())
        } else {
            Err(word.take_all())
        }
    }

    /// Calls come faster than the CPU can go to sleep. So it looks for the next one for as long as the way to sleep takes, and serves
    /// it right away, before it makes its way again. Whatever else comes is found there. `false`: the choice must not serve again.
    fn linger<P: Platform>(
        &mut self,
        platform: &P,
        word: &WakeWord,
        host: &impl IdleHost,
        choice: &Choice,
    ) -> bool {
        if !self.pace.is_fast() {
            return true;
        }
        for _ in 0..stays::LINGERS {
            let until = platform.now() + self.pace.way();
            while !word.is_pending() {
                if platform.now() >= until {
                    self.pace.in_vain();
                    return true;
                }
                platform.relax();
            }
            if !word.is_exactly(Events::CALL) {
                return true;
            }
            let taken = word.take_all();
            host.serve_calls();
            if taken.events != Events::CALL {
                // It came in between, and waits for its turn.
                word.post_local(taken.events);
                return true;
            }
            host.aborted(&taken);
            if !choice.is_ahead(platform.now()) || !host.may_stay(choice.deadline) {
                return false;
            }
        }
        true
    }

    /// Step 2: what to sleep in, and until when.
    fn choose<P: Platform>(
        &mut self,
        platform: &P,
        now: Ticks,
        next_deadline: Option<Ticks>,
    ) -> Choice {
        let (disabled, latency_limit) = self.bounds();
        let context = IdleContext {
            latency_limit,
            disabled,
            ..moment(platform, &self.table, now, next_deadline)
        };
        let context = self.after_poll(context.with_limit_first());
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
        let longest = stay.map(|limit| platform.rate().ticks(limit));
        let choice = Choice {
            requested: selection.state,
            entered,
            method,
            flags,
            announced: self.announced(method),
            longest,
            // The choice took its time.
            limit_at: longest.map(|longest| platform.now() + longest),
            deadline: next_deadline,
        };
        match choice.alarm() {
            Some(alarm) => platform.arm(alarm),
            None => platform.cancel(),
        }
        choice
    }

    /// Steps 3 and 4.
    #[inline]
    fn commit<P: Platform>(
        &self,
        platform: &P,
        word: &WakeWord,
        choice: &Choice,
    ) -> Result<(), NotAsleep> {
        let monitored = matches!(choice.method, EntryMethod::Mwait { .. });
        word.commit(platform, choice.announced, choice.flags, monitored)
    }

    /// May the choice serve again, as far as it does not depend on the last stay?
    #[inline]
    fn may_stay<P: Platform>(&self, platform: &P, host: &impl IdleHost, choice: &Choice) -> bool {
        let still_allowed = || self.allowed(platform, choice.requested) == choice.entered;
        choice.entered == choice.requested
            && (!choice.flags.intersects(CHECKS) || still_allowed())
            && !self.untold.is_full()
            && self.recorder.is_none()
            && host.may_stay(choice.deadline)
    }

    /// A sleep has ended, and the CPU does not stay. Calls were `served` already, if they were what it ended for.
    fn back<P: Platform>(
        &mut self,
        platform: &P,
        word: &WakeWord,
        account: &CpuAccount,
        choice: &Choice,
        sleep: Sleep,
        served: Option<Taken>,
    ) -> IdleReport {
        let fit = self
            .table
            .fit(choice.entered, sleep.residency(platform), self.disabled);
        account.leave_idle(sleep.left_at, sleep.first_irq(), fit);
        let announced = choice.announced;
        let sleep = sleep.with_window(platform, choice, announced);
        let taken = served.unwrap_or_else(|| word.take_all());
        let wake = sleep.wake_reason(taken.events, choice);
        self.polled_in_vain = choice.method == EntryMethod::Poll && wake == WakeReason::Limit;
        if wake == WakeReason::Spurious {
            account.count_spurious();
        }
        self.tell(platform, choice);
        let outcome = sleep.outcome(platform, choice, wake);
        self.report(taken, outcome)
    }

    /// Tells the governor of the stays that it does not know of.
    fn tell<P: Platform>(&mut self, platform: &P, choice: &Choice) {
        for stay in self.untold.drain() {
            let irq = match stay.irq {
                Ticks::ZERO => Nanos::ZERO,
                irq => platform.rate().to_nanos(irq),
            };
            let outcome = IdleOutcome::Slept {
                requested: choice.requested,
                entered: choice.entered,
                residency: stay.residency,
                irq,
                wake: if stay.handler_ran {
                    WakeReason::Interrupt
                } else {
                    WakeReason::Store
                },
            };
            self.governor.reflect(&self.table, &outcome);
            let (disabled, latency_limit) = self.bounds();
            let context = IdleContext {
                latency_limit,
                disabled,
                ..moment(platform, &self.table, stay.again_at, choice.deadline)
            };
            self.governor.again(&context.with_limit_first());
        }
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

    /// The sleep itself, up to the exit stamp.
    #[inline]
    fn sleep<P: Platform>(
        &self,
        platform: &P,
        word: &WakeWord,
        choice: &Choice,
        entered_at: Ticks,
    ) -> Sleep {
        let during_poll = match choice.method {
            EntryMethod::Poll => poll(platform, word, choice.limit_at),
            EntryMethod::Halt => {
                platform.halt();
                None
            }
            EntryMethod::Mwait { hint, gate } => {
                platform.mwait(hint, gate);
                None
            }
            EntryMethod::IoRead(port) => {
                let settle = choice.flags.contains(CStateFlags::READ_PM_TIMER);
                platform.io_read(port, settle);
                None
            }
        };
        platform.recover(choice.flags);
        let first_irq = during_poll.or_else(|| platform.take_first_irq());
        let left_at = platform.now();
        Sleep {
            entered_at,
            woken_at: first_irq.unwrap_or(left_at),
            left_at,
            handler_ran: first_irq.is_some(),
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

/// What is known at this time, without limits.
fn moment<'a, P: Platform>(
    platform: &P,
    table: &'a CStateTable,
    now: Ticks,
    deadline: Option<Ticks>,
) -> IdleContext<'a> {
    let rate = platform.rate();
    IdleContext {
        table,
        sleep_length: deadline.map(|deadline| rate.to_nanos(deadline - now)),
        latency_limit: None,
        disabled: StateSet::NONE,
        now: rate.to_nanos(now),
    }
}

/// One sleep, as measured.
#[derive(Clone, Copy)]
struct Sleep {
    entered_at: Ticks,
    /// When the first handler inside the state began; the exit stamp if none did.
    woken_at: Ticks,
    left_at: Ticks,
    /// Did any handler run, inside the state or in the window after it?
    handler_ran: bool,
}

impl Sleep {
    /// The first handler inside the state.
    fn first_irq(&self) -> Option<Ticks> {
        Some(self.woken_at).filter(|&woken| woken != self.left_at)
    }

    /// Time up to the first handler inside the state.
    #[inline]
    fn residency<P: Platform>(&self, platform: &P) -> Nanos {
        platform.rate().to_nanos(self.woken_at - self.entered_at)
    }

    /// As the governor is told of it later; the next one began at this time.
    #[inline]
    fn stay(&self, residency: Nanos, again_at: Ticks) -> Stay {
        Stay {
            residency,
            irq: self.left_at - self.woken_at,
            handler_ran: self.handler_ran,
            again_at,
        }
    }

    /// Takes the interrupt that has ended the sleep, where none is taken inside; and the one that somebody owes who was told that
    /// the CPU sees no store, if the store has ended the sleep all the same: it would end the next one.
    #[inline]
    fn with_window<P: Platform>(
        self,
        platform: &P,
        choice: &Choice,
        announced: SleepState,
    ) -> Self {
        let owed = announced == SleepState::Halted && !self.handler_ran;
        if choice.method.runs_handlers() && !owed {
            return self;
        }
        platform.interrupt_window();
        let handler_ran = self.handler_ran | platform.take_first_irq().is_some();
        Self {
            handler_ran,
            ..self
        }
    }

    fn outcome<P: Platform>(&self, platform: &P, choice: &Choice, wake: WakeReason) -> IdleOutcome {
        let rate = platform.rate();
        IdleOutcome::Slept {
            requested: choice.requested,
            entered: choice.entered,
            residency: self.residency(platform),
            irq: rate.to_nanos(self.left_at - self.woken_at),
            wake,
        }
    }

    fn wake_reason(&self, events: Events, choice: &Choice) -> WakeReason {
        let reached = |time: Option<Ticks>| time.is_some_and(|time| time <= self.woken_at);
        if reached(choice.deadline) {
            WakeReason::Timer
        } else if reached(choice.limit_at) && events.difference(Events::TIMER).is_empty() {
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
