//! Calls between CPUs that are scripted, and between CPUs that are threads.

use super::*;
use std::cell::RefCell;
use std::vec::Vec;

mod threads;

const CPU0: CpuId = CpuId::new(0);
const CPU1: CpuId = CpuId::new(1);
const CPU2: CpuId = CpuId::new(2);

/// The number of an errand, and what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Note(u64, u64);

impl Errand for Note {
    fn to_words(self) -> [u64; 2] {
        [self.0, self.1]
    }
    fn from_words([number, about]: [u64; 2]) -> Self {
        Self(number, about)
    }
}

/// One CPU of a world in which one thing happens after the other.
struct Host<'a> {
    cpu: CpuId,
    world: &'a World,
}

#[derive(Default)]
struct World {
    table: Option<CallTable<Note>>,
    ran: RefCell<Vec<(u32, u64)>>,
    woken: RefCell<Vec<u32>>,
    /// What the other CPUs do while somebody waits.
    meanwhile: RefCell<Vec<CpuId>>,
    /// What errands number 7 and 8 were told.
    seven: RefCell<Option<CallError>>,
}

impl World {
    fn new(cpus: usize) -> Self {
        let table = CallTable::new(cpus);
        for cpu in 0..cpus {
            table.open(CpuId::new(cpu as u32));
        }
        Self {
            table: Some(table),
            ..Self::default()
        }
    }
    fn table(&self) -> &CallTable<Note> {
        self.table.as_ref().unwrap()
    }
    fn on(&self, cpu: CpuId) -> Host<'_> {
        Host { cpu, world: self }
    }
    fn ran(&self) -> Vec<(u32, u64)> {
        self.ran.take()
    }
    fn woken(&self) -> Vec<u32> {
        self.woken.take()
    }
}

impl CallHost<Note> for Host<'_> {
    fn cpu(&self) -> CpuId {
        self.cpu
    }
    fn wake(&self, target: CpuId) {
        self.world.woken.borrow_mut().push(target.get());
    }
    fn run(&self, errand: Note) {
        self.world.ran.borrow_mut().push((self.cpu.get(), errand.0));
        if errand.0 == 7 {
            let table = self.world.table();
            let wait = if errand.1 == 0 {
                Wait::UntilDone
            } else {
                Wait::No
            };
            let mut result = Ok(());
            for _ in 0..=SLOTS {
                result = table.single(self, CPU2, Note(70, 0), wait);
            }
            *self.world.seven.borrow_mut() = result.err();
        }
        if errand.0 == 8 && self.cpu == CPU0 {
            let wait = if errand.1 == 0 {
                Wait::UntilDone
            } else {
                Wait::No
            };
            let others = CpuSet::inclusive(1, 2);
            let made = self.world.table().many(self, &others, Note(80, 0), wait);
            *self.world.seven.borrow_mut() = made.err();
        }
    }
    fn relax(&self) {
        let other = self.world.meanwhile.borrow_mut().pop();
        let other = other.expect("nobody will ever serve this");
        self.world.table().serve(&self.world.on(other));
    }
}

#[test]
fn the_first_adder_wakes_and_the_oldest_runs_first() {
    let world = World::new(3);
    let (table, target) = (world.table(), world.on(CPU1));
    for (from, number) in [(CPU0, 1), (CPU2, 2), (CPU0, 3)] {
        table
            .single(&world.on(from), CPU1, Note(number, 0), Wait::No)
            .unwrap();
    }
    assert_eq!(world.woken(), [1]);
    assert!(table.is_pending(CPU1) && world.ran().is_empty());
    assert!(table.serve(&target));
    assert_eq!(world.ran(), [(1, 1), (1, 2), (1, 3)]);
    assert!(!table.serve(&target), "each runs once");
    assert_eq!(table.served(CPU1), 3);
    table
        .single(&world.on(CPU0), CPU1, Note(4, 0), Wait::No)
        .unwrap();
    assert_eq!(world.woken(), [1], "an empty queue again");
}

#[test]
fn a_call_to_oneself_runs_at_once() {
    let world = World::new(1);
    world
        .table()
        .single(&world.on(CPU0), CPU0, Note(1, 0), Wait::UntilDone)
        .unwrap();
    assert_eq!(world.ran(), [(0, 1)]);
    assert_eq!(
        world
            .table()
            .all(&world.on(CPU0), Note(2, 0), Wait::UntilDone),
        Ok(CpuSet::single(CPU0))
    );
    assert_eq!(
        (world.ran(), world.woken()),
        ([(0, 2)].to_vec(), [].to_vec())
    );
}

#[test]
fn a_caller_that_waits_serves_its_own_queue() {
    let world = World::new(2);
    let table = world.table();
    table
        .single(&world.on(CPU1), CPU0, Note(1, 0), Wait::No)
        .unwrap();
    *world.meanwhile.borrow_mut() = [CPU1].to_vec();
    table
        .single(&world.on(CPU0), CPU1, Note(2, 0), Wait::UntilDone)
        .unwrap();
    assert_eq!(world.ran(), [(0, 1), (1, 2)]);
}

#[test]
fn busy_slots_are_waited_for() {
    let world = World::new(3);
    let table = world.table();
    for number in 0..SLOTS as u64 {
        table
            .single(&world.on(CPU0), CPU1, Note(number, 0), Wait::No)
            .unwrap();
    }
    // Another caller runs ahead of the fifth.
    *world.meanwhile.borrow_mut() = [CPU1].to_vec();
    table
        .single(&world.on(CPU0), CPU1, Note(99, 0), Wait::No)
        .unwrap();
    assert_eq!(world.ran().len(), SLOTS);
    table.serve(&world.on(CPU1));
    assert_eq!(world.ran(), [(1, 99)]);
}

