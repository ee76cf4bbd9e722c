//! A processor that delivers interrupts by itself: it is given all of them, and none is injected, lost or doubled.
use super::*;
use crate::domain::stats::ExitKind;

fn virtualized() -> Guest {
    let mut g = guest(1);
    g.cpu(0).virtualizes = true;
    g.x2apic(0);
    g
}

#[test]
fn what_was_requested_is_lent_and_what_is_left_of_it_waits() {
    let mut g = virtualized();
    for vector in [0x41, 0x52] {
        g.vcpu(0).lapic().irr().insert(vector);
    }
    g.cpus[0].does(|s| {
        assert_eq!(s.apic.requested.highest(), Some(0x52));
        // The guest takes the higher one, and is interrupted by another machine's doing.
        s.apic.requested.remove(0x52);
        s.apic.in_service.insert(0x52);
        Exit::Handled
    });
    g.cpus[0].does(|s| {
        assert_eq!(s.apic.in_service.highest(), Some(0x52));
        assert_eq!(s.apic.requested.highest(), Some(0x41));
        s.apic.tpr = 0x4f;
        s.apic.in_service.remove(0x52);
        Exit::Event
    });
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.taken(0), []);
    assert_eq!(g.cpu(0).window, None);
    assert_eq!(g.vcpu(0).lapic().irr().highest(), Some(0x41));
    // The task priority that it wrote without an exit is known: what it masks does not end a halt.
    g.cpus[0].exits(Exit::Hlt);
    assert_eq!(g.enter(0), Block);
    g.vcpu(0).lapic().irr().insert(0x61);
    g.cpus[0].does(|s| {
        assert_eq!((s.apic.tpr, s.apic.requested.highest()), (0x4f, Some(0x61)));
        Exit::Event
    });
    assert_eq!(g.enter(0), Events);
}

#[test]
fn an_apic_that_leaves_the_mode_is_ours_again() {
    let mut g = virtualized();
    g.wrmsr(0, 0x1b, 0xfee0_0100);
    g.wrmsr(0, 0x1b, 0xfee0_0900);
    assert_eq!(g.enter(0), Events);
    g.vcpu(0).lapic().irr().insert(0x41);
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.taken(0), [Injection::Interrupt(0x41)]);
    assert!(g.cpu(0).apic.requested.is_empty(), "nothing is lent");
}

#[test]
fn an_apic_that_is_switched_off_by_software_takes_no_interrupt_of_its_own() {
    let mut g = virtualized();
    g.wrmsr(0, 0x80f, 0xff);
    g.cpus[0].does(|s| {
        // What a processor would do by itself, to which the APIC is lent.
        s.apic.requested.insert(0x41);
        s.gpr[Gpr::Rcx.index()] = 0x83f;
        s.gpr[Gpr::Rax.index()] = 0x41;
        Exit::Wrmsr
    });
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.vcpu(0).lapic().irr().highest(), None);
    g.wrmsr(0, 0x80f, 0x1ff);
    g.cpus[0].does(|s| {
        s.apic.requested.insert(0x41);
        Exit::Event
    });
    assert_eq!(g.enter(0), Events);
    let requested = g.vcpu(0).lapic().irr().highest();
    assert_eq!(requested, Some(0x41), "lent again");
}

#[test]
fn a_reset_leaves_nothing_lent() {
    let mut g = virtualized();
    g.vcpu(0).lapic().irr().insert(0x41);
    g.cpus[0].does(|s| {
        s.apic.tpr = 0x20;
        s.apic.in_service.insert(0x52);
        Exit::Event
    });
    assert_eq!(g.enter(0), Events);
    g.vcpu(0).lapic().request(Requests::INIT);
    g.vcpu(0).lapic().request_sipi(8);
    g.cpus[0].does(|s| {
        assert_eq!(s.apic, crate::virt::ApicState::default());
        Exit::Event
    });
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.taken(0), []);
}

#[test]
fn an_nmi_goes_in_beside_what_is_lent() {
    let mut g = virtualized();
    g.vcpu(0).lapic().irr().insert(0x41);
    g.vcpu(0).lapic().request(Requests::NMI);
    g.cpu(0).shadow = true;
    g.cpus[0]
        .does(|s| {
            assert_eq!((s.taken.len(), s.apic.requested.highest()), (0, Some(0x41)));
            s.shadow = false;
            Exit::Handled
        })
        .does(|s| {
            assert_eq!(s.taken, [Injection::Nmi]);
            assert_eq!(s.apic.requested.highest(), Some(0x41));
            Exit::Event
        });
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.taken(0), [Injection::Nmi]);
}

#[test]
fn an_illegal_vector_to_itself_is_an_error() {
    let mut g = virtualized();
    g.cpus[0].exits(Exit::ApicWrite {
        offset: 0x3f0,
        value: 5,
    });
    g.wrmsr(0, 0x828, 0);
    assert_eq!(g.enter(0), Events);
    g.cpus[0].does(|s| {
        s.gpr[Gpr::Rcx.index()] = 0x828;
        Exit::Rdmsr
    });
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.cpu(0).gpr[Gpr::Rax.index()], 1 << 5);
}

#[test]
fn a_vcpu_that_posts_is_notified_once_until_it_looks() {
    let mut g = Guest::two_up();
    let ipi = |g: &mut Guest, command: u64| {
        g.wrmsr(0, 0x830, 1 << 32 | command);
        assert_eq!(g.enter(0), Events);
        g.host.take()
    };
    assert_eq!(ipi(&mut g, 0x41), [Asked::Kick(11)], "its processor cannot");
    let interrupts = g.vcpu(1).lapic().interrupts().clone();
    interrupts.set_posting(true);
    assert_eq!(ipi(&mut g, 0x42), [Asked::Notify(11)]);
    assert_eq!(ipi(&mut g, 0x43), [], "rides along");
    assert_eq!(
        ipi(&mut g, 0x400),
        [Asked::Kick(11)],
        "an NMI has no vector"
    );
    assert_eq!(interrupts.sent(), 1);
    // It looks.
    assert_eq!(g.enter(1), Events);
    g.host.take();
    assert_eq!(ipi(&mut g, 0x44), [Asked::Notify(11)]);
}

#[test]
fn ends_of_interrupts_and_task_priorities_are_counted_apart() {
    let mut g = Guest::two_up();
    g.wrmsr(0, 0x80b, 0);
    g.wrmsr(0, 0x808, 0x20);
    g.cpus[0].exits(Exit::Cr8Write);
    assert_eq!(g.enter(0), Events);
    let count = |kind| g.vcpu(0).exits().get(kind);
    assert_eq!((count(ExitKind::Eoi), count(ExitKind::Tpr)), (1, 2));
}
