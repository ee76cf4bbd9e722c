//! One sleeper, and whoever wakes it.

use crate::model::check::{Check, property};
use crate::model::machine::{Cpu, EVENT_CHECK, How, TIMER};
use crate::model::rt;
use lull_core::sync::watched::{AtomicUsize, Ordering};
use lull_core::units::CpuId;
use lull_core::wake::{Batch, Events, Origin};
use std::cell::Cell;
use std::sync::Arc;

/// What a waker does.
#[derive(Clone, Copy, Debug)]
pub enum Waker {
    /// Posts.
    Posts(Events),
    /// Posts as one of many, and sends the interrupts.
    Batch(Events),
    /// Posts as one of many, and is held up for ever before the interrupts.
    StalledBatch(Events),
    /// The timer interrupt.
    Timer,
}

impl Waker {
    const fn events(self) -> Events {
        match self {
            Self::Posts(events) | Self::Batch(events) | Self::StalledBatch(events) => events,
            Self::Timer => Events::TIMER,
        }
    }

    /// May its event be left, if nobody else posts after it?
    const fn is_stalled(self) -> bool {
        matches!(self, Self::StalledBatch(_))
    }
}

/// A sleeper with two wakers.
pub struct World {
    pub cpu: Cpu,
    wakers: Vec<Waker>,
    /// What each waker has to say: written before its post, read after the event was taken.
    data: Vec<AtomicUsize>,
    taken: Handled,
    heard: Heard,
}

/// Whose data the sleeper has seen, a bit each.
#[derive(Default)]
struct Heard(Cell<u32>);

#[expect(unsafe_code, reason = "coroutines of one thread share it")]
// SAFETY: loom runs all threads of a model on one thread of the host.
unsafe impl Sync for Heard {}

/// How often each event was taken, by the sleeper or after all have ended.
#[derive(Default)]
struct Handled(Cell<[u32; 16]>);

#[expect(unsafe_code, reason = "coroutines of one thread share it")]
// SAFETY: loom runs all threads of a model on one thread of the host.
unsafe impl Sync for Handled {}

impl World {
    pub fn new(cpu: Cpu, wakers: &[Waker]) -> Arc<Self> {
        Arc::new(Self {
            cpu,
            wakers: wakers.to_vec(),
            data: wakers.iter().map(|_| AtomicUsize::new(0)).collect(),
            taken: Handled::default(),
            heard: Heard::default(),
        })
    }

    pub fn spawn_wakers(self: &Arc<Self>) -> Vec<rt::JoinHandle> {
        (0..self.wakers.len())
            .map(|index| {
                let world = Arc::clone(self);
                rt::spawn(move || world.wake(index))
            })
            .collect()
    }

    fn wake(&self, index: usize) {
        self.data[index].store(1, Ordering::Relaxed);
        match self.wakers[index] {
            Waker::Posts(events) => self.cpu.wake(events),
            Waker::Timer => self.cpu.interrupt(TIMER),
            Waker::Batch(events) => {
                let target = CpuId::new(0);
                let mut batch = Batch::new();
                let _ = batch.post(target, &self.cpu.word, events, Origin::NOBODY);
                let due = batch.due(|_| Some(&self.cpu.word));
                if due.contains(target) {
                    self.cpu.interrupt(EVENT_CHECK);
                }
            }
            Waker::StalledBatch(events) => {
                let mut batch = Batch::new();
                let _ = batch.post(CpuId::new(0), &self.cpu.word, events, Origin::NOBODY);
            }
        }
    }

    /// The sleeper: until it has taken as many events as there are, or sleeps on.
    pub fn sleep(&self, plan: &[How], also: Events) {
        let wanted = self
            .wakers
            .iter()
            .fold(also, |all, waker| all | waker.events());
        let mut taken = Events::empty();
        let mut turn = 0;
        while !taken.contains(wanted) {
            let how = plan[turn.min(plan.len() - 1)];
            let Some(events) = self.cpu.idle_once(how) else {
                return;
            };
            self.handle(events);
            taken |= events;
            turn += 1;
        }
    }

    fn handle(&self, events: Events) {
        let mut taken = self.taken.0.get();
        for event in events.iter() {
            taken[event.bits().trailing_zeros() as usize] += 1;
            let sayers = self
                .wakers
                .iter()
                .enumerate()
                .filter(|(_, waker)| waker.events() == event);
            let (mut all, mut heard) = (0, 0);
            for (index, waker) in sayers {
                all += 1;
                // The timer is a device: it has nothing to say.
                let hears =
                    matches!(waker, Waker::Timer) || self.data[index].load(Ordering::Relaxed) == 1;
                self.heard
                    .0
                    .set(self.heard.0.get() | u32::from(hears) << index);
                heard += u32::from(hears);
            }
            property!(
                heard > 0 || all == 0,
                "data with the event",
                "{event:?} came without what was written before it"
            );
        }
        self.taken.0.set(taken);
    }