#[test]
fn a_called_function_does_not_wait() {
    for (about, expected) in [(0, CallError::WouldNest), (1, CallError::Busy)] {
        let world = World::new(3);
        world
            .table()
            .single(&world.on(CPU0), CPU1, Note(7, about), Wait::No)
            .unwrap();
        world.table().serve(&world.on(CPU1));
        assert_eq!(world.seven.take(), Some(expected));
    }
}

/// The caller's broadcast is under way until it goes on to wait for it: a function that waited for that would wait for ever.
#[test]
fn a_function_that_runs_here_for_a_broadcast_is_told_that_the_descriptor_is_busy() {
    for (about, expected) in [(0, CallError::WouldNest), (1, CallError::Busy)] {
        let world = World::new(3);
        *world.meanwhile.borrow_mut() = [CPU1, CPU2].to_vec();
        let called = world
            .table()
            .all(&world.on(CPU0), Note(8, about), Wait::UntilDone);
        assert_eq!(called, Ok(CpuSet::first(3)));
        assert_eq!(world.seven.take(), Some(expected));
    }
}

#[test]
fn a_broadcast_runs_once_on_each_and_here_as_well() {
    let world = World::new(3);
    let table = world.table();
    *world.meanwhile.borrow_mut() = [CPU1, CPU2, CPU1].to_vec();
    let called = table.all(&world.on(CPU0), Note(5, 0), Wait::UntilDone);
    assert_eq!(called, Ok(CpuSet::first(3)));
    assert_eq!(world.woken(), [1, 2]);
    assert_eq!(world.ran(), [(0, 5), (1, 5), (2, 5)]);
    // One that is not waited for is free again once all have read it.
    for number in [6, 8] {
        let others = CpuSet::inclusive(1, 2);
        assert_eq!(
            table.many(&world.on(CPU0), &others, Note(number, 0), Wait::No),
            Ok(others)
        );
        table.serve(&world.on(CPU2));
        table.serve(&world.on(CPU1));
        assert_eq!(world.ran(), [(2, number), (1, number)]);
    }
}

#[test]
fn a_broadcast_of_one_is_a_call() {
    let world = World::new(2);
    let both = CpuSet::single(CPU1);
    let called = world
        .table()
        .many(&world.on(CPU0), &both, Note(1, 0), Wait::No);
    assert_eq!(called, Ok(both));
    assert!(world.table().serve(&world.on(CPU1)));
    assert_eq!(world.ran(), [(1, 1)]);
}

#[test]
fn a_cpu_that_goes_offline_runs_what_it_was_asked_and_nothing_more() {
    let world = World::new(3);
    let table = world.table();
    table
        .single(&world.on(CPU0), CPU1, Note(1, 0), Wait::No)
        .unwrap();
    table
        .many(
            &world.on(CPU2),
            &CpuSet::inclusive(0, 1),
            Note(2, 0),
            Wait::No,
        )
        .unwrap();
    table.close(&world.on(CPU1));
    assert_eq!(world.ran(), [(1, 1), (1, 2)]);
    assert_eq!(
        table.single(&world.on(CPU0), CPU1, Note(3, 0), Wait::UntilDone),
        Err(CallError::Offline(CPU1))
    );
    table.serve(&world.on(CPU0));
    *world.meanwhile.borrow_mut() = [CPU2].to_vec();
    assert_eq!(
        table.all(&world.on(CPU0), Note(4, 0), Wait::UntilDone),
        Ok([CPU0, CPU2].into_iter().collect())
    );
    table.serve(&world.on(CPU1));
    assert_eq!(world.ran(), [(0, 2), (0, 4), (2, 4)]);
    table.open(CPU1);
    table
        .single(&world.on(CPU0), CPU1, Note(5, 0), Wait::No)
        .unwrap();
    assert!(table.serve(&world.on(CPU1)));
    assert_eq!(world.ran(), [(1, 5)]);
}

#[test]
fn nobody_is_called_that_does_not_exist() {
    let world = World::new(2);
    let table = world.table();
    assert_eq!(
        table.single(&world.on(CPU0), CPU2, Note(1, 0), Wait::UntilDone),
        Err(CallError::Unknown(CPU2))
    );
    assert_eq!(
        table.many(
            &world.on(CPU0),
            &CpuSet::inclusive(2, 9),
            Note(1, 0),
            Wait::UntilDone
        ),
        Ok(CpuSet::EMPTY)
    );
    // The descriptor is free again.
    *world.meanwhile.borrow_mut() = [CPU1].to_vec();
    let called = table.all(&world.on(CPU0), Note(2, 0), Wait::UntilDone);
    assert_eq!(called, Ok(CpuSet::first(2)));
}

#[test]
#[should_panic(expected = "waits for a call with 1 locks held")]
fn nobody_waits_with_a_lock_held() {
    std::thread_local! {
        static HELD: &'static core::sync::atomic::AtomicU32 =
            std::boxed::Box::leak(std::boxed::Box::new(core::sync::atomic::AtomicU32::new(0)));
    }
    held::keep_at(|| HELD.try_with(|held| *held).ok());
    let world = World::new(2);
    let lock = crate::sync::Lock::new(());
    let given_back = lock.lock();
    drop(given_back);
    let _held = lock.lock();
    let _ = world
        .table()
        .single(&world.on(CPU0), CPU1, Note(1, 0), Wait::UntilDone);
}
