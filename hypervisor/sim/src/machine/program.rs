//! What the guests' vCPUs execute: small state machines instead of instructions.
//!
//! A program is asked what it does next whenever the last thing is done, or something interrupts its halt. It is told the
//! time, and what has come in since.

use super::load::Kind;
use crate::rng::Rng;
use std::collections::VecDeque;

/// The next thing that a vCPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Computes for so many ns.
    Run(u64),
    /// Halts until an interrupt. One that has come already ends it at once.
    Halt,
    /// Sends an interrupt to another vCPU.
    Send(u32),
    /// Sets its timer to this time.
    Timer(u64),
    /// Lets others go first.
    Yield,
}

/// What has come in for a vCPU and was not looked at yet.
#[derive(Clone, Debug, Default)]
pub struct Inbox {
    /// Its timer has expired.
    pub timer: bool,
    /// Interrupts that other vCPUs sent.
    pub ipis: u32,
    /// When each request of the device came, oldest first.
    pub requests: VecDeque<u64>,
}

impl Inbox {
    /// Is there anything?
    pub fn is_empty(&self) -> bool {
        !self.timer && self.ipis == 0 && self.requests.is_empty()
    }
}

/// A lock that four vCPUs share.
#[derive(Clone, Debug, Default)]
pub struct SharedLock {
    holder: Option<u32>,
    waiters: VecDeque<u32>,
}

/// What a program sees when it is asked.
pub struct View<'a> {
    /// The time, in ns.
    pub now: u64,
    /// The vCPU's own random numbers.
    pub rng: &'a mut Rng,
    /// What has come in. The program takes out what it looks at.
    pub inbox: &'a mut Inbox,
    /// The locks of all groups.
    pub locks: &'a mut [SharedLock],
    /// Times that the program has measured, in ns.
    pub measured: &'a mut Vec<u64>,
}

/// How long between two ticks of a periodic vCPU, in ns.
const PERIOD: u64 = 10_000_000;
/// How long, on average, between two requests to a server.
pub const REQUEST_INTERVAL: u64 = 5_000_000;
const SLOTS: u64 = 1_000;

/// A program, and where in it the vCPU is.
#[derive(Clone, Debug)]
pub struct Program {
    kind: Kind,
    me: u32,
    /// The first vCPU of its group.
    first: u32,
    /// How many are in it.
    size: u32,
    step: u8,
    /// When the next tick is, or what is measured began.
    mark: u64,
    rounds: u64,
}

impl Program {
    /// The program of vCPU `me`, one of the `size` from `first` on that belong together. Half a pair does nothing.
    pub fn new(kind: Kind, me: u32, first: u32, size: u32) -> Self {
        let alone = kind == Kind::PingPong && size < 2;
        Self {
            kind: if alone { Kind::Idle } else { kind },
            me,
            first,
            size,
            step: 0,
            mark: 0,
            rounds: 0,
        }
    }

    /// From the beginning. What others of its group wait for does not come any more.
    pub fn restart(&mut self) {
        self.step = 0;
    }

    /// What it is a program of.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The next thing to do.
    pub fn next(&mut self, view: &mut View<'_>) -> Op {
        match self.kind {
            Kind::Idle => Op::Halt,
            Kind::Batch => Op::Run(1 << 40),
            Kind::Periodic => self.periodic(view),
            Kind::Server => self.server(view),
            Kind::PingPong => self.ping_pong(view),
            Kind::Lock => self.lock(view),
            Kind::Storm => self.storm(view),
            Kind::Yield => self.yielding(view),
        }
    }

    fn go(&mut self, step: u8, op: Op) -> Op {
        self.step = step;
        op
    }

    fn periodic(&mut self, view: &mut View<'_>) -> Op {
        match self.step {
            0 => {
                self.mark = view.now + PERIOD / SLOTS * view.rng.between(1, SLOTS);
                self.go(1, Op::Timer(self.mark))
            }
            1 if view.inbox.timer => {
                view.inbox.timer = false;
                if view.now < self.mark {
                    // It has fired early, or for an older setting.
                    return Op::Timer(self.mark);
                }
                view.measured.push(view.now - self.mark);
                while self.mark <= view.now {
                    self.mark += PERIOD;
                }
                self.go(2, Op::Run(view.rng.exponential(50_000)))
            }
            2 => self.go(1, Op::Timer(self.mark)),
            _ => self.wait(view),
        }
    }

