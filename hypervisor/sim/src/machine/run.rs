//! One run: builds the machine, lets events happen one after the other, looks at the promises after each.

use super::board::{Board, Handle, Mode, OUTSIDE, RATE, Sim, State};
use super::changes::Operator;
use super::energy::Energy;
use super::events::{Event, Events, What};
use super::faults::Broken;
use super::fiber::Fiber;
use super::guests::Guests;
use super::load::Kind;
use super::observed::Observed;
use super::outcome::{self, Outcome, WINDOW};
use super::plan::Plan;
use super::stopwatch::Stopwatch;
use super::trace::Trace;
use super::traffic::Traffic;
use super::violation::Rule;
use super::watch::Watch;
use crate::rng::Rng;
use lull_core::dispatch::Machine;
use lull_core::governor::AnyGovernor;
use lull_core::idle::CpuIdle;
use lull_core::residency::{Fault, Interval};
use lull_core::sched::CpuPlace;
use lull_core::sched::credit2::Config;
use lull_core::sched::placement::Placement;
use lull_core::sched::{AnyScheduler, Scheduler, Setup, Topology, UnitParams};
use lull_core::units::{CpuId, CpuSet, Micros, Ticks, VcpuId};
use std::rc::Rc;
use std::sync::Arc;

/// When the machine's time begins: zero means "never" in places.
pub const START: u64 = 1_000;
/// All vCPUs are of one guest.
const DOMAINS: usize = 1;
/// Over this long, at most, vCPUs are started.
const STARTS: u64 = 10_000_000;
/// The stack of a CPU. The system gives it out page by page.
const STACK: usize = 256 << 10;
/// Nothing that has to be looked at from time to time is looked at more often than this.
const SHORTEST_SWEEP: u64 = 100_000;
/// So long, in ns, it may take from the decision to post something to the last CPU that it is posted to.
const POST_TAKES: u64 = 200_000;

/// Runs a plan.
///
/// # Errors
/// The plan cannot be run, or there is no room for the stacks.
pub fn run(plan: &Plan) -> Result<Outcome, String> {
    plan.check()?;
    let place = |cpu| CpuPlace {
        core: plan.topology.core(cpu),
        socket: plan.topology.socket(cpu),
        node: plan.topology.socket(cpu),
    };
    let setup = Setup {
        topology: Topology::new((0..plan.topology.cpus).map(place)),
        units: plan.load.vcpus() as usize,
        domains: DOMAINS,
        rate: RATE,
        credit2: Config {
            placement: Placement::by_name(&plan.placement).unwrap_or_default(),
            ..Config::default()
        },
    };
    run_with(plan, AnyScheduler::by_name(&plan.scheduler, setup))
}

fn run_with<S: Scheduler + 'static>(plan: &Plan, sched: S) -> Result<Outcome, String> {
    let mut engine = Engine::new(plan, sched)?;
    engine.go();
    Ok(engine.finish(plan))
}

/// What a CPU was doing at the last sweep.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Seen {
    sleeps: u64,
    entries: u64,
    asleep: bool,
    pending: bool,
    overdue: bool,
}

struct Engine<S: Scheduler> {
    board: Rc<Board<S>>,
    machine: Rc<Sim<S>>,
    guests: Rc<Guests<S>>,
    traffic: Option<Rc<Traffic<S>>>,
    fibers: Vec<Fiber>,
    watch: Arc<Watch>,
    seen: Vec<Seen>,
    /// CPUs that something is being posted to, and until when it may take.
    posted: Vec<(CpuId, u64)>,
    sweep: u64,
    sweeps: u64,
    slack: u64,
    events: u64,
    operator: Operator,
    stopwatch: Arc<Stopwatch>,
    /// What each vCPU should have, and had run when the window began.
    ideal: Option<Vec<f64>>,
    had: Vec<u64>,
}

