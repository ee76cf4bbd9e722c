//! The promises, and who watches that they are kept.
//!
//! What the scheduler answers and what the CPUs do is written down as it happens; [`Watch::check`] is called after every
//! event, and costs two comparisons as long as nothing is wrong.

use super::violation::{Rule, Violation};
use lull_core::units::{CpuId, CpuSet, VcpuId};
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where a vCPU is, as far as the scheduler has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Out,
    Blocked,
    Waiting { since: u64 },
    Running { cpu: u32 },
}

struct Unit {
    place: Place,
    /// The CPU inside of whose guest mode it is.
    inside: Option<u32>,
    /// Where it may run; none for everywhere.
    affinity: Option<CpuSet>,
    /// When it was kicked out of its block, until it is queued.
    kicked: Option<u64>,
}

struct Notes {
    cpus: CpuSet,
    units: Vec<Unit>,
    /// Since when each CPU has decided to run nothing.
    idle_since: Vec<Option<u64>>,
    waiting: BTreeSet<(u64, u32)>,
    idle: BTreeSet<(u64, u32)>,
    /// When CPUs that ran nothing began to run something, lately.
    taken: VecDeque<u64>,
    /// Pairs were compared at that time, for those with an affinity.
    compared: u64,
    /// CPUs that something was posted to.
    posted: Vec<CpuId>,
    wakes: u64,
    retired: u64,
    most_waiting: usize,
    longest_overlap: u64,
    violation: Option<Violation>,
}

/// The watcher. One for a run; shared with the scheduler, which must be shareable between threads.
pub struct Watch {
    now: AtomicU64,
    has_posts: AtomicBool,
    bound: u64,
    notes: Mutex<Notes>,
}

