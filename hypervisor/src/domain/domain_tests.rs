//! From creation to the return of the memory.
use super::fixture::{ElfBuilder, Load};
use super::fixture_host::{Asked, CPU, MockHost, MockMachinery};
use super::*;
use crate::virt::Exit;

fn kernel() -> Vec<u8> {
    ElfBuilder::new()
        .load(Load::new(0x10_0000, b"code".to_vec(), 0x1000))
        .entry(0x10_0000)
        .build()
}

fn config(vcpus: u32) -> GuestConfig {
    let mut config = GuestConfig::new("test").expect("a name");
    config.vcpus = vcpus;
    config
}

fn create(machinery: &mut MockMachinery, id: u16, first: u32, vcpus: u32) -> Domain {
    let first = VcpuId::new(first);
    Domain::create(
        DomId::new(id),
        config(vcpus),
        &kernel(),
        first,
        machinery,
        Ticks::new(5),
    )
    .expect("good")
}

#[test]
fn a_guest_gets_clean_memory_with_its_kernel() {
    let mut machinery = MockMachinery::default();
    let domain = create(&mut machinery, 1, 0, 2);
    let memory = domain.memory.lock().clone().expect("alive");
    assert_eq!(memory.size(), 32 << 20);
    assert_eq!(memory.read_vec(0x10_0000, 5).expect("in range"), b"code\0");
    assert_eq!(
        memory.read_vec(0x1ff_fff0, 16).expect("in range"),
        [0; 16],
        "cleared to the end"
    );
    let resets = |i: usize| machinery.cpus[i].state().resets.clone();
    assert_eq!(
        resets(0),
        [crate::virt::StartState::Pvh {
            entry: 0x10_0000,
            start_info: 0x9_e000
        }]
    );
    assert_eq!(resets(1), [crate::virt::StartState::WaitForSipi]);
    assert_eq!(domain.reap().map(|m| m.size()), None, "it has not ended");
}

#[test]
fn what_cannot_be_created_leaves_nothing_behind() {
    let mut machinery = MockMachinery {
        full: true,
        ..MockMachinery::default()
    };
    let mut refused = |config: GuestConfig, kernel: &[u8]| {
        Domain::create(
            DomId::new(1),
            config,
            kernel,
            VcpuId::new(0),
            &mut machinery,
            Ticks::ZERO,
        )
        .expect_err("must be refused")
        .to_string()
    };
    assert_eq!(
        refused(config(1), &kernel()),
        "no 32768 KiB of memory: 0 KiB are free"
    );
    assert!(refused(config(0), &kernel()).starts_with("0 vCPUs"));
    assert_eq!(refused(config(1), b"#!"), "not an ELF file");
    assert!(machinery.cpus.is_empty());
}

#[test]
fn the_memory_comes_back_when_the_last_vcpu_has_left() {
    let mut machinery = MockMachinery::default();
    let mut table = DomainTable::new();
    table.push(create(&mut machinery, 1, 0, 1));
    table.push(create(&mut machinery, 2, 1, 3));
    assert_eq!((table.slots(), table.next_slot()), (4, VcpuId::new(4)));
    let (host, word) = (MockHost::default(), WakeWord::new());
    table.iter().for_each(|d| d.start(&host));
    assert_eq!(host.take(), [Asked::Online(0), Asked::Online(1)]);
    let enter = |v: u32| table.enter(VcpuId::new(v), &host, CPU, &word, &mut |_| {});

    // The first vCPU of the second guest starts the second one; both run when a third fault ends the guest.
    machinery.cpus[1].does(|s| {
        (s.gpr[1], s.gpr[0], s.gpr[2]) = (0x1b, 0xfee0_0d00, 0);
        Exit::Wrmsr
    });
    machinery.cpus[1].does(|s| {
        (s.gpr[1], s.gpr[0], s.gpr[2]) = (0x830, 0x4608, 1);
        Exit::Wrmsr
    });
    assert_eq!(enter(1), RunOutcome::Events);
    assert_eq!(host.take(), [Asked::Online(2)]);
    machinery.cpus[2].exits(Exit::TripleFault);
    assert_eq!(enter(2), RunOutcome::Gone);
    assert_eq!(host.take(), [Asked::Kick(1)]);
    let second = table.domain(DomId::new(2)).expect("there");
    assert!(
        second.is_ending() && second.reap().is_none(),
        "one is still in"
    );
    assert!(!table.all_ended());

    let late = &second.vcpus()[2];
    second.bring_online(late, &host);
    assert_eq!(host.take(), [], "nobody joins a guest that is over");
    assert_eq!(enter(1), RunOutcome::Gone);
    assert_eq!(host.take(), [Asked::Ended(2)]);
    assert_eq!(second.reap().map(|m| m.size()), Some(32 << 20));
    assert!(second.reap().is_none(), "once");
    assert_eq!(
        second.end_report().expect("over").reason,
        EndReason::TripleFault
    );

    assert_eq!(enter(0), RunOutcome::Events, "the other guest goes on");
    let first = table.domain(DomId::new(1)).expect("there");
    first.kill("time is up", &host);
    assert_eq!(host.take(), [Asked::Kick(0)]);
    assert_eq!(enter(0), RunOutcome::Gone);
    assert_eq!(
        first.end_report().expect("over").reason.to_string(),
        "killed: time is up"
    );
    assert!(table.all_ended());
    assert_eq!(enter(99), RunOutcome::Gone);
    assert!(table.vcpu(VcpuId::new(4)).is_none());
    assert_eq!(
        table.vcpu(VcpuId::new(3)).map(|(d, v)| (d.id(), v.id())),
        Some((DomId::new(2), VcpuId::new(3)))
    );
}

#[test]
fn a_guest_that_ends_before_it_ran_can_be_reaped() {
    let mut machinery = MockMachinery::default();
    let domain = create(&mut machinery, 1, 0, 1);
    domain.kill("no CPU for it", &MockHost::default());
    assert!(domain.reap().is_some(), "nobody has to leave");
    let host = MockHost::default();
    domain.start(&host);
    assert_eq!(host.take(), []);
}
