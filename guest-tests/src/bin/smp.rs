//! All vCPUs up; each halts and is woken, by every way that an interrupt can be sent.
//!
//! Rounds of each way (shorthand, physical, logical, broadcast): all other vCPUs halt, vCPU 0 sends, each must wake exactly
//! once. Then NMIs to halted vCPUs, and on vCPU 0 alone: self-IPIs, priority of pending interrupts, TPR and CR8 masking. Runs
//! with one vCPU too: then only the last group.
//!
//! Options: `rounds=20` (of each way), `timeout-ms=20000`, `masking=on` (`off` leaves out TPR and CR8: QEMU's emulated SVM lets
//! a virtual interrupt through whose priority equals the TPR, and Xen on it then loops for ever).
//!
//! Figures: `cpus`, `rounds`, `wake_WAY` (ticks from the send until the last vCPU has answered, mean) for `others`, `all`,
//! `broadcast`, `physical`, `logical`, `group`, `nmi`; `spurious_wakes`.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU32, Ordering};
use guest_tests::lapic::{self, Message, Register, Target};
use guest_tests::percpu::{self, CpuIndex};
use guest_tests::stats::Summary;
use guest_tests::{Machine, check, check_eq, cpu, figure, print, smp, timer, verdict};

guest_tests::guest_test! {
    name: "smp",
    summary: "all vCPUs halt and are woken by every kind of IPI",
    cmdline: "rounds=20",
    vcpus: 4,
    memory_mib: 16,
    end: Port,
    main: main,
    ap: sleeper,
    interrupt: interrupt,
}

/// Wakes the others.
const WAKE: u8 = 0x50;
/// Below, at and above the priority that the TPR tests set.
const LOW: u8 = 0x55;
const EQUAL: u8 = 0x65;
const HIGH: u8 = 0x75;
const PRIORITY: u32 = 0x60;

/// Words of the per-CPU area: wake-ups taken, wake-ups and NMIs answered, halts without a reason to wake.
const WAKES: usize = 0;
const ANSWERS: usize = 1;
const SPURIOUS: usize = 2;
const ASLEEP: usize = 3;

/// Interrupts that vCPU 0 took, by class, and the order they came in: one hex digit each, the newest lowest.
static CAME: [AtomicU32; 16] = [const { AtomicU32::new(0) }; 16];
static ORDER: AtomicU32 = AtomicU32::new(0);

fn interrupt(vector: u8) {
    let class = vector >> 4;
    if CpuIndex::current() == CpuIndex::BOOT {
        if let Some(came) = CAME.get(usize::from(class)) {
            came.fetch_add(1, Ordering::SeqCst);
        }
        ORDER.store(
            ORDER.load(Ordering::SeqCst) << 4 | u32::from(class),
            Ordering::SeqCst,
        );
    } else if vector != WAKE {
        verdict::fail(format_args!(
            "interrupt {vector:#x} on CPU {} that nobody sent",
            CpuIndex::current()
        ));
    }
    percpu::here().user[WAKES].fetch_add(1, Ordering::SeqCst);
}

/// Every other vCPU: sleeps, and answers each wake-up.
fn sleeper(own: CpuIndex) {
    let here = percpu::of(own);
    let (mut wakes, mut nmis) = (0, 0);
    loop {
        // An NMI may come at any instruction: `nmis` is the word to halt on, since it is read before. Interrupts come only
        // within the halt, so looking at their word before is enough.
        let seen = (
            here.user[WAKES].load(Ordering::SeqCst),
            here.nmis.load(Ordering::SeqCst),
        );
        if seen == (wakes, nmis) {
            here.user[ASLEEP].fetch_add(1, Ordering::SeqCst);
            cpu::halt_while(&here.nmis, nmis);
            here.user[ASLEEP].store(0, Ordering::SeqCst);
            if (
                here.user[WAKES].load(Ordering::SeqCst),
                here.nmis.load(Ordering::SeqCst),
            ) == seen
            {
                here.user[SPURIOUS].fetch_add(1, Ordering::SeqCst);
            }
            continue;
        }
        (wakes, nmis) = seen;
        here.user[ANSWERS].fetch_add(1, Ordering::SeqCst);
    }
}

fn others() -> impl Iterator<Item = CpuIndex> {
    CpuIndex::first(smp::count()).skip(1)
}

