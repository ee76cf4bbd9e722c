//! The writer's side: one CPU writes down what it does.

use super::fault::{Fault, FaultCell, Interval};
use super::snapshot::{Activity, Snapshot, StateTimes};
use crate::cstate::{Fit, MAX_STATES, StateId};
use crate::platform::Clock;
use crate::sync::SeqCount;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::Ticks;

/// The time account of one CPU.
///
/// All methods but the readers are for the own CPU only, with interrupts off, with stamps that never go back.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CpuAccount {
    seq: SeqCount,
    /// What the CPU does since `since`, as [`Activity::to_bits`].
    activity: Cell,
    since: Cell,
    /// Where the open stay in a C-state has ended, while the CPU does something short before it is accounted for; 0 if it goes on.
    left: Cell,
    /// The first stamp of all.
    first: Cell,
    /// Where the open C0 interval began. Meaningless while the CPU sleeps.
    c0_since: Cell,
    c0: Cell,
    guest: Cell,
    hypervisor: Cell,
    aborted: Cell,
    spurious: Cell,
    states: [StateCells; MAX_STATES],
    fault: FaultCell,
}

#[derive(Debug, Default)]
struct StateCells {
    usage: Cell,
    residency: Cell,
    irq: Cell,
    above: Cell,
    below: Cell,
    rejected: Cell,
    /// The shortest stay, inverted: so zero is "none yet".
    not_shortest: Cell,
    longest: Cell,
}

/// A counter with one writer. Ordered by the sequence counter around it.
#[derive(Debug, Default)]
struct Cell(AtomicU64);

impl Cell {
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Needs no locked instruction: nobody else writes.
    fn add(&self, amount: u64) {
        self.set(self.get().wrapping_add(amount));
    }

    fn ticks(&self) -> Ticks {
        Ticks::new(self.get())
    }
}

impl CpuAccount {
    /// An account that has not begun: it shows zeros until [`start`](Self::start).
    pub fn new() -> Self {
        Self::default()
    }

    /// The first stamp: the CPU is up, and runs hypervisor code.
    pub fn start(&self, now: Ticks) {
        self.seq.write(|| {
            self.first.set(now.get());
            self.c0_since.set(now.get());
            self.begin(Activity::Hypervisor, now);
        });
    }

    /// The CPU is about to enter a guest.
    pub fn enter_guest(&self, now: Ticks) {
        self.seq.write(|| {
            self.close(
                Interval::Hypervisor,
                &self.hypervisor,
                self.since.ticks(),
                now,
            );
            self.begin(Activity::Guest, now);
        });
    }

    /// The CPU is back from a guest.
    pub fn leave_guest(&self, now: Ticks) {
        self.seq.write(|| {
            self.close(Interval::Guest, &self.guest, self.since.ticks(), now);
            self.begin(Activity::Hypervisor, now);
        });
    }

    /// The CPU is about to sleep in `state`. Nothing can stop it any more: an aborted attempt is never entered here.
    pub fn enter_idle(&self, state: StateId, now: Ticks) {
        self.seq.write(|| {
            self.close(Interval::C0, &self.c0, self.c0_since.ticks(), now);
            self.close(
                Interval::Hypervisor,
                &self.hypervisor,
                self.since.ticks(),
                now,
            );
            if let Some(cells) = self.states.get(state.index()) {
                cells.usage.add(1);
            }
            self.begin(Activity::Idle(state), now);
        });
    }

    /// The CPU is back from the state it entered, and has something to do before it says more, by [`leave_idle`](Self::leave_idle)
    /// or [`resume_idle`](Self::resume_idle). One store: readers count the time from here on as C0.
    #[inline]
    pub fn pause_idle(&self, now: Ticks) {
        self.left.set(now.get());
    }

    /// The CPU is back from the state it entered. `first_irq` is when the first handler inside the state began.
    pub fn leave_idle(&self, now: Ticks, first_irq: Option<Ticks>, fit: Fit) {
        self.seq.write(|| {
            self.end_stay(now, first_irq, fit);
            self.c0_since.set(now.get());
            self.begin(Activity::Hypervisor, now);
        });
    }

    /// The CPU was back at `left`, and is about to sleep in the same state again, at `now`: as [`leave_idle`](Self::leave_idle) and
    /// [`enter_idle`](Self::enter_idle).
    pub fn resume_idle(&self, left: Ticks, first_irq: Option<Ticks>, fit: Fit, now: Ticks) {
        self.seq.write(|| {
            if let Some(cells) = self.end_stay(left, first_irq, fit) {
                cells.usage.add(1);
            }
            self.close(Interval::C0, &self.c0, left, now);
            self.close(Interval::Hypervisor, &self.hypervisor, left, now);
            self.since.set(now.get());
        });
    }

