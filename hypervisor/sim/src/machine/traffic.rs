//! Calls, posts and NMIs between CPUs, at random, and the books that show that each was answered for.
//!
//! Whatever a CPU does to others, it does when its probe timer expires, as the image does: single calls, calls to some and to all,
//! awaited or not; posts, one by one and in batches; going offline and coming back. NMIs come from outside, at any time, and
//! post from their handlers. The functions that are called make calls themselves.
//!
//! Kept apart from the code under test: each call is a ticket, with the CPUs that were asked, those where it ran, and those that the
//! caller was told of. A console event is owed from its post until the handler is called, and no CPU may sleep with one that it has taken.

use super::board::{Board, Sim};
use super::faults::Broken;
use super::fiber;
use super::violation::Rule;
use crate::rng::Rng;
use lull_core::call::{CallError, CallHost, CallTable, Errand, Wait};
use lull_core::dispatch::Pcpu;
use lull_core::platform::Clock;
use lull_core::sched::Scheduler;
use lull_core::units::{CpuId, CpuSet, Ticks, VcpuId};
use lull_core::wake::{Events, SleepState, WokenHow};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;
use std::rc::Rc;

/// How long, on average, between two things that one CPU does, in ns.
const INTERVAL: u64 = 150_000;
/// How long, on average, between two NMIs of the machine, in ns, divided by the CPUs.
const NMI_INTERVAL: u64 = 2_000_000;
/// Nobody waits longer for a call, in ns.
const LONGEST_WAIT: u64 = 2_000_000;

/// A call, as it travels.
#[derive(Clone, Copy)]
struct Ticket {
    number: u64,
    /// It makes no calls of its own.
    last: bool,
}

impl Errand for Ticket {
    fn to_words(self) -> [u64; 2] {
        [self.number, u64::from(self.last) | !self.number << 1]
    }

    fn from_words([number, check]: [u64; 2]) -> Self {
        // Words of two different calls are no ticket that anybody has given out.
        let number = if check >> 1 == !number << 1 >> 1 {
            number
        } else {
            u64::MAX
        };
        Self {
            number,
            last: check & 1 != 0,
        }
    }
}

/// A call that has not been answered for yet.
struct Call {
    asked: CpuSet,
    ran: CpuSet,
    /// Where it runs, as the caller was told.
    reached: Option<CpuSet>,
}

#[derive(Clone, Default)]
struct Cpu {
    offline: bool,
    probe_at: u64,
    waits_since: Option<u64>,
    /// Console events that were posted, and calls of the handler.
    posted: u64,
    handled: u64,
    /// One was posted, and the handler has not been called since.
    owed: bool,
    /// Sleeps that were ended by what has no books: whatever comes from outside.
    woken_from_outside: u64,
}

struct Book {
    rng: Rng,
    next: u64,
    calls: BTreeMap<u64, Call>,
    cpus: Vec<Cpu>,
    totals: Totals,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Calls that were made, by functions of other calls, too.
    pub calls: u64,
    /// Functions that were run, on each CPU of a call.
    pub runs: u64,
    /// Calls that were refused: the target was offline, or the caller's slots were on their way.
    pub refused: u64,
    /// Posts, apart from those of calls.
    pub posts: u64,
    /// NMIs.
    pub nmis: u64,
    /// Times that a CPU went offline.
    pub offline: u64,
    /// Interrupts that posts came to.
    pub ipis: u64,
    /// Wakes that the store alone made.
    pub by_store: u64,
}

impl AddAssign for Totals {
    fn add_assign(&mut self, more: Self) {
        self.calls += more.calls;
        self.runs += more.runs;
        self.refused += more.refused;
        self.posts += more.posts;
        self.nmis += more.nmis;
        self.offline += more.offline;
        self.ipis += more.ipis;
        self.by_store += more.by_store;
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} calls ran {} functions on others or the caller ({} calls refused), {} other posts, {} NMIs, {} times offline: \
             {} interrupts, {} wakes by the store alone",
            self.calls,
            self.runs,
            self.refused,
            self.posts,
            self.nmis,
            self.offline,
            self.ipis,
            self.by_store
        )
    }
}

/// Who does all that.
pub struct Traffic<S: Scheduler> {
    machine: Rc<Sim<S>>,
    board: Rc<Board<S>>,
    table: CallTable<Ticket>,
    book: RefCell<Book>,
}