/// A way to wake the others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Others,
    All,
    Broadcast,
    Physical,
    Logical,
    Group,
    Nmi,
}

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Self::Others => "others",
            Self::All => "all",
            Self::Broadcast => "broadcast",
            Self::Physical => "physical",
            Self::Logical => "logical",
            Self::Group => "group",
            Self::Nmi => "nmi",
        }
    }

    /// Whether it can reach `cpu`: the flat model has eight logical ids.
    fn reaches(self, cpu: CpuIndex) -> bool {
        !matches!(self, Self::Logical | Self::Group)
            || percpu::of(cpu).logical_id.load(Ordering::Relaxed) != 0
    }

    /// Whether the sender gets it too.
    const fn comes_back(self) -> bool {
        matches!(self, Self::All | Self::Broadcast)
    }

    fn send(self) {
        let reached = || others().filter(|&cpu| self.reaches(cpu));
        match self {
            Self::Others => lapic::send(Target::Others, Message::Fixed(WAKE)),
            Self::All => lapic::send(Target::All, Message::Fixed(WAKE)),
            Self::Broadcast => lapic::send(Target::PhysicalAll, Message::Fixed(WAKE)),
            Self::Physical => {
                reached().for_each(|cpu| lapic::send(Target::Physical(cpu), Message::Fixed(WAKE)))
            }
            Self::Logical => {
                reached().for_each(|cpu| lapic::send(Target::Logical(cpu), Message::Fixed(WAKE)))
            }
            Self::Group => reached()
                .filter(|&cpu| is_first_of_cluster(cpu))
                .for_each(|cpu| {
                    lapic::send_logical(members_of_cluster(cpu), WAKE);
                }),
            Self::Nmi => reached().for_each(|cpu| lapic::send(Target::Physical(cpu), Message::Nmi)),
        }
    }
}

fn logical_id(cpu: CpuIndex) -> u32 {
    percpu::of(cpu).logical_id.load(Ordering::Relaxed)
}

/// The upper half of an x2APIC logical id names its cluster; in the flat model all are one cluster.
fn same_cluster(one: CpuIndex, other: CpuIndex) -> bool {
    logical_id(one) >> 16 == logical_id(other) >> 16
}

fn is_first_of_cluster(cpu: CpuIndex) -> bool {
    !others().any(|other| other < cpu && same_cluster(other, cpu))
}

fn members_of_cluster(cpu: CpuIndex) -> u32 {
    others()
        .filter(|&other| same_cluster(other, cpu))
        .fold(0, |ids, other| ids | logical_id(other))
}

fn main(machine: &Machine<'_>) {
    let options = &machine.options;
    let rounds = options.number("rounds", 20, 1..=1_000_000) as u32;
    let timeout = options.number("timeout-ms", 20_000, 1..=10_000_000);
    let mask = options.choice("masking", &["on", "off"], 0) == 0;
    options.report_unknown();

    smp::start();
    figure!("cpus", smp::count(), "vcpus");
    figure!("rounds", rounds, "rounds");
    if smp::count() > 1 {
        for way in [
            Way::Others,
            Way::All,
            Way::Broadcast,
            Way::Physical,
            Way::Logical,
            Way::Group,
            Way::Nmi,
            Way::Others,
        ] {
            wake_rounds(way, rounds, timeout);
        }
        let spurious: u32 = others()
            .map(|cpu| percpu::of(cpu).user[SPURIOUS].load(Ordering::SeqCst))
            .sum();
        figure!("spurious_wakes", spurious, "wakes");
    }
    // Named one by one: a host that hangs in one of them shows in which.
    let groups: [(&str, bool, fn()); 3] = [
        ("self-IPIs", true, self_ipis),
        ("priorities", true, priorities),
        ("masking", mask, masking),
    ];
    for (name, _, group) in groups.into_iter().filter(|&(_, wanted, _)| wanted) {
        print!("smp: {name}");
        group();
    }
}

fn wake_rounds(way: Way, rounds: u32, timeout: u64) {
    let counter = |cpu: CpuIndex| {
        let area = percpu::of(cpu);
        if way == Way::Nmi {
            &area.nmis
        } else {
            &area.user[WAKES]
        }
    };
    let mut time = Summary::new();
    for round in 0..rounds {
        timer::spin_until(timeout, "all other vCPUs halted", || {
            others().all(|cpu| percpu::of(cpu).user[ASLEEP].load(Ordering::SeqCst) != 0)
        });
        // They have said that they are about to halt: time to do it.
        timer::sleep_micros(50);
        let before = others()
            .map(|cpu| counter(cpu).load(Ordering::SeqCst))
            .fold(0, u32::wrapping_add);
        let answers = || {
            others()
                .map(|cpu| percpu::of(cpu).user[ANSWERS].load(Ordering::SeqCst))
                .fold(0, u32::wrapping_add)
        };
        let answered = answers();
        let own = percpu::here().user[WAKES].load(Ordering::SeqCst);
        let due = others().filter(|&cpu| way.reaches(cpu)).count() as u32;

        let begin = cpu::now();
        way.send();
        timer::spin_until(timeout, way.name(), || {
            answers().wrapping_sub(answered) >= due
        });
        time.add(cpu::now().since(begin).0);

        cpu::open_window();
        let after = others()
            .map(|cpu| counter(cpu).load(Ordering::SeqCst))
            .fold(0, u32::wrapping_add);
        check_eq!(
            after.wrapping_sub(before),
            due,
            format_args!("wake-ups by '{}' in round {round}", way.name())
        );
        let came_back = percpu::here().user[WAKES]
            .load(Ordering::SeqCst)
            .wrapping_sub(own);
        check_eq!(
            came_back,
            u32::from(way.comes_back()),
            format_args!("own interrupts by '{}'", way.name())
        );
    }
    figure!(format_args!("wake_{}", way.name()), time.mean(), "ticks");
}