impl Watch {
    /// For so many CPUs and vCPUs. A unit that may run and a CPU that may run it coexist for at most `bound` ns.
    pub fn new(cpus: u32, vcpus: usize, bound: u64) -> Self {
        let unit = || Unit {
            place: Place::Out,
            inside: None,
            affinity: None,
            kicked: None,
        };
        Self {
            now: AtomicU64::new(0),
            has_posts: AtomicBool::new(false),
            bound,
            notes: Mutex::new(Notes {
                cpus: CpuSet::first(cpus as usize),
                units: std::iter::repeat_with(unit).take(vcpus).collect(),
                idle_since: vec![None; cpus as usize],
                waiting: BTreeSet::new(),
                idle: BTreeSet::new(),
                taken: VecDeque::new(),
                compared: 0,
                posted: Vec::new(),
                wakes: 0,
                retired: 0,
                most_waiting: 0,
                longest_overlap: 0,
                violation: None,
            }),
        }
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// The time is this from now on.
    pub fn set_now(&self, now: u64) {
        self.now.store(now, Ordering::Relaxed);
    }

    /// How long a unit that may run and a CPU that may run it may coexist, in ns.
    pub fn bound(&self) -> u64 {
        self.bound
    }

    /// Something was posted to this CPU: if it watches its word, it must be looked at.
    pub fn posted(&self, cpu: CpuId) {
        self.notes().posted.push(cpu);
        self.has_posts.store(true, Ordering::Relaxed);
    }

    /// Was anything posted since [`Watch::take_posted`]?
    pub fn has_posts(&self) -> bool {
        self.has_posts.load(Ordering::Relaxed)
    }

    /// The CPUs that something was posted to.
    pub fn take_posted(&self) -> Vec<CpuId> {
        self.has_posts.store(false, Ordering::Relaxed);
        std::mem::take(&mut self.notes().posted)
    }

    /// A unit was added, offline. The one that had its slot before had run for so long, in ns.
    pub fn added(&self, v: VcpuId, affinity: CpuSet, ran_before: u64) {
        self.set_affinity(v, affinity);
        self.notes().retired += ran_before;
    }

    /// How long units ran whose slots have others by now, in ns.
    pub fn retired(&self) -> u64 {
        self.notes().retired
    }

    /// Where a unit may run.
    pub fn set_affinity(&self, v: VcpuId, affinity: CpuSet) {
        let mut notes = self.notes();
        let everywhere = notes.cpus.is_subset(&affinity);
        let Some(unit) = notes.units.get_mut(v.index()) else {
            return;
        };
        unit.affinity = (!everywhere).then_some(affinity);
        if let Place::Waiting { .. } = unit.place {
            // For some CPUs it waits only since now.
            let since = self.now();
            notes.put(v, Place::Waiting { since });
        }
    }

    /// A unit that was blocked was kicked.
    pub fn kicked(&self, v: VcpuId) {
        let now = self.now();
        if let Some(unit) = self.notes().units.get_mut(v.index()) {
            unit.kicked.get_or_insert(now);
        }
    }

    /// The scheduler was told of a wake.
    pub fn woken(&self) {
        self.notes().wakes += 1;
    }

    /// A unit waits in a runqueue.
    pub fn waits(&self, v: VcpuId) {
        let since = self.now();
        self.notes().put(v, Place::Waiting { since });
    }

    /// A unit is blocked.
    pub fn blocked(&self, v: VcpuId) {
        self.notes().put(v, Place::Blocked);
    }

    /// A unit is no more.
    pub fn left(&self, v: VcpuId) {
        self.notes().put(v, Place::Out);
    }

    /// A CPU runs `run` from now on; until now it ran `prev`, which it has not handed back yet.
    pub fn decided(&self, cpu: CpuId, prev: Option<VcpuId>, run: Option<VcpuId>) {
        let now = self.now();
        let mut notes = self.notes();
        if let Some(v) = run.filter(|_| run != prev) {
            let place = notes.units.get(v.index()).map(|unit| unit.place);
            if !matches!(place, Some(Place::Waiting { .. })) {
                let text = format!("{v} was chosen for {cpu} while it was {place:?}");
                notes.violated(now, Rule::OnePlace, text);
            }
            notes.put(v, Place::Running { cpu: cpu.get() });
        }
        if notes.set_idle(cpu.get(), run.is_none().then_some(now)) && run.is_some() {
            let past = now.saturating_sub(3 * self.bound);
            while notes.taken.front().is_some_and(|&at| at < past) {
                notes.taken.pop_front();
            }
            notes.taken.push_back(now);
        }
    }

    /// A CPU has left the scheduler: it is not idle, it is not there. If something `moved` from it, that may have waited until the CPU
    /// was out of its C-state, and waits for another one from now on. Nobody says what it was, so all that waits does so since now.
    pub fn parted(&self, cpu: CpuId, moved: bool) {
        let now = self.now();
        let mut notes = self.notes();
        notes.set_idle(cpu.get(), None);
        if moved {
            let waiting: Vec<u32> = notes.waiting.iter().map(|&(_, v)| v).collect();
            for v in waiting {
                notes.put(VcpuId::new(v), Place::Waiting { since: now });
            }
        }
    }

    /// A CPU has handed back what it ran.
    pub fn gave_up(&self, cpu: CpuId, v: VcpuId) {
        let now = self.now();
        let mut notes = self.notes();
        let place = notes.units.get(v.index()).map(|unit| unit.place);
        if place != Some(Place::Running { cpu: cpu.get() }) {
            let text = format!("{cpu} handed back {v}, which was {place:?}");
            notes.violated(now, Rule::OnePlace, text);
        }
    }

    /// A CPU enters a guest.
    pub fn enters(&self, cpu: u32, v: u32) {
        let now = self.now();
        let mut notes = self.notes();
        let Some(unit) = notes.units.get_mut(v as usize) else {
            return;
        };
        let inside = unit.inside.replace(cpu);
        let place = unit.place;
        if inside.is_some() || place != (Place::Running { cpu }) {
            let text = format!(
                "v{v} entered on cpu{cpu} while it was {place:?}, inside of the guest on {inside:?}"
            );
            notes.violated(now, Rule::OnePlace, text);
        }
    }

    /// A CPU left a guest.
    pub fn leaves(&self, v: u32) {
        if let Some(unit) = self.notes().units.get_mut(v as usize) {
            unit.inside = None;
        }
    }

    /// What is to be noted as wrong.
    pub fn violated(&self, rule: Rule, text: String) {
        let now = self.now();
        self.notes().violated(now, rule, text);
    }

    /// The first promise that was broken, if any was.
    pub fn violation(&self) -> Option<Violation> {
        self.notes().violation.clone()
    }

    /// How often the scheduler was told of a wake.
    pub fn wakes(&self) -> u64 {
        self.notes().wakes
    }

    /// The most units that ever waited at one time.
    pub fn most_waiting(&self) -> usize {
        self.notes().most_waiting
    }

    /// How long, at most, a unit waited while a CPU that may run it had decided to run nothing.
    pub fn longest_overlap(&self) -> u64 {
        self.notes().longest_overlap
    }

    /// Looks for a unit that may run and a CPU that may run it. `true` if any promise is broken.
    pub fn check(&self) -> bool {
        let now = self.now();
        let mut notes = self.notes();
        notes.compare(now, self.bound);
        notes.violation.is_some()
    }

    /// Looks at every vCPU for one that was kicked and has not been queued.
    pub fn sweep(&self) {
        let now = self.now();
        let mut notes = self.notes();
        let late = notes.units.iter().position(|unit| {
            let since = unit.kicked.filter(|_| unit.place == Place::Blocked);
            since.is_some_and(|since| now - since > self.bound)
        });
        if let Some(v) = late {
            let text = format!("v{v} was kicked out of its block, and was never queued");
            notes.violated(now, Rule::NoLostWakeup, text);
        }
    }
}

impl Notes {
    fn violated(&mut self, at: u64, rule: Rule, text: String) {
        self.violation.get_or_insert(Violation { at, rule, text });
    }

