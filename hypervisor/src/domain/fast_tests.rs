//! Answers at the gate: the same as those behind it, and without leaving the guest.
use super::*;
use crate::domain::stats::ExitKind;

/// What a guest sees, what the host was asked, and what was counted.
type Seen = ([u64; 16], u64, u8, Vec<Asked>, Vec<Injection>, [u64; 4]);

const KINDS: [ExitKind; 4] = [
    ExitKind::Cpuid,
    ExitKind::Msr,
    ExitKind::Eoi,
    ExitKind::Other,
];

/// Two vCPUs in x2APIC mode; the first does `steps`, each an exit, answered at the gate or not.
fn run(fast: bool, steps: &[fn(&mut MockState) -> Exit]) -> (Seen, usize) {
    let mut g = Guest::two_up();
    g.cpu(0).fast = fast;
    g.cpu(0).next_rip = Some(0x77);
    let before = KINDS.map(|k| g.vcpu(0).exits().get(k));
    g.gates.clear();
    g.host.take();
    for &step in steps {
        g.cpus[0].does(step);
    }
    assert_eq!(g.enter(0), Events);
    let counted = KINDS.map(|k| g.vcpu(0).exits().get(k));
    let counts = [0, 1, 2, 3].map(|i| counted[i] - before[i]);
    let taken = g.taken(0);
    let (gpr, rip, cr8) = {
        let s = g.cpu(0);
        (s.gpr, s.cpu.rip, s.cr8)
    };
    let passes = g
        .gates
        .iter()
        .filter(|g| **g == GateEvent::Entering)
        .count();
    ((gpr, rip, cr8, g.host.take(), taken, counts), passes)
}

fn registers(s: &mut MockState, rax: u64, rcx: u64, rdx: u64) {
    s.gpr[Gpr::Rax.index()] = rax;
    s.gpr[Gpr::Rcx.index()] = rcx;
    s.gpr[Gpr::Rdx.index()] = rdx;
}

macro_rules! cpuid {
    ($leaf:expr, $subleaf:expr) => {
        (|s: &mut MockState| {
            registers(s, 0xffff_0000_0000_0000 | $leaf, $subleaf, 3);
            Exit::Cpuid
        }) as fn(&mut MockState) -> Exit
    };
}
macro_rules! rdmsr {
    ($msr:expr) => {
        (|s: &mut MockState| {
            registers(s, 1, $msr, 3);
            Exit::Rdmsr
        }) as fn(&mut MockState) -> Exit
    };
}
macro_rules! wrmsr {
    ($msr:expr, $value:expr) => {
        (|s: &mut MockState| {
            let value: u64 = $value;
            registers(
                s,
                0xdead_0000_0000_0000 | value & 0xffff_ffff,
                $msr,
                value >> 32,
            );
            Exit::Wrmsr
        }) as fn(&mut MockState) -> Exit
    };
}

#[test]
fn every_answer_is_the_one_that_the_exit_would_get() {
    type Case = fn(&mut MockState) -> Exit;
    const SVR: Case = rdmsr!(0x80f);
    let all: &[&[Case]] = &[
        &[cpuid!(0, 0), cpuid!(0, 5)],
        &[cpuid!(1, 0), cpuid!(1, 9)],
        &[cpuid!(4, 0), cpuid!(4, 1), cpuid!(4, 0)],
        &[cpuid!(0xb, 1), cpuid!(0xb, 0), cpuid!(0xb, 1)],
        &[cpuid!(0xd, 0), cpuid!(0xd, 1), cpuid!(0xd, 0)],
        &[
            cpuid!(0x4000_0000, 0),
            cpuid!(0x4000_0010, 0),
            cpuid!(0x4000_0000, 7),
        ],
        &[cpuid!(0x8000_0008, 0), cpuid!(0x8000_0008, 0)],
        &[
            cpuid!(0xc000_0000, 0),
            cpuid!(0x1_0001, 0),
            cpuid!(0x1_0001, 0),
        ],
        &[SVR],
        &[rdmsr!(0x802), rdmsr!(0x803), rdmsr!(0x80d)],
        &[rdmsr!(0x80b)],
        &[rdmsr!(0x839)],
        &[rdmsr!(0x1b), rdmsr!(0x6e0), rdmsr!(0xfe)],
        &[wrmsr!(0x808, 0x53), rdmsr!(0x808), rdmsr!(0x80a)],
        &[wrmsr!(0x808, 0x100)],
        &[wrmsr!(0x80b, 0), wrmsr!(0x80b, 1)],
        &[wrmsr!(0x830, 1 << 32 | 0x41), rdmsr!(0x830)],
        &[wrmsr!(0x830, 0x41)],
        &[wrmsr!(0x830, 0x4_0042), rdmsr!(0x822), rdmsr!(0x830)],
        &[wrmsr!(0x830, 0x4_0005), wrmsr!(0x830, 0x8_0042)],
        &[wrmsr!(0x83f, 0x43), rdmsr!(0x822), rdmsr!(0x830)],
        &[wrmsr!(0x83f, 5), wrmsr!(0x83f, 0x100)],
        &[wrmsr!(0x830, 1 << 32 | 0x5)],
        &[
            wrmsr!(0x830, 1 << 32 | 0x441),
            wrmsr!(0x830, 7 << 32 | 0x41),
        ],
        &[
            wrmsr!(0x832, 0x4_0040),
            wrmsr!(0x6e0, 5000),
            rdmsr!(0x6e0),
            wrmsr!(0x6e0, 0),
        ],
        &[wrmsr!(0x832, 0x4_0040), wrmsr!(0x6e0, 1)],
        &[|_| Exit::Hypercall, SVR],
    ];
    for (number, steps) in all.iter().enumerate() {
        let (slow, fast) = (run(false, steps).0, run(true, steps).0);
        assert_eq!(slow, fast, "sequence {number}");
    }
}