    #[inline]
    fn end_stay(&self, now: Ticks, first_irq: Option<Ticks>, fit: Fit) -> Option<&StateCells> {
        self.left.set(0);
        let Activity::Idle(state) = self.activity() else {
            return None;
        };
        let cells = self.states.get(state.index())?;
        let entered = self.since.ticks();
        // A handler's stamp outside of the sleep would be a fault of the platform; it must not unbalance a row.
        let split = first_irq.unwrap_or(now).clamp(entered, now.max(entered));
        self.close(Interval::Residency, &cells.residency, entered, split);
        cells.note_stay(split - entered);
        self.close(Interval::Irq, &cells.irq, split, now);
        match fit {
            Fit::Right => {}
            Fit::TooDeep => cells.above.add(1),
            Fit::TooShallow => cells.below.add(1),
        }
        Some(cells)
    }

    /// An attempt to sleep ended before the sleep, because an event was pending. It counts here and nowhere else.
    pub fn count_aborted(&self) {
        self.seq.write(|| self.aborted.add(1));
    }

    /// The last sleep ended, and nobody had asked for anything.
    pub fn count_spurious(&self) {
        self.seq.write(|| self.spurious.add(1));
    }

    /// `state` was selected, and must not be entered just now: another was.
    pub fn count_rejected(&self, state: StateId) {
        self.seq.write(|| {
            if let Some(cells) = self.states.get(state.index()) {
                cells.rejected.add(1);
            }
        });
    }

    /// Drops or doubles the next interval of this kind that is at least so long. For showing that the check notices.
    pub fn inject(&self, fault: Fault, interval: Interval, at_least: Ticks) {
        self.fault.arm(fault, interval, at_least);
    }

    /// Is the CPU in a C-state, or about to execute the instruction that enters it? A glance, for tests: it may be over by now.
    #[inline]
    pub fn is_asleep(&self) -> bool {
        matches!(self.activity(), Activity::Idle(_)) && self.left.get() == 0
    }

    /// When it last came out of a C-state, while it has not gone into the next. For its own CPU.
    #[inline]
    pub fn last_exit(&self) -> Ticks {
        self.c0_since.ticks()
    }

    /// One consistent row, with the open interval up to now. Waits for no more than one short write of the owner.
    pub fn snapshot(&self, clock: &impl Clock) -> Snapshot {
        // The time is read inside, so that it belongs to the very state that was copied.
        self.seq.read(|| self.copy(clock))
    }

    /// The same in one attempt: `None` if the owner was just writing. For NMI handlers and dumps of a stopped machine.
    pub fn try_snapshot(&self, clock: &impl Clock) -> Option<Snapshot> {
        self.seq.try_read(|| self.copy(clock))
    }

    /// What the CPU does now: one word, readable from any CPU without waking it.
    pub fn activity(&self) -> Activity {
        Activity::from_bits(self.activity.get())
    }

    fn begin(&self, activity: Activity, now: Ticks) {
        self.activity.set(activity.to_bits());
        self.since.set(now.get());
    }

    fn close(&self, interval: Interval, sum: &Cell, from: Ticks, to: Ticks) {
        sum.add(self.fault.apply(interval, to - from).get());
    }

    fn copy(&self, clock: &impl Clock) -> Snapshot {
        let mut row = Snapshot {
            activity: self.activity(),
            elapsed: Ticks::ZERO,
            c0: self.c0.ticks(),
            guest: self.guest.ticks(),
            hypervisor: self.hypervisor.ticks(),
            aborted: self.aborted.get(),
            spurious: self.spurious.get(),
            now: Ticks::ZERO,
            states: core::array::from_fn(|index| self.states[index].copy()),
        };
        let (first, since, c0_since) = (
            self.first.ticks(),
            self.since.ticks(),
            self.c0_since.ticks(),
        );
        // Another CPU's clock may be a few ticks behind the stamp that it reads: never before it.
        row.now = clock.now().max(since);
        let left = Some(self.left.ticks()).filter(|&left| left != Ticks::ZERO);
        row.add_open_interval(first, since, c0_since, left);
        row
    }
}

impl StateCells {
    fn note_stay(&self, stay: Ticks) {
        self.longest.set(self.longest.get().max(stay.get()));
        self.not_shortest
            .set(self.not_shortest.get().max(!stay.get()));
    }

    fn copy(&self) -> StateTimes {
        StateTimes {
            usage: self.usage.get(),
            residency: self.residency.ticks(),
            irq: self.irq.ticks(),
            above: self.above.get(),
            below: self.below.get(),
            rejected: self.rejected.get(),
            shortest: Some(!self.not_shortest.get())
                .filter(|shortest| *shortest != u64::MAX)
                .map(Ticks::new),
            longest: self.longest.ticks(),
        }
    }
}