    /// Halts; what else came in is of no interest.
    fn wait(&mut self, view: &mut View<'_>) -> Op {
        *view.inbox = Inbox {
            timer: view.inbox.timer && self.kind == Kind::Periodic && self.step == 1,
            ..Inbox::default()
        };
        Op::Halt
    }

    fn server(&mut self, view: &mut View<'_>) -> Op {
        if self.step == 1
            && let Some(came) = view.inbox.requests.pop_front()
        {
            view.measured.push(view.now - came);
            self.step = 0;
        }
        if view.inbox.requests.is_empty() {
            view.inbox.timer = false;
            view.inbox.ipis = 0;
            return Op::Halt;
        }
        self.go(1, Op::Run(view.rng.exponential(20_000)))
    }

    fn ping_pong(&mut self, view: &mut View<'_>) -> Op {
        let peer = self.me ^ self.first ^ (self.first + 1);
        let begins = self.me == self.first;
        match self.step {
            // The one that begins thinks, computes and sends; the other waits for it.
            0 if begins => self.go(1, Op::Timer(view.now + view.rng.exponential(2_000_000))),
            1 if view.inbox.timer => {
                view.inbox.timer = false;
                self.mark = view.now;
                self.rounds = 3;
                self.go(3, Op::Run(view.rng.exponential(5_000)))
            }
            0 | 2 if view.inbox.ipis > 0 => {
                view.inbox.ipis = 0;
                if begins {
                    view.measured.push(view.now - self.mark);
                    self.mark = view.now;
                    self.rounds -= 1;
                    if self.rounds == 0 {
                        self.step = 0;
                        return self.ping_pong(view);
                    }
                }
                self.go(3, Op::Run(view.rng.exponential(5_000)))
            }
            3 => self.go(2, Op::Send(peer)),
            _ => {
                view.inbox.timer = false;
                view.inbox.ipis = if self.step == 1 { 0 } else { view.inbox.ipis };
                Op::Halt
            }
        }
    }

    fn lock(&mut self, view: &mut View<'_>) -> Op {
        let (me, group) = (self.me, self.first as usize / Kind::Lock.group());
        match self.step {
            0 => self.go(1, Op::Timer(view.now + view.rng.exponential(3_000_000))),
            1 if view.inbox.timer => {
                view.inbox.timer = false;
                self.mark = view.now;
                self.step = 2;
                self.lock(view)
            }
            // Wants the lock: takes it, spins once, then halts in the queue.
            2 | 3 => {
                let Some(lock) = view.locks.get_mut(group) else {
                    return Op::Halt;
                };
                if lock.holder.is_none() {
                    lock.holder = Some(me);
                    return self.hold(view);
                }
                if self.step == 2 {
                    return self.go(3, Op::Run(5_000));
                }
                lock.waiters.push_back(me);
                view.inbox.ipis = 0;
                self.go(4, Op::Halt)
            }
            4 => {
                view.inbox.ipis = 0;
                view.inbox.timer = false;
                if view
                    .locks
                    .get(group)
                    .is_some_and(|lock| lock.holder == Some(me))
                {
                    return self.hold(view);
                }
                Op::Halt
            }
            // The critical section is over: the lock goes to the one that has waited longest.
            5 => {
                self.step = 0;
                let Some(lock) = view.locks.get_mut(group) else {
                    return Op::Halt;
                };
                lock.holder = lock.waiters.pop_front();
                match lock.holder {
                    Some(next) => Op::Send(next),
                    None => self.lock(view),
                }
            }
            _ => {
                view.inbox.ipis = 0;
                Op::Halt
            }
        }
    }

    fn hold(&mut self, view: &mut View<'_>) -> Op {
        view.measured.push(view.now - self.mark);
        self.go(5, Op::Run(view.rng.exponential(30_000)))
    }