impl<S: Scheduler> Traffic<S> {
    /// Nothing is on its way.
    pub fn new(machine: Rc<Sim<S>>, board: Rc<Board<S>>, seed: u64) -> Self {
        let cpus = machine.pcpus().count();
        Self {
            table: CallTable::new(cpus),
            book: RefCell::new(Book {
                rng: Rng::new(seed ^ 0x7ca1_1ed5),
                next: 0,
                calls: BTreeMap::new(),
                cpus: vec![Cpu::default(); cpus],
                totals: Totals::default(),
            }),
            machine,
            board,
        }
    }

    /// This CPU takes part from now on. Before its dispatch loop.
    pub fn begin(&self) {
        self.table.open(self.cpu());
        self.next_probe();
    }

    /// This CPU's dispatch loop has ended.
    pub fn end(&self) {
        self.table.close(self);
    }

    /// When the next NMI comes, after `now`, and to whom.
    pub fn next_nmi(&self, now: u64) -> (u64, u32) {
        let mut book = self.book.borrow_mut();
        let cpus = book.cpus.len() as u64;
        let after = book.rng.exponential(NMI_INTERVAL / cpus);
        (now + after, book.rng.between(0, cpus - 1) as u32)
    }

    /// Something comes from outside. Which CPUs it may wake.
    pub fn outside_begins(&self) -> Vec<CpuId> {
        let asleep = |pcpu: &Pcpu| {
            let state = pcpu.word.state();
            matches!(state, SleepState::Watching | SleepState::Halted) && !pcpu.word.is_pending()
        };
        let cpus = self.machine.pcpus();
        cpus.filter(|(_, pcpu)| asleep(pcpu))
            .map(|(cpu, _)| cpu)
            .collect()
    }

    /// It has come. Those that it has woken, of `asleep`, have nobody to name.
    pub fn outside_ends(&self, asleep: Vec<CpuId>) {
        for cpu in asleep {
            let pcpu = self.machine.pcpu(cpu);
            if pcpu.is_some_and(|pcpu| pcpu.word.is_pending()) {
                self.with(cpu, |own| own.woken_from_outside += 1);
            }
        }
    }

    /// The handler of an NMI runs on `cpu`: it posts to itself, or to another.
    pub fn nmi(&self, cpu: u32) {
        let target = {
            let mut book = self.book.borrow_mut();
            book.totals.nmis += 1;
            let last = book.cpus.len() as u64 - 1;
            if book.rng.one_in(2) {
                cpu
            } else {
                book.rng.between(0, last) as u32
            }
        };
        self.owes_console(target);
        self.board.nmi(cpu, target, Events::CONSOLE);
    }

    /// The event CALL was taken here.
    pub fn serve(&self) {
        self.table.serve(self);
    }

    /// The event CONSOLE was taken here.
    pub fn console(&self) {
        let cpu = self.board.cpu();
        let too_many = {
            let mut book = self.book.borrow_mut();
            let Some(own) = book.cpus.get_mut(cpu as usize) else {
                return;
            };
            own.owed = false;
            own.handled += 1;
            own.handled > own.posted
        };
        if too_many {
            self.violated(format!("cpu{cpu} handled an event that nobody has posted"));
        }
        self.board.spend(200);
    }

    /// The probe timer has expired here, which was set for that time.
    pub fn probe(&self, deadline: Ticks) {
        let cpu = self.cpu();
        if self.with(cpu, |own| own.probe_at) != Some(deadline.get()) {
            self.violated(format!("{cpu} handled a timer twice, for {deadline:?}"));
        }
        if self.board.is_ending() {
            return;
        }
        self.act(cpu);
        self.next_probe();
    }

    /// A CPU that sleeps, or runs a guest, owes nothing that it has taken.
    pub fn check(&self, cpu: CpuId, pcpu: &Pcpu) {
        let owed = self.with(cpu, |own| own.owed) == Some(true);
        if owed && !pcpu.word.pending().contains(Events::CONSOLE) {
            self.violated(format!(
                "{cpu} went to sleep with an event that it has taken"
            ));
        }
    }

    /// Nobody waits for ever.
    pub fn sweep(&self) {
        let now = self.board.now();
        let stuck = self.book.borrow().cpus.iter().position(|own| {
            own.waits_since
                .is_some_and(|since| now - since > LONGEST_WAIT)
        });
        if let Some(cpu) = stuck {
            self.violated(format!("cpu{cpu} waits for a call that nobody serves"));
        }
    }