    fn put(&mut self, v: VcpuId, place: Place) {
        let Some(unit) = self.units.get_mut(v.index()) else {
            return;
        };
        if let Place::Waiting { since } = unit.place {
            self.waiting.remove(&(since, v.get()));
        }
        unit.place = place;
        if place != Place::Blocked {
            unit.kicked = None;
        }
        if let Place::Waiting { since } = place {
            self.waiting.insert((since, v.get()));
            self.most_waiting = self.most_waiting.max(self.waiting.len());
        }
    }

    /// `true` if that is a change.
    fn set_idle(&mut self, cpu: u32, since: Option<u64>) -> bool {
        let Some(before) = self.idle_since.get_mut(cpu as usize) else {
            return false;
        };
        if before.is_some() == since.is_some() {
            return false;
        }
        if let Some(since) = before.take() {
            self.idle.remove(&(since, cpu));
        }
        if let Some(since) = since {
            self.idle.insert((since, cpu));
            *before = Some(since);
        }
        true
    }

    /// How long this unit may wait beside an idle CPU. The CPU that was told of it may have met more urgent work on its way,
    /// and then another is told.
    fn allowed(&self, waits: u64, bound: u64) -> u64 {
        let overtaken = self
            .taken
            .iter()
            .any(|at| (waits..=waits + bound).contains(at));
        if overtaken { 2 * bound } else { bound }
    }