    fn storm(&mut self, view: &mut View<'_>) -> Op {
        match self.step {
            // Rests: what others send wakes it for nothing.
            0 => {
                self.rounds = view.rng.between(5, 20);
                self.go(1, Op::Timer(view.now + view.rng.exponential(40_000_000)))
            }
            1 if view.inbox.timer => {
                view.inbox.timer = false;
                self.go(2, Op::Run(view.rng.exponential(2_000)))
            }
            2 => {
                self.rounds = self.rounds.saturating_sub(1);
                if self.rounds == 0 {
                    self.step = 0;
                    return self.storm(view);
                }
                let other = view.rng.between(0, u64::from(self.size) - 1) as u32;
                let next = if view.rng.one_in(2) { 4 } else { 3 };
                self.go(next, Op::Send(self.first + other))
            }
            3 => self.go(2, Op::Run(view.rng.exponential(2_000))),
            // Halts for whatever comes next; the timer ends it at the latest.
            4 => self.go(5, Op::Timer(view.now + view.rng.exponential(200_000))),
            5 if view.inbox.timer || view.inbox.ipis > 0 => {
                view.inbox.timer = false;
                view.inbox.ipis = 0;
                self.go(2, Op::Run(view.rng.exponential(2_000)))
            }
            _ => {
                view.inbox.ipis = 0;
                Op::Halt
            }
        }
    }

    fn yielding(&mut self, view: &mut View<'_>) -> Op {
        match self.step {
            0 => {
                self.rounds = view.rng.between(1, 10);
                self.go(1, Op::Timer(view.now + view.rng.exponential(3_000_000)))
            }
            1 if view.inbox.timer => {
                view.inbox.timer = false;
                self.step = 2;
                Op::Run(view.rng.exponential(20_000))
            }
            2 => {
                self.rounds = self.rounds.saturating_sub(1);
                self.go(if self.rounds == 0 { 0 } else { 3 }, Op::Yield)
            }
            3 => self.go(2, Op::Run(view.rng.exponential(20_000))),
            _ => {
                view.inbox.ipis = 0;
                Op::Halt
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Stage {
        rng: Rng,
        inbox: Inbox,
        locks: Vec<SharedLock>,
        measured: Vec<u64>,
    }

    impl Stage {
        fn new() -> Self {
            Self {
                rng: Rng::new(1),
                inbox: Inbox::default(),
                locks: vec![SharedLock::default(); 1],
                measured: Vec::new(),
            }
        }

        fn ask(&mut self, program: &mut Program, now: u64) -> Op {
            program.next(&mut View {
                now,
                rng: &mut self.rng,
                inbox: &mut self.inbox,
                locks: &mut self.locks,
                measured: &mut self.measured,
            })
        }
    }

    #[test]
    fn a_periodic_vcpu_measures_how_late_its_ticks_are() {
        let (mut stage, mut program) = (Stage::new(), Program::new(Kind::Periodic, 0, 0, 1));
        let Op::Timer(first) = stage.ask(&mut program, 0) else {
            panic!("sets no timer");
        };
        assert_eq!(stage.ask(&mut program, 1), Op::Halt);
        stage.inbox.timer = true;
        assert!(matches!(stage.ask(&mut program, first + 700), Op::Run(_)));
        assert_eq!(stage.measured, [700]);
        assert_eq!(
            stage.ask(&mut program, first + 90_000),
            Op::Timer(first + PERIOD)
        );
    }

    #[test]
    fn a_request_that_comes_while_another_is_served_is_not_lost() {
        let (mut stage, mut program) = (Stage::new(), Program::new(Kind::Server, 0, 0, 1));
        assert_eq!(stage.ask(&mut program, 0), Op::Halt);
        stage.inbox.requests.push_back(10);
        assert!(matches!(stage.ask(&mut program, 20), Op::Run(_)));
        stage.inbox.requests.push_back(25);
        assert!(matches!(stage.ask(&mut program, 30), Op::Run(_)));
        assert_eq!(stage.ask(&mut program, 50), Op::Halt);
        assert_eq!(stage.measured, [20, 25]);
    }

    #[test]
    fn a_lock_goes_to_who_has_waited() {
        let mut stage = Stage::new();
        let mut programs = [0, 1].map(|me| Program::new(Kind::Lock, me, 0, 2));
        for program in &mut programs {
            assert!(matches!(stage.ask(program, 0), Op::Timer(_)));
            stage.inbox.timer = true;
            assert!(matches!(stage.ask(program, 10), Op::Run(_)));
        }
        // The second has spun, and waits; the first gives the lock to it.
        assert_eq!(stage.ask(&mut programs[1], 20), Op::Halt);
        assert_eq!(stage.ask(&mut programs[0], 30), Op::Send(1));
        assert!(matches!(stage.ask(&mut programs[1], 40), Op::Run(_)));
        assert_eq!(stage.measured, [0, 30]);
    }
}
