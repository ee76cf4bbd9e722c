//! A vCPU that blocks, runs its guest or moves to another CPU, against whoever kicks it.

use crate::model::check::{Check, property};
use crate::model::machine::{Cpu, How, NOTIFICATION};
use crate::model::rt;
use crate::model::wrong::{MachineMutant, is_wrong};
use lull_core::sched::unit::{Kick, RunState};
use lull_core::sync::watched::{AtomicBool, AtomicU64, Ordering};
use lull_core::units::CpuId;
use lull_core::wake::{Events, SleepState};
use std::cell::Cell;
use std::sync::Arc;

struct World {
    cpus: [Cpu; 2],
    state: RunState,
    /// The vCPU's pending interrupts.
    pending: AtomicU64,
    /// The runqueue: whether the vCPU waits in it. A scheduler's lock orders what comes before it.
    queued: AtomicBool,
    seen: Seen,
    /// The processor takes interrupts by itself, and whether it was notified of them.
    posting: bool,
    notified: AtomicBool,
}

/// Interrupts that the vCPU has looked at; how often it was woken.
#[derive(Default)]
struct Seen(Cell<u64>, Cell<u32>);

#[expect(unsafe_code, reason = "coroutines of one thread share it")]
// SAFETY: loom runs all threads of a model on one thread of the host.
unsafe impl Sync for Seen {}

impl World {
    fn new() -> Arc<Self> {
        Self::of(false)
    }

    fn of(posting: bool) -> Arc<Self> {
        let state = RunState::new();
        state.set_queued();
        state.set_running(CpuId::new(0));
        Arc::new(Self {
            cpus: [Cpu::new(), Cpu::new()],
            state,
            pending: AtomicU64::new(0),
            queued: AtomicBool::new(false),
            seen: Seen::default(),
            posting,
            notified: AtomicBool::new(false),
        })
    }

    /// Somebody has an interrupt for the vCPU.
    fn raise(&self, bit: u64) {
        self.pending.fetch_or(bit, Ordering::Relaxed);
        if self.posting {
            if self.notified.swap(true, Ordering::AcqRel) {
                return;
            }
            if let Some(cpu) = self
                .state
                .in_guest(|cpu| Some(&self.cpus[cpu.index()].word))
            {
                if !is_wrong(MachineMutant::NotificationForgotten) {
                    self.cpus[cpu.index()].interrupt(NOTIFICATION);
                }
                return;
            }
        }
        match self.state.kick() {
            Kick::Running(_) if is_wrong(MachineMutant::NotifyForgotten) => {}
            Kick::Running(cpu) => self.cpus[cpu.index()].wake(Events::NOTIFY),
            Kick::WokeBlocked => {
                self.seen.1.set(self.seen.1.get() + 1);
                self.state.set_queued();
                self.queued.swap(true, Ordering::AcqRel);
                self.cpus[1].wake(Events::RESCHED);
            }
            Kick::Pending => {}
        }
    }

    /// What the vCPU does before it enters, blocks or leaves: in this order.
    fn look(&self) {
        let pending = || self.pending.load(Ordering::Relaxed);
        let seen = if is_wrong(MachineMutant::KickTakenLate) {
            let seen = pending();
            self.state.consume_kick();
            seen
        } else {
            self.state.consume_kick();
            if self.posting {
                return self.take_posted();
            }
            pending()
        };
        self.seen.0.set(self.seen.0.get() | seen);
    }

    /// The vCPU, or the processor that runs its guest, takes what was posted.
    fn take_posted(&self) {
        let pending = || self.pending.load(Ordering::Relaxed);
        let seen = if is_wrong(MachineMutant::NotificationTakenLate) {
            let seen = pending();
            self.notified.swap(false, Ordering::AcqRel);
            seen
        } else {
            if self.notified.load(Ordering::Relaxed) {
                self.notified.swap(false, Ordering::AcqRel);
            }
            pending()
        };
        self.seen.0.set(self.seen.0.get() | seen);
    }

    /// The vCPU runs its guest on a CPU until something ends that; it looks, and enters again, until nothing does.
    fn run_guest(&self, cpu: usize) {
        loop {
            self.look();
            let events = if self.posting {
                self.cpus[cpu].enter_posted(|| self.take_posted())
            } else {
                self.cpus[cpu].idle_once(How::Guest)
            };
            if events.is_none() {
                return;
            }
        }
    }