    fn compare(&mut self, now: u64, bound: u64) {
        let (Some(&(waits, v)), Some(&(idles, cpu))) = (self.waiting.first(), self.idle.first())
        else {
            return;
        };
        let overlap = now.saturating_sub(waits.max(idles));
        if self.may_run(v, cpu) {
            self.longest_overlap = self.longest_overlap.max(overlap);
        }
        // The oldest of both: no other pair has been there for longer.
        if overlap <= bound || now < self.compared + bound / 2 {
            return;
        }
        self.compared = now;
        let old = |&&(since, _): &&(u64, u32)| now - since > bound;
        for &(waits, v) in self.waiting.iter().take_while(old) {
            let bound = self.allowed(waits, bound);
            let free = self
                .idle
                .iter()
                .take_while(|&&(since, _)| now - waits.max(since) > bound);
            let free = free.copied().find(|&(_, cpu)| self.may_run(v, cpu));
            if let Some((idles, cpu)) = free {
                let since = waits.max(idles);
                let text = format!(
                    "v{v} waits since {waits} ns and cpu{cpu} has been idle since {idles} ns: together for {} ns, \
                     at most {bound} ns are allowed",
                    now - since
                );
                return self.violated(now, Rule::WorkConserving, text);
            }
        }
    }

    fn may_run(&self, v: u32, cpu: u32) -> bool {
        let affinity = self.units.get(v as usize).map(|unit| unit.affinity);
        match affinity {
            Some(Some(affinity)) => affinity.contains(CpuId::new(cpu)),
            Some(None) => true,
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: u64 = 1_000;

    fn v(number: u32) -> VcpuId {
        VcpuId::new(number)
    }

    fn cpu(number: u32) -> CpuId {
        CpuId::new(number)
    }

    fn at(watch: &Watch, now: u64) -> Option<Rule> {
        watch.set_now(now);
        watch.check();
        watch.violation().map(|violation| violation.rule)
    }

    #[test]
    fn a_unit_and_an_idle_cpu_may_coexist_up_to_the_bound() {
        let watch = Watch::new(2, 1, BOUND);
        watch.decided(cpu(0), None, None);
        watch.set_now(5_000);
        watch.waits(v(0));
        assert_eq!(at(&watch, 6_000), None);
        assert_eq!(at(&watch, 6_001), Some(Rule::WorkConserving));
    }

    #[test]
    fn a_unit_that_was_overtaken_once_may_wait_for_the_next_cpu() {
        let watch = Watch::new(3, 2, BOUND);
        watch.decided(cpu(0), None, None);
        watch.decided(cpu(1), None, None);
        watch.set_now(5_000);
        watch.waits(v(0));
        watch.set_now(5_800);
        watch.waits(v(1));
        watch.decided(cpu(1), None, Some(v(1)));
        assert_eq!(at(&watch, 6_500), None);
        assert_eq!(at(&watch, 7_001), Some(Rule::WorkConserving));
    }

    #[test]
    fn an_idle_cpu_that_may_not_run_the_unit_does_not_count() {
        let watch = Watch::new(2, 1, BOUND);
        watch.added(v(0), CpuSet::single(cpu(1)), 0);
        watch.decided(cpu(0), None, None);
        watch.waits(v(0));
        assert_eq!(at(&watch, 50_000), None);
        watch.decided(cpu(1), None, None);
        assert_eq!(at(&watch, 50_900), None);
        assert_eq!(at(&watch, 52_000), Some(Rule::WorkConserving));
    }

    #[test]
    fn a_unit_that_is_chosen_twice_is_in_two_places() {
        let watch = Watch::new(2, 1, BOUND);
        watch.waits(v(0));
        watch.decided(cpu(0), None, Some(v(0)));
        assert_eq!(at(&watch, 10), None);
        watch.decided(cpu(1), None, Some(v(0)));
        assert_eq!(at(&watch, 10), Some(Rule::OnePlace));
    }

    #[test]
    fn a_kick_that_is_forgotten_is_a_lost_wakeup() {
        let watch = Watch::new(1, 2, BOUND);
        (0..2).for_each(|unit| watch.blocked(v(unit)));
        watch.kicked(v(0));
        watch.kicked(v(1));
        watch.waits(v(0));
        watch.set_now(BOUND + 1);
        watch.sweep();
        let violation = watch.violation().unwrap();
        assert_eq!(violation.rule, Rule::NoLostWakeup);
        assert!(violation.text.starts_with("v1 "), "{violation}");
    }
}