fn came(vector: u8) -> u32 {
    CAME.get(usize::from(vector >> 4))
        .map_or(0, |came| came.load(Ordering::SeqCst))
}

/// Sends `vector` to this vCPU by `send`, and gives how often it then came, with interrupts open for a moment.
fn taken(vector: u8, send: impl FnOnce()) -> u32 {
    let before = came(vector);
    send();
    cpu::open_window();
    came(vector) - before
}

fn to_self(vector: u8) {
    lapic::send(Target::ToSelf, Message::Fixed(vector));
}

fn self_ipis() {
    check_eq!(taken(LOW, || to_self(LOW)), 1, "self-IPI by shorthand");
    let physical = || lapic::send(Target::Physical(CpuIndex::BOOT), Message::Fixed(LOW));
    check_eq!(taken(LOW, physical), 1, "self-IPI by physical id");
    let logical = || lapic::send(Target::Logical(CpuIndex::BOOT), Message::Fixed(LOW));
    check_eq!(taken(LOW, logical), 1, "self-IPI by logical id");
    if lapic::is_x2apic() {
        check_eq!(
            taken(LOW, || lapic::write(Register::SelfIpi, u32::from(LOW))),
            1,
            "self-IPI by the x2APIC register"
        );
    }
    // The same vector twice before it is taken is one interrupt.
    let twice = || {
        to_self(LOW);
        to_self(LOW);
    };
    check_eq!(
        taken(LOW, twice),
        1,
        "two self-IPIs of one vector, pending together"
    );
}

/// Of several pending interrupts the highest class comes first, whatever the order of sending.
fn priorities() {
    ORDER.store(0, Ordering::SeqCst);
    for vector in [EQUAL, HIGH, LOW] {
        to_self(vector);
        check!(
            lapic::is_requested(vector),
            "vector {vector:#x} was sent and is not in the IRR"
        );
    }
    cpu::open_window();
    check_eq!(
        ORDER.load(Ordering::SeqCst),
        0x765,
        "classes in the order they came, as digits"
    );
    check!(
        !lapic::is_requested(HIGH),
        "vector {HIGH:#x} was taken and is still in the IRR"
    );
}

fn masking() {
    let low_ones = || came(LOW) + came(EQUAL);
    let before = low_ones();
    lapic::write(Register::Tpr, PRIORITY);
    check_eq!(lapic::read(Register::Tpr), PRIORITY, "TPR read back");
    check_eq!(
        cpu::read_cr8(),
        u64::from(PRIORITY >> 4),
        "CR8 after a write to the TPR"
    );
    check_eq!(taken(LOW, || to_self(LOW)), 0, "interrupt below the TPR");
    check_eq!(
        taken(EQUAL, || to_self(EQUAL)),
        0,
        "interrupt of the TPR's class"
    );
    check_eq!(taken(HIGH, || to_self(HIGH)), 1, "interrupt above the TPR");
    check!(
        lapic::is_requested(LOW) && lapic::is_requested(EQUAL),
        "a masked interrupt has left the IRR"
    );

    // A masked interrupt must not end a halt; the timer's class is above the TPR.
    let wake = timer::sleep_until(cpu::now().after(guest_tests::tsc::rate().millis(1)));
    check_eq!(wake.spurious, 0, "halts ended by a masked interrupt");
    check_eq!(
        low_ones(),
        before,
        "low interrupts taken, with those that were masked"
    );

    cpu::write_cr8(5);
    check_eq!(lapic::read(Register::Tpr), 0x50, "TPR after a write to CR8");
    check_eq!(
        taken(EQUAL, || {}),
        1,
        "interrupt that the TPR lets through again"
    );
    check_eq!(
        taken(LOW, || cpu::write_cr8(0)),
        1,
        "interrupt that CR8 lets through again"
    );
    check_eq!(lapic::read(Register::Tpr), 0, "TPR after CR8 was cleared");
}