#[test]
fn the_guest_is_not_left_for_an_answer() {
    let steps = [
        cpuid!(1, 0),
        cpuid!(1, 0),
        rdmsr!(0x80f),
        wrmsr!(0x80b, 0),
        wrmsr!(0x830, 1 << 32 | 0x41),
    ];
    // The first one of CPUID is not known yet; the last entry is the one that ends by an event.
    let ((.., asked, _, counts), passes) = run(true, &steps);
    assert_eq!((passes, counts), (2, [2, 2, 1, 0]));
    assert_eq!(asked, [Asked::Kick(11)]);
    assert_eq!(run(false, &steps).1, 6);
}

#[test]
fn leaf_1_follows_cr4_and_the_apic() {
    let mut g = Guest::two_up();
    g.cpu(0).fast = true;
    let ask = |g: &mut Guest, cr4: u64| {
        g.cpu(0).cpu.cr4 = cr4;
        g.cpus[0].does(|s| {
            registers(s, 1, 0, 0);
            Exit::Cpuid
        });
        assert_eq!(g.enter(0), Events);
        let s = g.cpu(0);
        (
            s.gpr[Gpr::Rcx.index()] >> 27 & 1,
            s.gpr[Gpr::Rdx.index()] >> 9 & 1,
        )
    };
    let xsave = u64::from(raw_cpuid::cpuid!(1).ecx >> 26 & 1);
    assert_eq!(ask(&mut g, 0), (0, 1));
    assert_eq!(ask(&mut g, 1 << 18), (xsave, 1));
    assert_eq!(ask(&mut g, 0), (0, 1));
    g.wrmsr(0, 0x1b, 0xfee0_0100);
    assert_eq!(g.enter(0), Events);
    assert_eq!(ask(&mut g, 0), (0, 0));
}

#[test]
fn an_interrupt_that_an_answer_lets_through_is_delivered() {
    for fast in [false, true] {
        let mut g = Guest::two_up();
        g.cpu(0).fast = fast;
        g.vcpu(0).lapic().irr().insert(0x55);
        g.wrmsr(0, 0x808, 0x60);
        assert_eq!(g.enter(0), Events);
        // It came in before the priority was raised; the next waits for its end.
        assert_eq!(g.taken(0), [Injection::Interrupt(0x55)]);
        g.vcpu(0).lapic().irr().insert(0x51);
        assert_eq!(g.enter(0), Events);
        assert_eq!(g.taken(0), [], "in service, and masked");
        g.wrmsr(0, 0x80b, 0);
        assert_eq!(g.enter(0), Events);
        assert_eq!(g.taken(0), [], "masked");
        g.wrmsr(0, 0x808, 0x40);
        assert_eq!(g.enter(0), Events);
        assert_eq!(g.taken(0), [Injection::Interrupt(0x51)], "fast: {fast}");
    }
}