    /// All CPUs have stopped: each call has run where it was said to, and each sleep that ended is on both sides' books.
    pub fn finish(&self) {
        let open = {
            let book = self.book.borrow();
            let first = book.calls.first_key_value();
            first.map(|(number, call)| {
                let (ran, said) = (call.ran.len(), call.reached.map(|reached| reached.len()));
                format!("call {number} ran on {ran} CPUs, and was to run on {said:?}")
            })
        };
        if let Some(text) = open {
            self.violated(text);
        }
        for (cpu, pcpu) in self.machine.pcpus() {
            let wakers = pcpu.wakers.counts();
            let outside = self.with(cpu, |own| own.woken_from_outside);
            let (said, owned) = (
                self.machine.woke(cpu) + outside.unwrap_or(0),
                wakers.owned() - wakers.of(WokenHow::Nmi),
            );
            if said != owned || wakers.attributed() != wakers.owned() {
                self.violated(format!(
                    "{cpu} was woken {owned} times, {} of them by known wakers, and others say that they woke it {said} times",
                    wakers.attributed()
                ));
            }
        }
    }

    /// What came of it so far.
    pub fn totals(&self) -> Totals {
        let mut totals = self.book.borrow().totals;
        for (_, pcpu) in self.machine.pcpus() {
            let counts = pcpu.wakes.counts();
            totals.ipis += counts.ipis();
            totals.by_store += counts.of(lull_core::wake::Wake::StoreWakes);
        }
        totals
    }

    fn violated(&self, text: String) {
        self.board.watch.violated(Rule::EachOnce, text);
    }

    fn with<T>(&self, cpu: CpuId, act: impl FnOnce(&mut Cpu) -> T) -> Option<T> {
        self.book.borrow_mut().cpus.get_mut(cpu.index()).map(act)
    }

    fn between(&self, low: u64, high: u64) -> u64 {
        self.book.borrow_mut().rng.between(low, high)
    }

    fn any_cpu(&self) -> CpuId {
        let last = self.book.borrow().cpus.len() as u64 - 1;
        CpuId::new(self.between(0, last) as u32)
    }

    /// Some CPUs: few, or each with the same chance.
    fn some_cpus(&self) -> CpuSet {
        let cpus = self.book.borrow().cpus.len();
        if self.between(0, 7) > 0 {
            return (0..self.between(1, 6)).map(|_| self.any_cpu()).collect();
        }
        let each = CpuSet::first(cpus);
        each.iter().filter(|_| self.between(0, 1) == 0).collect()
    }

    fn next_probe(&self) {
        let after = self.book.borrow_mut().rng.exponential(INTERVAL);
        let at = self.machine.platform().now() + Ticks::new(after + 1);
        self.with(self.cpu(), |own| own.probe_at = at.get());
        self.machine.set_probe_timer(at);
    }

    fn act(&self, cpu: CpuId) {
        if self.with(cpu, |own| std::mem::take(&mut own.offline)) == Some(true) {
            self.table.open(cpu);
        }
        let wait = if self.between(0, 1) == 0 {
            Wait::UntilDone
        } else {
            Wait::No
        };
        // In a large machine, most of what is done must not be to everybody.
        let cpus = self.book.borrow().cpus.len() as u64;
        match self.between(0, 15 + cpus / 8) {
            0 => self.many(&CpuSet::first(cpus as usize), wait, false),
            1 | 2 => self.many(&self.some_cpus(), wait, false),
            3 => self.post_many(&self.some_cpus()),
            4 => {
                self.with(cpu, |own| own.offline = true);
                self.book.borrow_mut().totals.offline += 1;
                self.table.close(self);
            }
            5 => {
                let v = self.between(0, 63) as u32;
                self.machine.kick(VcpuId::new(v));
            }
            6 | 7 => {
                let target = self.any_cpu();
                let events = [
                    Events::RESCHED,
                    Events::TIMER,
                    Events::NOTIFY,
                    Events::CONSOLE,
                ];
                let event = events[self.between(0, 3) as usize];
                if event == Events::CONSOLE {
                    self.owes_console(target.get());
                }
                self.book.borrow_mut().totals.posts += 1;
                self.board.watch.posted(target);
                self.machine.post(target, event);
            }
            _ => self.single(self.any_cpu(), wait, false),
        }
    }

    fn owes_console(&self, target: u32) {
        self.with(CpuId::new(target), |own| {
            own.posted += 1;
            own.owed = true;
        });
    }

    fn post_many(&self, targets: &CpuSet) {
        for target in targets.iter() {
            self.owes_console(target.get());
            self.board.watch.posted(target);
        }
        self.book.borrow_mut().totals.posts += targets.len() as u64;
        self.machine.post_many(targets, Events::CONSOLE);
    }

    fn ticket(&self, asked: CpuSet, last: bool) -> Ticket {
        let mut book = self.book.borrow_mut();
        book.next += 1;
        book.totals.calls += 1;
        let number = book.next;
        let call = Call {
            asked,
            ran: CpuSet::EMPTY,
            reached: None,
        };
        book.calls.insert(number, call);
        Ticket { number, last }
    }

