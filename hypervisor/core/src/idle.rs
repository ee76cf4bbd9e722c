//! One idle entry: from "nothing to run" to "awake, and accounted".
//!
//! Called by the dispatch loop of a CPU that has nothing to run, with interrupts off; returns with interrupts off, the
//! wake word AWAKE, and every event taken. The order of the steps is what makes it right, and each is where it is for
//! a reason:
//!
//! 1. An event that is pending already, or a deadline that has passed, is not slept on.
//! 2. The governor chooses, then the one-shot is armed for the next deadline (or cancelled).
//! 3. WATCHING or HALTED is published by the compare-and-swap that fails if an event came meanwhile. From here on a
//!    waker knows what it owes. For HLT this is the last check: interrupts stay off until the STI directly before it.
//! 4. For MWAIT, the monitor is armed **after** that on the same word, and the word is read once more: an event posted
//!    before the arming is seen by the read, one posted after it is seen by the monitor.
//! 5. The entry stamp, the sleep, the exit stamp, the account. Interrupts are opened inside of the sleep only, never
//!    before step 4: a handler that ran there would post an event that nobody looks for.
//! 6. An interrupt that only ended the sleep is taken, the word is swapped back to AWAKE, and the governor learns.
//!
//! An attempt that ends in step 1, 3 or 4 is *aborted*: it is counted as that and as nothing else.

use crate::cstate::{CStateTable, EntryMethod};
use crate::governor::{Governor, IdleContext, IdleOutcome, WakeReason};
use crate::platform::{IrqGate, Platform};
use crate::residency::CpuAccount;
use crate::units::{Nanos, Ticks};
use crate::wake::{Events, SleepState, WakeWord};

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
    latency_limit: Option<Nanos>,
}

impl<G: Governor> CpuIdle<G> {
    /// The idle side of a CPU with these states.
    pub fn new(table: CStateTable, governor: G, monitor: MonitorTrust) -> Self {
        Self {
            table,
            governor,
            monitor,
            latency_limit: None,
        }
    }

    /// The CPU's states.
    pub fn table(&self) -> &CStateTable {
        &self.table
    }

    /// The CPU's governor.
    pub fn governor(&self) -> &G {
        &self.governor
    }

    /// Limits the exit latency of what is chosen from now on; `None` for no limit.
    pub fn set_latency_limit(&mut self, limit: Option<Nanos>) {
        self.latency_limit = limit;
    }

    /// Sleeps once, at most until `next_deadline`, and says what woke the CPU.
    ///
    /// `word` and `account` are the own CPU's. The caller handles the events, and comes back if there is still nothing to run.
    pub fn idle_once<P: Platform>(
        &mut self,
        platform: &P,
        word: &WakeWord,
        account: &CpuAccount,
        next_deadline: Option<Ticks>,
    ) -> IdleReport {
        if word.is_pending() {
            return self.aborted(account, word.take());
        }
        let now = platform.now();
        if next_deadline.is_some_and(|deadline| deadline <= now) {
            return self.aborted(account, word.take() | Events::TIMER);
        }

        let context = IdleContext {
            table: &self.table,
            sleep_length: next_deadline.map(|deadline| platform.rate().to_nanos(deadline - now)),
            latency_limit: self.latency_limit,
        };
        let selection = self.governor.select(&context);
        match next_deadline {
            Some(deadline) => platform.arm(deadline),
            None => platform.cancel(),
        }

        let requested = selection.state;
        let method = self.table.state(requested).method;
        if word.publish(self.announced(method)).is_err() || !armed(platform, word, method) {
            return self.aborted(account, word.take());
        }

        platform.take_first_irq(); // Forget the handlers that ran before this sleep.
        let entered_at = platform.now();
        account.enter_idle(requested, entered_at);
        let poll_limit = selection
            .poll_limit
            .map(|limit| entered_at + platform.rate().ticks(limit));
        let first_irq = sleep(platform, word, method, poll_limit);
        let left_at = platform.now();
        let woken_at = first_irq.unwrap_or(left_at);
        let residency = platform.rate().to_nanos(woken_at - entered_at);
        account.leave_idle(left_at, first_irq, self.table.fit(requested, residency));

        let mut handler_ran = first_irq.is_some();
        if let EntryMethod::Mwait {
            gate: IrqGate::Masked,
            ..
        } = method
        {
            platform.interrupt_window();
            handler_ran |= platform.take_first_irq().is_some();
        }
        let events = word.take();

        let reached = |time: Option<Ticks>| time.is_some_and(|time| time <= woken_at);
        let wake = if reached(next_deadline) {
            WakeReason::Timer
        } else if handler_ran {
            WakeReason::Interrupt
        } else if !events.is_empty() {
            WakeReason::Store
        } else if method == EntryMethod::Poll && reached(poll_limit) {
            WakeReason::PollLimit
        } else {
            account.count_spurious();
            WakeReason::Spurious
        };
        self.report(
            events,
            IdleOutcome::Slept {
                requested,
                entered: requested,
                residency,
                irq: platform.rate().to_nanos(left_at - woken_at),
                wake,
            },
        )
    }

    /// What wakers are told while the CPU is in a state that is entered in this way.
    const fn announced(&self, method: EntryMethod) -> SleepState {
        match (method, self.monitor) {
            // A poll reads the word itself, and needs no monitor.
            (EntryMethod::Poll, _) | (EntryMethod::Mwait { .. }, MonitorTrust::SeesStores) => {
                SleepState::Watching
            }
            _ => SleepState::Halted,
        }
    }

    fn aborted(&mut self, account: &CpuAccount, events: Events) -> IdleReport {
        account.count_aborted();
        self.report(events, IdleOutcome::Aborted)
    }

    fn report(&mut self, events: Events, outcome: IdleOutcome) -> IdleReport {
        self.governor.reflect(&self.table, &outcome);
        IdleReport { events, outcome }
    }
}

/// Arms the monitor where the method has one. `false` if an event came before it was armed.
fn armed(platform: &impl Platform, word: &WakeWord, method: EntryMethod) -> bool {
    if let EntryMethod::Mwait { .. } = method {
        platform.arm_monitor(word);
        return !word.is_pending();
    }
    true
}

/// Sleeps. When the first handler ran inside the state, if one did.
fn sleep(
    platform: &impl Platform,
    word: &WakeWord,
    method: EntryMethod,
    poll_until: Option<Ticks>,
) -> Option<Ticks> {
    match method {
        EntryMethod::Poll => return poll(platform, word, poll_until),
        EntryMethod::Halt => platform.halt(),
        EntryMethod::Mwait { hint, gate } => platform.mwait(hint, gate),
        EntryMethod::IoRead(port) => platform.io_read(port),
    }
    platform.take_first_irq()
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

#[cfg(all(test, not(loom)))]
mod tests;