#[test]
fn an_event_of_our_own_ends_the_run() {
    let g = Guest::two_up();
    g.cpu(0).fast = true;
    let ran = std::sync::Arc::new(core::sync::atomic::AtomicU32::new(0));
    for _ in 0..3 {
        let ran = ran.clone();
        g.cpus[0].does(move |s| {
            ran.fetch_add(1, Ordering::SeqCst);
            registers(s, 0, 0x80f, 0);
            Exit::Rdmsr
        });
    }
    // As the wake of a vCPU does that is to run here.
    let word = &g.word;
    let vcpu = &g.domain.vcpus()[0];
    let outcome = g.domain.enter(vcpu, &g.host, CPU, word, &mut |event| {
        if event == GateEvent::Entering {
            word.post_local(lull_core::wake::Events::RESCHED);
        }
    });
    assert_eq!(outcome, Events);
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}

#[test]
fn lengths_are_found_through_the_guests_tables_or_not_at_all() {
    let mut g = guest(1);
    let memory = g.domain.memory.lock().clone().expect("not reaped");
    // 4 KiB pages: 0x7000 is at 0x20_0000, 0x8000 at 0x20_1000.
    for (at, entry) in [
        (0x1000, 0x2003),
        (0x2000, 0x3003),
        (0x3000, 0x4003),
        (0x4038, 0x20_0003),
        (0x4040, 0x20_1003),
    ] {
        memory.write_u64(at, entry).expect("in range");
    }
    let long = [0x66u8, 0x66, 0x2e, 0x48, 0x0f, 0xa2];
    let cases: [(u64, &[u8], usize); 4] = [
        (0x7010, &[0x0f, 0xa2], 2),
        (0x7020, &long, 6),
        // Beyond the page, or too near to its end to tell: left to the exit's own way.
        (0x7ffd, &long, 6),
        (0x7ffe, &[0x0f, 0xa2], 2),
    ];
    for (rip, code, length) in cases {
        for (byte, at) in code.iter().zip(rip..) {
            let gpa = 0x20_0000 + (at - 0x7000);
            memory.write(gpa, &[*byte]).expect("in range");
        }
        for fast in [false, true] {
            let mut s = g.cpu(0);
            (s.fast, s.next_rip) = (fast, None);
            (s.cpu.rip, s.cpu.cr3) = (rip, 0x1000);
            (s.cpu.cr0, s.cpu.cr4) = (0x8000_0001, 1 << 5);
            drop(s);
            g.cpus[0].does(|s| {
                registers(s, 0x4000_0000, 0, 0);
                Exit::Cpuid
            });
            assert_eq!(g.enter(0), Events);
            let s = g.cpu(0);
            assert_eq!(s.cpu.rip, rip + length as u64, "fast: {fast}");
            assert_eq!(
                s.gpr[Gpr::Rbx.index()],
                u64::from(u32::from_le_bytes(*b"Lull"))
            );
        }
    }
    // Not that instruction any more: the guest runs what is there.
    memory.write(0x20_0010, &[0x90, 0x90]).expect("in range");
    g.cpu(0).cpu.rip = 0x7010;
    g.cpus[0].exits(Exit::Cpuid);
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.cpu(0).cpu.rip, 0x7010);
}

#[test]
fn what_waits_without_a_window_is_offered_at_the_next_exit_whatever_it_is() {
    let mut g = Guest::two_up();
    g.cpu(0).fast = true;
    // In a shadow, an NMI cannot go in, and the machine has no window for it.
    g.cpu(0).shadow = true;
    g.vcpu(0).lapic().request(Requests::NMI);
    let read = |g: &Guest| {
        g.cpus[0].does(|s| {
            registers(s, 0, 0x80f, 0);
            Exit::Rdmsr
        });
    };
    read(&g);
    read(&g);
    g.gates.clear();
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.taken(0), [Injection::Nmi]);
    // The first left the guest; the second, with nothing more to offer, did not.
    let entered = |gate: &&GateEvent| **gate == GateEvent::Entering;
    assert_eq!(g.gates.iter().filter(entered).count(), 2);
    // Nor is an answer given while an interrupt is held back by the task priority: its window may have gone with a delivery.
    g.wrmsr(0, 0x808, 0x60);
    assert_eq!(g.enter(0), Events);
    g.vcpu(0).lapic().irr().insert(0x55);
    read(&g);
    read(&g);
    g.gates.clear();
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.gates.iter().filter(entered).count(), 3);
}