    /// After all have ended: nothing is lost, nothing came that was not sent.
    pub fn judge(&self, plan: &[How], also: Events) {
        let stalled = self.wakers.iter().any(|waker| waker.is_stalled());
        if stalled && self.cpu.is_asleep() && !self.other_has_posted_last() {
            return;
        }
        for _ in 0..8 {
            let Some(events) = self.cpu.settle() else {
                break;
            };
            self.handle(events);
            // Back to sleep: what came meanwhile must end that, too.
            if let Some(events) = self.cpu.idle_once(plan[plan.len() - 1]) {
                self.handle(events);
            }
        }
        let all = (1 << self.wakers.len()) - 1;
        property!(
            self.heard.0.get() == all,
            "no event is dropped",
            "of {:?}, only {:#b} were heard",
            self.wakers,
            self.heard.0.get()
        );
        let taken = self.taken.0.get();
        let sent = self
            .wakers
            .iter()
            .map(|waker| waker.events())
            .chain(also.iter());
        for event in sent {
            let times = taken[event.bits().trailing_zeros() as usize];
            let posts = self
                .wakers
                .iter()
                .filter(|waker| waker.events() == event)
                .count()
                .max(1) as u32;
            property!(
                times > 0,
                "no event is dropped",
                "{event:?} was never taken"
            );
            property!(
                times <= posts,
                "no event is taken twice",
                "{event:?} was posted {posts} times, and taken {times} times"
            );
        }
    }

    /// With a batch that is held up: has the other posted an event that is pending now?
    fn other_has_posted_last(&self) -> bool {
        let others = self
            .wakers
            .iter()
            .filter(|waker| !waker.is_stalled())
            .fold(Events::empty(), |all, waker| all | waker.events());
        self.cpu.word.pending().intersects(others)
    }
}

fn model(cpu: Cpu, wakers: &[Waker], plan: &[How]) {
    let world = World::new(cpu, wakers);
    let threads = world.spawn_wakers();
    world.sleep(plan, Events::empty());
    for thread in threads {
        thread.join();
    }
    world.judge(plan, Events::empty());
}

fn check(name: &str, wakers: &'static [Waker], plan: &'static [How]) -> Check {
    (0..2).fold(Check::new(name), |check, spurious| {
        check.variant(move || {
            model(Cpu::new().wakes_for_nothing(spurious), wakers, plan);
        })
    })
}

fn name_of(how: How) -> &'static str {
    match how {
        How::Masked => "masked",
        How::Open => "open",
        How::Halt => "halt",
        How::Guest => "guest",
    }
}

const fn plan_of(how: How) -> &'static [How] {
    match how {
        How::Masked => &[How::Masked],
        How::Open => &[How::Open],
        How::Halt => &[How::Halt],
        How::Guest => &[How::Guest],
    }
}

/// An AP that waits for its release has no wake word: only the interrupt, and what was stored before it.
fn release() {
    let cpu = Arc::new((Cpu::new(), AtomicUsize::new(0)));
    let sender = {
        let cpu = Arc::clone(&cpu);
        rt::spawn(move || {
            cpu.1.store(1, Ordering::Relaxed);
            cpu.0.interrupt(EVENT_CHECK);
        })
    };
    let released = cpu.0.take_interrupts();
    let seen = cpu.1.load(Ordering::Relaxed);
    sender.join();
    property!(
        !released || seen == 1,
        "stores before the interrupt",
        "the interrupt came before what was stored before it"
    );
}

pub fn all() -> Vec<Check> {
    use Waker::{Batch, Posts, StalledBatch, Timer};
    let mut checks = vec![Check::new("ipi/release").variant(release)];
    for how in How::ALL {
        let (name, plan) = (name_of(how), plan_of(how));
        checks.push(check(
            &format!("wake/two-wakers-{name}"),
            &[Posts(Events::RESCHED), Posts(Events::CALL)],
            plan,
        ));
        checks.push(check(
            &format!("wake/same-event-{name}"),
            &[Posts(Events::CALL), Posts(Events::CALL)],
            plan,
        ));
        checks.push(check(
            &format!("wake/timer-{name}"),
            &[Timer, Posts(Events::RESCHED)],
            plan,
        ));
        checks.push(check(
            &format!("wake/batch-{name}"),
            &[Batch(Events::CALL), Posts(Events::RESCHED)],
            plan,
        ));
    }
    checks.push(check(
        "wake/mwait-then-hlt",
        &[Posts(Events::RESCHED), Posts(Events::CALL)],
        &[How::Masked, How::Halt],
    ));
    checks.push(check(
        "wake/hlt-then-mwait-open",
        &[Posts(Events::RESCHED), Timer],
        &[How::Halt, How::Open],
    ));
    checks.push(check(
        "wake/two-batches",
        &[Batch(Events::CALL), Batch(Events::CALL)],
        &[How::Halt],
    ));
    checks.push(check(
        "wake/stalled-batch",
        &[StalledBatch(Events::CALL), Posts(Events::RESCHED)],
        &[How::Halt],
    ));
    checks
}