    /// A CPU that is idle, and takes the vCPU if it finds it.
    fn idle(&self, cpu: usize) {
        loop {
            if self.queued.swap(false, Ordering::AcqRel) {
                self.state.set_running(CpuId::new(cpu as u32));
                self.run_guest(cpu);
                return;
            }
            if self.cpus[cpu].idle_once(How::Halt).is_none() {
                return;
            }
        }
    }

    /// After all have ended: what is on its way arrives, and the vCPU looks.
    fn judge(&self, raised: u64) {
        for cpu in 0..2 {
            for _ in 0..4 {
                if self.cpus[cpu].settle().is_none() {
                    break;
                }
                if self.queued.swap(false, Ordering::AcqRel) {
                    self.state.set_running(CpuId::new(cpu as u32));
                }
                let here = CpuId::new(cpu as u32);
                if self.state.phase() == lull_core::sched::unit::Phase::Running(here) {
                    self.run_guest(cpu);
                }
            }
        }
        let seen = self.seen.0.get();
        property!(
            seen == raised,
            "no kick is lost",
            "raised {raised:#b}, seen {seen:#b}: {:?}",
            self.state
        );
        property!(
            self.seen.1.get() <= 1,
            "one waker",
            "woken {} times",
            self.seen.1.get()
        );
    }
}

fn kickers(world: &Arc<World>, bits: &'static [u64]) -> Vec<rt::JoinHandle> {
    bits.iter()
        .map(|&bit| {
            let world = Arc::clone(world);
            rt::spawn(move || world.raise(bit))
        })
        .collect()
}

/// It halts, and is woken on the other CPU.
fn block(world: Arc<World>, then: How, bits: &'static [u64]) {
    let threads = kickers(&world, bits);
    loop {
        world.look();
        if world.state.try_block(CpuId::new(0)).is_ok() {
            break;
        }
    }
    world.cpus[0].idle_once(then);
    for thread in threads {
        thread.join();
    }
    world.idle(1);
    world.judge(bits.iter().sum());
}

/// It runs its guest.
fn guest(world: Arc<World>, bits: &'static [u64]) {
    let threads = kickers(&world, bits);
    world.run_guest(0);
    for thread in threads {
        thread.join();
    }
    world.judge(bits.iter().sum());
}

/// It runs its guest, and what it answers there is something for its own CPU to do: that post is one without an interrupt.
fn answered(bits: &'static [u64]) {
    let world = World::new();
    let threads = kickers(&world, bits);
    world.look();
    let cpu = &world.cpus[0];
    if cpu
        .enter_and_answer(|| cpu.word.post_local(Events::RESCHED))
        .is_some()
    {
        world.run_guest(0);
    }
    for thread in threads {
        thread.join();
    }
    world.judge(bits.iter().sum());
}

/// It leaves its guest once, for nothing, and halts.
fn leave(bits: &'static [u64]) {
    let world = World::of(true);
    let threads = kickers(&world, bits);
    let cpu = &world.cpus[0];
    world.look();
    if cpu.word.publish(SleepState::Guest).is_ok() {
        cpu.word.leave_guest();
    }
    cpu.word.take();
    loop {
        world.look();
        if world.state.try_block(CpuId::new(0)).is_ok() {
            break;
        }
    }
    for thread in threads {
        thread.join();
    }
    world.idle(1);
    world.judge(bits.iter().sum());
}

/// It is preempted after it has looked, and another CPU takes it.
fn migrate(bits: &'static [u64]) {
    let world = World::new();
    let threads = kickers(&world, bits);
    let other = {
        let world = Arc::clone(&world);
        rt::spawn(move || world.idle(1))
    };
    world.look();
    world.state.set_queued();
    world.queued.swap(true, Ordering::AcqRel);
    world.cpus[1].wake(Events::RESCHED);
    world.cpus[0].idle_once(How::Halt);
    for thread in threads {
        thread.join();
    }
    other.join();
    world.judge(bits.iter().sum());
}

pub fn all() -> Vec<Check> {
    vec![
        Check::new("vcpu/block").variant(|| block(World::new(), How::Halt, &[1, 2])),
        Check::new("vcpu/guest").variant(|| guest(World::new(), &[1, 2])),
        Check::new("vcpu/answered").variant(|| answered(&[1, 2])),
        Check::new("vcpu/migrate").variant(|| migrate(&[1])),
        Check::new("vcpu/posted").variant(|| guest(World::of(true), &[1, 2])),
        Check::new("vcpu/posted-and-left").variant(|| leave(&[1])),
        // Another guest runs where it has left.
        Check::new("vcpu/posted-elsewhere").variant(|| block(World::of(true), How::Guest, &[1])),
    ]
}