    fn single(&self, target: CpuId, wait: Wait, nested: bool) {
        let ticket = self.ticket(CpuSet::from_iter([target]), nested);
        self.waits(wait);
        let made = self.table.single(self, target, ticket, wait);
        let reached = made.map(|()| CpuSet::from_iter([target]));
        self.made(ticket, reached, wait, nested);
    }

    fn many(&self, targets: &CpuSet, wait: Wait, nested: bool) {
        let ticket = self.ticket(*targets, nested);
        self.waits(wait);
        let made = self.table.many(self, targets, ticket, wait);
        self.made(ticket, made, wait, nested);
    }

    fn waits(&self, wait: Wait) {
        let now = self.board.now();
        let since = (wait == Wait::UntilDone).then_some(now);
        if since.is_some() {
            self.with(self.cpu(), |own| own.waits_since = since);
        }
    }

    /// The caller goes on.
    fn made(&self, ticket: Ticket, made: Result<CpuSet, CallError>, wait: Wait, nested: bool) {
        let number = ticket.number;
        if wait == Wait::UntilDone {
            self.with(self.cpu(), |own| own.waits_since = None);
        }
        let wrong = {
            let mut book = self.book.borrow_mut();
            let refused = match &made {
                Ok(_) => false,
                Err(CallError::Offline(_)) => true,
                Err(CallError::Busy) => nested,
                Err(CallError::WouldNest) => nested && wait == Wait::UntilDone,
                Err(CallError::Unknown(_)) => false,
            };
            book.totals.refused += u64::from(refused);
            match (made, book.calls.get_mut(&number)) {
                (Err(why), _) if !refused => Some(format!("call {number} was refused: {why}")),
                (_, None) => Some(format!("call {number} is not on the books")),
                (Err(_), Some(call)) if !call.ran.is_empty() => {
                    Some(format!("call {number} was refused, and ran"))
                }
                (Ok(reached), Some(call)) if !reached.is_subset(&call.asked) => Some(format!(
                    "call {number} reached a CPU that it was not made to"
                )),
                (Ok(reached), Some(call)) if wait == Wait::UntilDone && call.ran != reached => {
                    Some(format!("call {number} was awaited, and is not done"))
                }
                (made, Some(call)) => {
                    let reached = made.unwrap_or(CpuSet::EMPTY);
                    call.reached = Some(reached);
                    if call.ran == reached {
                        book.calls.remove(&number);
                    }
                    None
                }
            }
        };
        wrong.into_iter().for_each(|text| self.violated(text));
    }
}

impl<S: Scheduler> CallHost<Ticket> for Traffic<S> {
    fn cpu(&self) -> CpuId {
        CpuId::new(self.board.cpu())
    }

    fn wake(&self, target: CpuId) {
        self.board.watch.posted(target);
        self.machine.post(target, Events::CALL);
    }

    fn wake_many(&self, targets: &CpuSet) {
        targets
            .iter()
            .for_each(|target| self.board.watch.posted(target));
        self.machine.post_many(targets, Events::CALL);
    }

    fn run(&self, ticket: Ticket) {
        let (cpu, number) = (self.cpu(), ticket.number);
        if self.board.nature.broken == Some(Broken::SkipCall) && self.between(0, 63) == 0 {
            return;
        }
        let wrong = {
            let mut book = self.book.borrow_mut();
            book.totals.runs += 1;
            match book.calls.get_mut(&number) {
                None => Some(format!("{cpu} ran call {number}, which is done")),
                Some(call) if !call.asked.contains(cpu) => {
                    Some(format!("{cpu} ran call {number}, which was made to others"))
                }
                Some(call) if call.ran.contains(cpu) => {
                    Some(format!("{cpu} ran call {number} twice"))
                }
                Some(call) => {
                    call.ran.insert(cpu);
                    if call.reached == Some(call.ran) {
                        book.calls.remove(&number);
                    }
                    None
                }
            }
        };
        wrong.into_iter().for_each(|text| self.violated(text));
        self.board.spend(self.between(20, 800));
        if !ticket.last && !self.board.is_ending() {
            match self.between(0, 31) {
                0 => self.single(self.any_cpu(), Wait::No, true),
                1 => self.many(&self.some_cpus(), Wait::No, true),
                _ => {}
            }
        }
    }

    fn relax(&self) {
        if self.board.is_ending() {
            // Time stands still: the others are told to stop one after the other.
            fiber::suspend();
        } else {
            self.board.spend(self.between(40, 400));
        }
    }
}