impl<S: Scheduler + 'static> Engine<S> {
    fn new(plan: &Plan, sched: S) -> Result<Self, String> {
        let states = plan.states()?;
        let cpus = plan.topology.cpus;
        let vcpus = plan.load.vcpus();
        let bound = plan.bound(&states);
        let watch = Arc::new(Watch::new(
            cpus,
            vcpus as usize,
            plan.watched_bound(&states),
        ));
        let shuffle = (plan.jitter > 0).then_some(plan.seed ^ 0x5eed);
        let state = State::new(
            cpus,
            Events::new(shuffle),
            Rng::new(plan.seed),
            Trace::new(if plan.keep > 0 { START + plan.keep } else { 0 }),
            Energy::new(plan.topology, states.costs.clone(), START),
        );
        let board = Rc::new(Board::new(
            plan.nature(),
            states,
            state,
            watch.clone(),
            START,
        ));
        let stopwatch = Arc::new(Stopwatch::new(plan.timed));
        let observed = Observed::new(
            sched,
            watch.clone(),
            stopwatch.clone(),
            plan.broken,
            plan.seed,
        );
        let machine = Rc::new(Machine::new(Handle(board.clone()), observed, cpus as usize));
        board.install(&machine);
        let traffic = plan
            .wakes
            .then(|| Rc::new(Traffic::new(machine.clone(), board.clone(), plan.seed)));
        let guests = Rc::new(Guests::new(
            machine.clone(),
            board.clone(),
            stopwatch.clone(),
            &plan.load,
            plan.seed,
            traffic.clone(),
        ));

        for cpu in 0..cpus {
            machine
                .cpu_online(CpuId::new(cpu))
                .map_err(|why| why.to_string())?;
        }
        for ((_, part), v) in plan.load.each().zip(0..) {
            let affinity = part.cpus.map_or(CpuSet::ALL, |(low, high)| {
                CpuSet::inclusive(low as usize, high as usize)
            });
            let params = UnitParams {
                weight: part.weight,
                affinity,
                ..UnitParams::default()
            };
            machine
                .add_vcpu(VcpuId::new(v), params)
                .map_err(|why| why.to_string())?;
            let look = Micros::new(plan.halt_poll).to_nanos();
            machine
                .set_vcpu_halt_poll(VcpuId::new(v), look)
                .map_err(|why| why.to_string())?;
        }
        if plan.broken == Some(Broken::DropTime)
            && let Some(pcpu) = machine.pcpu(CpuId::new(0))
        {
            pcpu.account
                .inject(Fault::Drop, Interval::Guest, Ticks::new(1_000));
        }
        let fibers = (0..cpus)
            .map(|_| {
                let (machine, guests) = (machine.clone(), guests.clone());
                let traffic = traffic.clone();
                let (table, trust) = (board.states.table, board.states.trust);
                let governor = AnyGovernor::by_name(&plan.governor).unwrap_or_default();
                Fiber::new(STACK, move || {
                    let mut idle = CpuIdle::new(table, governor, trust);
                    traffic.iter().for_each(|traffic| traffic.begin());
                    machine.run(&mut idle, &*guests);
                    traffic.iter().for_each(|traffic| traffic.end());
                })
                .map_err(|why| format!("no room for the stack of a CPU: {why}"))
            })
            .collect::<Result<Vec<_>, _>>()?;

        let mut engine = Self {
            seen: vec![Seen::default(); cpus as usize],
            posted: Vec::new(),
            sweep: bound.max(SHORTEST_SWEEP),
            sweeps: 0,
            slack: plan.timer_slack() + bound,
            events: 0,
            operator: Operator::new(plan),
            stopwatch,
            ideal: outcome::ideal(plan),
            had: vec![0; vcpus as usize],
            board,
            machine,
            guests,
            traffic,
            fibers,
            watch,
        };
        engine.first_events(plan, vcpus);
        Ok(engine)
    }

    fn first_events(&mut self, plan: &Plan, vcpus: u32) {
        let mut state = self.board.state();
        for cpu in 0..plan.topology.cpus {
            let turn = state.next_turn(cpu);
            state.events.push(START, What::Resume { turn }, cpu);
        }
        let over = STARTS.min(plan.length / 4);
        for v in 0..vcpus {
            let at = START + over * u64::from(v) / u64::from(vcpus.max(1));
            state.events.push(at, What::Start, v);
        }
        state.events.push(START + self.sweep, What::Sweep, OUTSIDE);
        state.events.push(START + WINDOW, What::Window, OUTSIDE);
        if let Some(traffic) = &self.traffic {
            let (at, cpu) = traffic.next_nmi(START);
            state.events.push(at, What::Nmi, cpu);
        }
        if plan.changes || plan.offline {
            let at = self.operator.next(START + over);
            state.events.push(at, What::Change, OUTSIDE);
        }
        state.events.push(START + plan.length, What::End, OUTSIDE);
    }

    /// Lets events happen until the end, or until a promise is broken.
    fn go(&mut self) {
        loop {
            let next = self.board.state().events.pop();
            let Some(event) = next else { break };
            self.events += 1;
            self.board.set_now(event.at);
            if self.watch.check() {
                break;
            }
            self.happen(event);
            if event.what == What::End {
                break;
            }
            while self.watch.has_posts() {
                let until = self.board.now() + POST_TAKES;
                let posted = self.watch.take_posted();
                self.posted
                    .extend(posted.into_iter().map(|cpu| (cpu, until)));
            }
            if !self.posted.is_empty() {
                self.look_at_posted();
            }
            if matches!(event.what, What::Resume { .. } | What::Ipi) {
                self.look_at(event.who);
            }
        }
    }

    /// CPUs that something is posted to. Who posts to several at once does so one after the other, and an IPI to the first takes its
    /// time: so each is looked at until the post is there, or is not to be expected any more.
    fn look_at_posted(&mut self) {
        let mut posted = core::mem::take(&mut self.posted);
        let now = self.board.now();
        posted.retain(|&(cpu, until)| {
            self.board.stored(cpu.get());
            self.look_at(cpu.get());
            let pcpu = self.machine.pcpu(cpu);
            let there = pcpu.is_none_or(|pcpu| pcpu.word.is_pending());
            !there && now < until
        });
        self.posted = posted;
    }

    fn happen(&mut self, event: Event) {
        let who = event.who;
        match event.what {
            What::Resume { turn } => {
                let due = {
                    let state = self.board.state();
                    state
                        .cpus
                        .get(who as usize)
                        .is_some_and(|cpu| cpu.turn == turn)
                };
                if due {
                    self.resume(who);
                }
            }
            What::OneShot => self.board.one_shot(who),
            What::Ipi => self.board.interrupt(who, false),
            What::Spurious => self.board.wake(who),
            What::Nmi => {
                if let Some(traffic) = &self.traffic {
                    traffic.nmi(who);
                    let (at, cpu) = traffic.next_nmi(event.at);
                    self.board.state().events.push(at, What::Nmi, cpu);
                }
            }
            What::Start | What::Arrival | What::Change => self.happens_outside(event),
            What::Sweep => {
                self.look_at_cpus();
                self.traffic.iter().for_each(|traffic| traffic.sweep());
                self.watch.sweep();
                let at = event.at + self.sweep;
                self.board.state().events.push(at, What::Sweep, OUTSIDE);
            }
            What::Window => {
                self.judge();
                let at = event.at + WINDOW;
                self.board.state().events.push(at, What::Window, OUTSIDE);
            }
            What::End => {}
        }
    }

    /// What no CPU does.
    fn happens_outside(&mut self, event: Event) {
        let asleep = self
            .traffic
            .as_ref()
            .map(|traffic| traffic.outside_begins());
        let v = event.who;
        match event.what {
            What::Start => {
                self.machine.online_vcpu(VcpuId::new(v));
                let first = self.guests.first_arrival(v);
                self.arrives(v, first);
            }
            What::Arrival => {
                let next = self.guests.arrival(v);
                self.arrives(v, next);
            }
            _ => {
                self.operator
                    .change(&self.machine, &self.guests, &self.board);
                let at = self.operator.next(event.at);
                self.board.state().events.push(at, What::Change, OUTSIDE);
            }
        }
        if let (Some(traffic), Some(asleep)) = (&self.traffic, asleep) {
            traffic.outside_ends(asleep);
        }
    }

    /// Shares in the window that ends now.
    fn judge(&mut self) {
        let run_times = self.guests.run_times();
        if let Some(ideal) = &self.ideal {
            let ran = run_times
                .iter()
                .zip(&self.had)
                .map(|(now, then)| now - then);
            outcome::check_weights(ideal, ran, &self.watch);
        }
        self.had = run_times;
    }

    fn arrives(&self, v: u32, at: Option<u64>) {
        if let Some(at) = at {
            self.board.state().events.push(at, What::Arrival, v);
        }
    }

    fn resume(&mut self, cpu: u32) {
        let Some(fiber) = self.fibers.get_mut(cpu as usize) else {
            return;
        };
        self.board.set_cpu(cpu);
        fiber.resume();
        self.board.set_cpu(OUTSIDE);
    }

    /// A CPU that sleeps, or runs a guest, has no event that nothing is on its way for.
    fn look_at(&self, cpu: u32) {
        if !self.board.is_out(cpu) {
            return;
        }
        let Some(pcpu) = self.machine.pcpu(CpuId::new(cpu)) else {
            return;
        };
        if self.board.is_stranded(cpu) {
            let text = format!(
                "cpu{cpu} has {:?}, and nothing is on its way to it",
                pcpu.word
            );
            self.watch.violated(Rule::NoLostWakeup, text);
        }
        if let Some(traffic) = &self.traffic {
            traffic.check(CpuId::new(cpu), pcpu);
        }
    }

    /// Sleeping CPUs, and those in guests, have nothing pending since the last look, and no deadline behind them; the
    /// times of one in so many CPUs add up.
    fn look_at_cpus(&mut self) {
        let now = self.board.now();
        self.sweeps += 1;
        for (cpu, pcpu) in self.machine.pcpus() {
            self.look_at(cpu.get());
            let (mode, sleeps, entries) = {
                let state = self.board.state();
                let Some(own) = state.cpus.get(cpu.index()) else {
                    continue;
                };
                (own.mode, own.sleeps, own.entries)
            };
            let asleep = matches!(mode, Mode::Sleeps { .. } | Mode::Guest);
            let deadline = pcpu.next_deadline().map(Ticks::get);
            let seen = Seen {
                sleeps,
                entries,
                asleep,
                pending: asleep && pcpu.word.is_pending(),
                overdue: asleep
                    && deadline.is_some_and(|deadline| deadline.saturating_add(self.slack) < now),
            };
            let Some(last) = self.seen.get_mut(cpu.index()) else {
                continue;
            };
            // The same sleep, or stay in the guest, as at the last look, a whole bound ago.
            if seen == *last && seen.pending {
                let text = format!("{cpu} has {:?} and does not look", pcpu.word);
                self.watch.violated(Rule::NoLostWakeup, text);
            }
            if seen.overdue {
                let text = format!("{cpu} missed its deadline of {deadline:?} ns: {mode:?}");
                self.watch.violated(Rule::NoLostWakeup, text);
            }
            *last = seen;
            // Whole books are dear: each CPU's every so many looks.
            if (self.sweeps + cpu.index() as u64).is_multiple_of(16) {
                let row = pcpu.account.snapshot(self.machine.platform());
                if let Err(why) = row.check(Ticks::ZERO) {
                    self.watch
                        .violated(Rule::TimeConserved, format!("{cpu}: {why}"));
                }
            }
        }
    }

    /// Ends all loops, and adds up.
    fn finish(mut self, plan: &Plan) -> Outcome {
        let now = self.board.now();
        self.board.end();
        let asleep = self
            .traffic
            .as_ref()
            .map(|traffic| traffic.outside_begins());
        self.machine.stop();
        if let (Some(traffic), Some(asleep)) = (&self.traffic, asleep) {
            traffic.outside_ends(asleep);
        }
        // One that waits for a call goes on when the others have stopped.
        for _ in 0..=self.fibers.len() {
            for cpu in 0..self.fibers.len() as u32 {
                self.resume(cpu);
            }
            if self.fibers.iter().all(Fiber::is_done) {
                break;
            }
        }
        let ended = self.fibers.iter().all(Fiber::is_done);
        if !ended {
            self.watch
                .violated(Rule::NoLostWakeup, "a CPU does not stop".to_owned());
        }
        if let Some(traffic) = self.traffic.as_ref().filter(|_| ended) {
            traffic.finish();
        }
        outcome::check_books(&self.board, &self.machine, &self.watch);
        let run_times = self.guests.run_times();
        let length = now - START;

        let (sleeping, guest) = self
            .machine
            .pcpus()
            .fold((0, 0), |(sleeps, guest), (_, pcpu)| {
                let row = pcpu.account.snapshot(self.machine.platform());
                let count: u64 = row
                    .states(&self.board.states.table)
                    .map(|state| state.usage)
                    .sum();
                (sleeps + count, guest + row.guest.get())
            });
        let passes = self
            .machine
            .pcpus()
            .map(|(_, pcpu)| pcpu.stats.counts().all_passes())
            .sum();
        let switches = self
            .machine
            .pcpus()
            .map(|(_, pcpu)| pcpu.stats.counts().switches)
            .sum();
        let kinds: Vec<Kind> = plan.load.each().map(|(_, part)| part.kind).collect();
        let mut state = self.board.state();
        let trace = std::mem::take(&mut state.trace);
        Outcome {
            length,
            events: self.events,
            calls: state.steps,
            wakes: self.watch.wakes(),
            sleeps: sleeping,
            passes,
            switches,
            guest_time: guest,
            most_waiting: self.watch.most_waiting(),
            longest_overlap: self.watch.longest_overlap(),
            bound: self.watch.bound(),
            shares: state.energy.shares(now),
            measures: self.guests.measures().clone(),
            weight_error: self
                .ideal
                .as_ref()
                .map(|ideal| outcome::weight_error(ideal, &run_times, length)),
            host: self.stopwatch.times(),
            run_times: kinds.into_iter().zip(run_times).collect(),
            state_names: self
                .board
                .states
                .table
                .states()
                .iter()
                .map(|state| state.name)
                .collect(),
            digest: trace.digest(),
            trace,
            traffic: self.traffic.as_ref().map(|traffic| traffic.totals()),
            violation: self.watch.violation(),
        }
    }
}
