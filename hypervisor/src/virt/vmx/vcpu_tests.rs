use lull_core::wake::{Events, SleepState, WakeWord};

use super::super::capability::tests::{Fake, cpuid, skylake};
use super::super::check;
use super::super::mock::{INVEPTS, INVVPIDS};
use super::super::{ApicWanted, Vmx};
use super::*;
use crate::virt::{ApicMode, ApicState, Exit, GateEvent, Gpr, GuestMemory};

const CPU0: CpuId = CpuId::new(0);
const CPU1: CpuId = CpuId::new(1);
const PVH: StartState = StartState::Pvh {
    entry: 0x10_0000,
    start_info: 0x7000,
};

fn machine(fake: &Fake) -> (Vmx, Ept) {
    let msrs = |msr| fake.get(&msr).copied();
    let vmx = Vmx::detect(&cpuid, &msrs, ApicWanted::default()).unwrap();
    vmx.enable_on_this_cpu(CPU0).unwrap();
    vmx.enable_on_this_cpu(CPU1).unwrap();
    let ept = vmx.new_ept(&GuestMemory::leaked(GuestMemory::ALIGN));
    (vmx, ept)
}

fn loaded_on(fake: &Fake) -> VmxVcpu {
    let (vmx, ept) = machine(fake);
    let mut vcpu = vmx.new_vcpu(&ept);
    vcpu.reset(PVH);
    vcpu.attach(CPU0);
    vcpu
}

fn loaded() -> VmxVcpu {
    loaded_on(&skylake())
}

fn without_tpr_shadow() -> Fake {
    let mut fake = skylake();
    *fake
        .get_mut(&x86::msr::IA32_VMX_TRUE_PROCBASED_CTLS)
        .unwrap() &= !(1 << (32 + 21));
    fake
}

/// The guest leaves for this reason at once.
fn exit(vcpu: &mut VmxVcpu, fields: &[(Field, u64)]) -> Exit {
    for field in [
        Field::EXIT_INTERRUPTION,
        Field::VECTORING,
        Field::QUALIFICATION,
    ] {
        vcpu.vmcs.write(field, 0);
    }
    for &(field, value) in fields {
        vcpu.vmcs.write(field, value);
    }
    vcpu.enter(&WakeWord::new(), &mut |_: GateEvent| ())
}

fn primary(vcpu: &VmxVcpu) -> PrimaryControls {
    PrimaryControls::from_bits_truncate(vcpu.vmcs.read(Field::PRIMARY) as u32)
}

#[test]
fn a_reset_before_the_first_load_is_not_lost() {
    let vcpu = loaded();
    assert_eq!(vcpu.rip(), 0x10_0000);
    assert_eq!(vcpu.gpr(Gpr::Rbx), 0x7000);
    assert_eq!(check::broken_rule(&vcpu.vmcs), None);
    let state = vcpu.cpu_state();
    assert_eq!((state.cr0, state.cr4, state.cpl), (0x11, 0, 0));
    assert_eq!(state.code_bits(), 32);
}

#[test]
fn all_that_must_be_intercepted_is() {
    let vcpu = loaded();
    let on = |control: PrimaryControls| assert!(primary(&vcpu).contains(control), "{control:?}");
    on(PrimaryControls::HLT_EXITING | PrimaryControls::MWAIT_EXITING);
    on(PrimaryControls::MONITOR_EXITING | PrimaryControls::RDPMC_EXITING);
    on(PrimaryControls::UNCOND_IO_EXITING | PrimaryControls::USE_MSR_BITMAPS);
    let windows = PrimaryControls::INTERRUPT_WINDOW_EXITING | PrimaryControls::NMI_WINDOW_EXITING;
    assert!(!primary(&vcpu).intersects(windows), "only on demand");
    assert_eq!(vcpu.vmcs.read(Field::EXCEPTIONS), 0x0006_0002);
    assert_eq!(vcpu.vmcs.read(Field::PIN) & 0x69, 0x69);
    assert_eq!(vcpu.vmcs.read(Field::CR4_MASK), 0x2000);
    assert_eq!(vcpu.vmcs.read(Field::LINK_POINTER), u64::MAX);
}

#[test]
fn it_is_active_on_one_cpu_only_and_finds_that_cpus_own_state() {
    let (vmx, ept) = machine(&skylake());
    let mut vcpu = vmx.new_vcpu(&ept);
    vcpu.attach(CPU0);
    vcpu.launched = true;
    vcpu.vmcs.write(Field::HOST_GS_BASE, 77);
    vcpu.detach();
    assert!(!vcpu.vmcs.is_current() && !vcpu.launched);
    vcpu.attach(CPU0);
    assert_eq!(vcpu.vmcs.read(Field::HOST_GS_BASE), 77, "the same CPU");
    vcpu.detach();
    vcpu.attach(CPU1);
    assert_eq!(vcpu.vmcs.read(Field::HOST_GS_BASE), 0, "another one");
}

#[test]
fn translations_are_dropped_where_the_vcpu_comes_from_elsewhere() {
    let (vmx, ept) = machine(&skylake());
    let (mut a, mut b) = (vmx.new_vcpu(&ept), vmx.new_vcpu(&ept));
    assert_ne!(a.vpid, b.vpid);
    let dropped = || INVVPIDS.with_borrow_mut(core::mem::take);
    let _ = dropped();
    a.reset = None;
    a.attach(CPU0);
    assert_eq!(dropped(), [a.vpid], "whoever had the number before");
    a.detach();
    b.reset = None;
    b.attach(CPU0);
    b.detach();
    let _ = dropped();
    a.attach(CPU0);
    assert_eq!(dropped(), [0; 0], "nobody else has used it");
    a.detach();
    a.attach(CPU1);
    assert_eq!(dropped(), [a.vpid]);
    a.detach();
    a.attach(CPU0);
    assert_eq!(dropped(), [a.vpid], "the guest may have changed its tables");
    let (vpid, vmx) = (a.vpid, vmx);
    drop(a);
    assert_eq!(vmx.new_vcpu(&ept).vpid, vpid, "given back");
}

#[test]
fn tables_of_a_guest_that_is_gone_are_dropped_before_an_entry() {
    let (vmx, ept) = machine(&skylake());
    let mut vcpu = vmx.new_vcpu(&ept);
    vcpu.attach(CPU0);
    let enter = |vcpu: &mut VmxVcpu| {
        let before = INVEPTS.get();
        let _ = exit(vcpu, &[(Field::EXIT_REASON, 10)]);
        INVEPTS.get() - before
    };
    enter(&mut vcpu);
    // Other tests make tables meanwhile, which only drops more.
    let _new = vmx.new_ept(&GuestMemory::leaked(GuestMemory::ALIGN));
    assert_eq!(enter(&mut vcpu), 1);
}

#[test]
fn the_gate_is_closed_by_an_event_and_open_without() {
    let mut vcpu = loaded();
    let word = WakeWord::new();
    vcpu.vmcs.write(Field::EXIT_REASON, 10);
    let mut stamps = 0;
    word.post_local(Events::CALL);
    assert_eq!(
        vcpu.enter(&word, &mut |_: GateEvent| stamps += 1),
        Exit::Event
    );
    assert_eq!((stamps, word.take()), (0, Events::CALL));
    assert!(!vcpu.launched);
    assert_eq!(
        vcpu.enter(&word, &mut |_: GateEvent| stamps += 1),
        Exit::Cpuid
    );
    assert_eq!(stamps, 2);
    assert_eq!(word.state(), SleepState::Awake);
    assert!(vcpu.launched);
}

#[test]
fn a_vcpu_that_is_not_loaded_does_not_run() {
    let (vmx, ept) = machine(&skylake());
    let mut vcpu = vmx.new_vcpu(&ept);
    let exit = vcpu.enter(&WakeWord::new(), &mut |_: GateEvent| ());
    assert!(matches!(exit, Exit::Invalid { .. }));
    vcpu.attach(CpuId::new(9));
    let Exit::Invalid { reason } = vcpu.enter(&WakeWord::new(), &mut |_: GateEvent| ()) else {
        panic!("VMX is not on there")
    };
    assert!(reason.contains("not enabled on CPU 9"), "{reason}");
}

#[test]
fn a_refused_state_names_the_rule() {
    let mut vcpu = loaded();
    vcpu.vmcs.write(Field::PAT, 2);
    let Exit::Invalid { reason } = exit(&mut vcpu, &[(Field::EXIT_REASON, 1 << 31 | 33)]) else {
        panic!("must end the guest")
    };
    assert!(
        reason.starts_with(
            "the processor refused the vCPU's state: the PAT has a reserved memory type"
        ),
        "{reason}"
    );
}

#[test]
fn an_interrupted_delivery_is_made_again() {
    let mut vcpu = loaded();
    vcpu.set_rflags(RFLAGS_IF | 2);
    assert!(vcpu.interruptible());
    vcpu.inject(Injection::Interrupt(0x40));
    assert!(!vcpu.interruptible() && !vcpu.nmi_ready());
    let _ = exit(
        &mut vcpu,
        &[(Field::EXIT_REASON, 48), (Field::VECTORING, 0x8000_0040)],
    );
    assert_eq!(vcpu.vmcs.read(Field::INJECTION), 0x8000_0040);
    assert!(vcpu.injection_pending());
    let _ = exit(&mut vcpu, &[(Field::EXIT_REASON, 10)]);
    assert!(!vcpu.injection_pending());
    // What the processor has taken is not there a second time.
    vcpu.vmcs.write(Field::INJECTION, 0x40);
    let _ = exit(&mut vcpu, &[(Field::EXIT_REASON, 10)]);
    assert_eq!(vcpu.vmcs.read(Field::INJECTION), 0x40);
}

#[test]
fn an_event_that_was_placed_and_not_entered_with_can_still_change() {
    let mut vcpu = loaded();
    let word = WakeWord::new();
    vcpu.inject(Injection::GP0);
    word.post_local(Events::CALL);
    assert_eq!(vcpu.enter(&word, &mut |_: GateEvent| ()), Exit::Event);
    assert_eq!(vcpu.vmcs.read(Field::INJECTION), 0x8000_0b0d);
    vcpu.reset(PVH);
    let _ = exit(&mut vcpu, &[(Field::EXIT_REASON, 10)]);
    assert_eq!(vcpu.vmcs.read(Field::INJECTION), 0);
}

#[test]
fn an_nmi_masks_the_next_until_the_processor_says_otherwise() {
    let mut vcpu = loaded();
    assert!(vcpu.nmi_ready());
    vcpu.inject(Injection::Nmi);
    let _ = exit(
        &mut vcpu,
        &[
            (Field::EXIT_REASON, 10),
            (Field::INTERRUPTIBILITY, BLOCKED_BY_NMI),
        ],
    );
    assert!(primary(&vcpu).contains(PrimaryControls::NMI_WINDOW_EXITING));
    assert!(!vcpu.nmi_ready());
    let handled = exit(
        &mut vcpu,
        &[(Field::EXIT_REASON, 8), (Field::INTERRUPTIBILITY, 0)],
    );
    assert_eq!(handled, Exit::Handled);
    assert!(vcpu.nmi_ready());
    let _ = exit(&mut vcpu, &[(Field::EXIT_REASON, 10)]);
    assert!(!primary(&vcpu).contains(PrimaryControls::NMI_WINDOW_EXITING));

    // Its delivery met a fault: it must not find itself masked.
    vcpu.inject(Injection::Nmi);
    let _ = exit(
        &mut vcpu,
        &[
            (Field::EXIT_REASON, 48),
            (Field::VECTORING, 0x8000_0202),
            (Field::INTERRUPTIBILITY, BLOCKED_BY_NMI),
        ],
    );
    assert_eq!(vcpu.blocked(), 0);
    assert!(vcpu.injection_pending());

    // IRET met a fault after it had ended the masking.
    let mut vcpu = loaded();
    let _ = exit(
        &mut vcpu,
        &[
            (Field::EXIT_REASON, 48),
            (Field::QUALIFICATION, event::NMI_UNBLOCKED),
        ],
    );
    assert_eq!(vcpu.blocked(), BLOCKED_BY_NMI);
}

#[test]
fn windows_wait_for_the_task_priority_first() {
    let mut vcpu = loaded();
    let at_exit = |vcpu: &mut VmxVcpu, basic| {
        let exit = exit(vcpu, &[(Field::EXIT_REASON, basic)]);
        let open = primary(vcpu).contains(PrimaryControls::INTERRUPT_WINDOW_EXITING);
        (exit, open, vcpu.vmcs.read(Field::TPR_THRESHOLD))
    };
    vcpu.want_window(true);
    assert_eq!(
        at_exit(&mut vcpu, 7),
        (Exit::InterruptWindow, true, 0),
        "open once"
    );
    assert_eq!(at_exit(&mut vcpu, 10), (Exit::Cpuid, false, 0));
    vcpu.set_cr8(5);
    vcpu.want_window_below(4);
    assert_eq!(at_exit(&mut vcpu, 10), (Exit::Cpuid, false, 4));
    // The guest lowers it: as long as it has interrupts off, a window like any other.
    vcpu.set_cr8(3);
    vcpu.want_window_below(4);
    assert_eq!(
        at_exit(&mut vcpu, 10),
        (Exit::Cpuid, true, 0),
        "the threshold must not lie above the priority"
    );
    vcpu.set_cr8(5);
    vcpu.want_window_below(4);
    assert_eq!(at_exit(&mut vcpu, 43), (Exit::Handled, false, 4));
    assert_eq!(at_exit(&mut vcpu, 7), (Exit::InterruptWindow, true, 0));
}

#[test]
fn the_task_priority_is_kept_here_where_the_processor_does_not() {
    let mut vcpu = loaded_on(&without_tpr_shadow());
    vcpu.vmcs.write(Field::INSTRUCTION_LENGTH, 4);
    let access = |vcpu: &mut VmxVcpu, qualification| {
        exit(
            vcpu,
            &[
                (Field::EXIT_REASON, 28),
                (Field::QUALIFICATION, qualification),
            ],
        )
    };
    vcpu.set_gpr(Gpr::R9, 7);
    assert_eq!(access(&mut vcpu, 0x908), Exit::Handled);
    assert_eq!((vcpu.cr8(), vcpu.rip()), (7, 0x10_0004));
    assert_eq!(access(&mut vcpu, 0x318), Exit::Handled);
    assert_eq!((vcpu.gpr(Gpr::Rbx), vcpu.rip()), (7, 0x10_0008));
    vcpu.set_gpr(Gpr::R9, 16);
    assert_eq!(access(&mut vcpu, 0x908), Exit::Handled);
    assert_eq!((vcpu.cr8(), vcpu.rip()), (7, 0x10_0008));
    assert_eq!(vcpu.events.first(), Some(Injection::GP0));
}

#[test]
fn the_guest_believes_in_its_cr0_and_has_no_vmx() {
    let mut vcpu = loaded();
    let mov_to = |register: u64| {
        [
            (Field::EXIT_REASON, 28),
            (Field::QUALIFICATION, register), // from RAX
        ]
    };
    // Caches off: no matter to the CPU. The instruction runs again.
    vcpu.set_gpr(Gpr::Rax, 0x6000_0011);
    assert_eq!(exit(&mut vcpu, &mov_to(0)), Exit::Handled);
    assert_eq!(vcpu.cpu_state().cr0, 0x6000_0011);
    assert_eq!(vcpu.vmcs.read(Field::CR0), 0x31);
    assert_eq!((vcpu.rip(), vcpu.events.first()), (0x10_0000, None));
    vcpu.set_gpr(Gpr::Rax, 0x2000_0011);
    let _ = exit(&mut vcpu, &mov_to(0));
    assert_eq!(vcpu.events.first(), Some(Injection::GP0));
    assert_eq!(vcpu.cpu_state().cr0, 0x6000_0011);

    let mut vcpu = loaded();
    vcpu.set_gpr(Gpr::Rax, CR4_VMXE);
    let _ = exit(&mut vcpu, &mov_to(4));
    assert_eq!(vcpu.events.first(), Some(Injection::GP0));
    assert_eq!(vcpu.cpu_state().cr4, 0);
}

#[test]
fn a_debug_exception_is_as_the_guest_expects_it() {
    let mut vcpu = loaded();
    vcpu.vmcs.write(Field::DR7, 0x2400);
    let wanted = Exit::Exception {
        vector: 1,
        error: 0,
    };
    let step = [
        (Field::EXIT_REASON, 0),
        (Field::EXIT_INTERRUPTION, 0x8000_0301),
        (Field::QUALIFICATION, 1 << 14),
    ];
    assert_eq!(exit(&mut vcpu, &step), wanted);
    assert_eq!(vcpu.vmcs.read(Field::DR7), 0x400, "general detect is off");
    assert_eq!(vcpu.rip(), 0x10_0000);
    let int1 = [
        (Field::EXIT_REASON, 0),
        (Field::EXIT_INTERRUPTION, 0x8000_0501),
        (Field::INSTRUCTION_LENGTH, 1),
    ];
    assert_eq!(exit(&mut vcpu, &int1), wanted);
    assert_eq!(vcpu.rip(), 0x10_0001, "behind INT1");
}

#[test]
fn where_rip_gets_lost_exceptions_go_in_by_vm_entry() {
    let (vmx, ept) = machine(&skylake());
    vmx.0.loses_rip.call_once(|| true);
    let mut vcpu = vmx.new_vcpu(&ept);
    vcpu.attach(CPU0);
    assert_eq!(vcpu.vmcs.read(Field::EXCEPTIONS), 0xffff_ffe3);
    let fault = [
        (Field::EXIT_REASON, 0),
        (Field::EXIT_INTERRUPTION, 0x8000_0b0e),
        (Field::EXIT_INTERRUPTION_ERROR, 6),
        (Field::QUALIFICATION, 0xdead_b000),
    ];
    assert_eq!(exit(&mut vcpu, &fault), Exit::Handled);
    assert_eq!(vcpu.cpu_state().cr2, 0xdead_b000);
    let page_fault = Injection::Exception {
        vector: 14,
        error: Some(6),
    };
    assert_eq!(vcpu.events.first(), Some(page_fault));
}

#[test]
fn a_processor_that_keeps_rip_is_not_suspected() {
    let mut vcpu = loaded();
    let memory = GuestMemory::leaked(GuestMemory::ALIGN);
    assert_eq!(super::super::probe::loses_rip(&mut vcpu, &memory), None);
    assert_eq!(
        vcpu.vmcs.read(Field::PREEMPTION_TIMER),
        63,
        "all were tried"
    );
    vcpu.vmcs.write(Field::EXIT_REASON, 1 << 31 | 33);
    assert!(!vcpu.run_for(0), "the entry failed");
}

#[test]
fn the_length_of_an_instruction_wraps_with_its_segment() {
    let mut vcpu = loaded();
    vcpu.vmcs.write(Field::INSTRUCTION_LENGTH, 2);
    vcpu.vmcs.write(Field::RIP, 0xffff_ffff);
    let _ = exit(&mut vcpu, &[(Field::EXIT_REASON, 10)]);
    assert_eq!(vcpu.next_rip(), Some(1));
    vcpu.vmcs.write(Field::EFER, 0x500);
    vcpu.vmcs.write(SegmentSlot::Cs.rights(), 0xa09b);
    assert_eq!(vcpu.next_rip(), Some(0x1_0000_0001));
    let _ = exit(&mut vcpu, &[(Field::EXIT_REASON, 48)]);
    assert_eq!(vcpu.next_rip(), None);
}

#[test]
fn an_emulated_instruction_ends_the_shadow_and_leaves_the_masking() {
    let mut vcpu = loaded();
    vcpu.set_rflags(RFLAGS_IF | 2);
    vcpu.set_blocked(BLOCKED_BY_STI | BLOCKED_BY_NMI);
    assert!(!vcpu.interruptible());
    vcpu.advance(0x10_0002);
    assert_eq!(vcpu.blocked(), BLOCKED_BY_NMI);
    assert!(vcpu.interruptible() && !vcpu.nmi_ready());
}

#[test]
fn an_emulated_instruction_is_a_step_like_any_other() {
    let mut vcpu = loaded();
    vcpu.set_rflags(RFLAGS_TF | 2);
    vcpu.advance(0x10_0002);
    let step = Injection::Exception {
        vector: 1,
        error: None,
    };
    assert_eq!(vcpu.events.first(), Some(step));
    // INT1 is no step: its own exception is given back by the caller.
    let mut vcpu = loaded();
    vcpu.set_rflags(RFLAGS_TF | 2);
    let int1 = [
        (Field::EXIT_REASON, 0),
        (Field::EXIT_INTERRUPTION, 0x8000_0501),
        (Field::INSTRUCTION_LENGTH, 1),
    ];
    let _ = exit(&mut vcpu, &int1);
    assert_eq!(vcpu.events.first(), None);
}

#[test]
fn the_timer_runs_out_at_the_deadline_and_never_before_it() {
    let at = |deadline, now, shift| timer_value(Ticks::new(deadline), Ticks::new(now), shift);
    assert_eq!(at(1000, 0, 0), 1000);
    assert_eq!(at(1000, 0, 5), 32);
    assert_eq!(at(992, 0, 5), 31);
    assert_eq!(at(1, 0, 7), 1);
    assert_eq!(at(5, 9, 0), 0, "it has passed: leave at once");
    assert_eq!(at(u64::MAX, 0, 5), u32::MAX);
    let mut vcpu = loaded();
    assert!(vcpu.leave_by(None));
    let _ = exit(&mut vcpu, &[(Field::EXIT_REASON, 52)]);
    assert_eq!(vcpu.vmcs.read(Field::PREEMPTION_TIMER), u64::from(u32::MAX));
    vcpu.leave_by(Some(Ticks::ZERO));
    assert_eq!(exit(&mut vcpu, &[(Field::EXIT_REASON, 52)]), Exit::Event);
    assert_eq!(vcpu.vmcs.read(Field::PREEMPTION_TIMER), 0);

    let mut fake = skylake();
    *fake
        .get_mut(&x86::msr::IA32_VMX_TRUE_PINBASED_CTLS)
        .unwrap() &= !(1 << (32 + 6));
    assert!(!loaded_on(&fake).leave_by(None));
}

/// It ran on two CPUs, and comes back to the first.
fn comes_back(break_it: impl FnOnce(&mut VmxVcpu)) {
    let mut vcpu = loaded();
    for cpu in [CPU1, CPU0] {
        let _ = exit(&mut vcpu, &[(Field::EXIT_REASON, 52)]);
        vcpu.detach();
        if cpu == CPU1 {
            vcpu.attach(cpu);
        }
    }
    break_it(&mut vcpu);
    vcpu.attach(CPU0);
    let _ = exit(&mut vcpu, &[(Field::EXIT_REASON, 52)]);
}

#[test]
fn a_vcpu_that_comes_back_has_nothing_of_its_earlier_stay() {
    comes_back(|_| ());
}

#[test]
#[should_panic(expected = "INVVPID is missing")]
fn a_return_without_invvpid_is_caught() {
    comes_back(|vcpu| vcpu.last_cpu = Some(CPU0));
}

#[test]
#[should_panic(expected = "INVVPID is missing")]
fn a_reset_without_invvpid_is_caught() {
    let mut vcpu = loaded();
    let _ = exit(&mut vcpu, &[(Field::EXIT_REASON, 52)]);
    // As a reset does, but for the flush.
    vcpu.owner.outdate();
    let _ = exit(&mut vcpu, &[(Field::EXIT_REASON, 52)]);
}

fn secondary(vcpu: &VmxVcpu) -> u64 {
    vcpu.vmcs.read(Field::SECONDARY) & 0x311
}

/// Something to deliver, and nothing in the way.
fn one_request() -> ApicState {
    let mut state = ApicState::default();
    state.requested.insert(0x50);
    state
}

#[test]
fn an_x2apic_is_virtualized_and_an_xapic_is_not() {
    let mut vcpu = loaded();
    let plain = vcpu.vmcs.read(Field::MSR_BITMAP);
    assert!(vcpu.virtualizes_apic());
    assert!(!vcpu.show_apic(ApicMode::XApic, &[(2, 3 << 24)]));
    assert_eq!((secondary(&vcpu), vcpu.apic.at(0x20)), (0, 0));
    assert!(vcpu.show_apic(ApicMode::X2Apic, &[(2, 3)]));
    assert_eq!((secondary(&vcpu), vcpu.apic.at(0x20)), (0x310, 3));
    assert_ne!(vcpu.vmcs.read(Field::MSR_BITMAP), plain);
    // The guest has turned it off.
    assert!(!vcpu.show_apic(ApicMode::Disabled, &[]));
    assert_eq!(
        (secondary(&vcpu), vcpu.vmcs.read(Field::MSR_BITMAP)),
        (0, plain)
    );
}

#[test]
fn what_is_virtualized_moves_with_the_vcpu() {
    let mut vcpu = loaded();
    vcpu.show_apic(ApicMode::X2Apic, &[(2, 3)]);
    let map = vcpu.vmcs.read(Field::MSR_BITMAP);
    let mut state = one_request();
    state.in_service.insert(0x31);
    vcpu.lend_apic(&state);
    assert_eq!(vcpu.take_apic_back(), state);
    vcpu.detach();
    vcpu.attach(CPU1);
    assert_eq!(
        (secondary(&vcpu), vcpu.vmcs.read(Field::MSR_BITMAP)),
        (0x310, map)
    );
    assert_eq!(vcpu.apic.at(0x20), 3);
    // Ended meanwhile, by whoever models it.
    vcpu.lend_apic(&one_request());
    assert_eq!(vcpu.vmcs.read(Field::INTERRUPT_STATUS), 0x50);
    assert_eq!(vcpu.take_apic_back(), one_request());
}

#[test]
fn switched_off_no_apic_is_virtualized() {
    let fake = skylake();
    let msrs = |msr| fake.get(&msr).copied();
    let wanted = ApicWanted {
        virtualized: false,
        ..ApicWanted::default()
    };
    let vmx = Vmx::detect(&cpuid, &msrs, wanted).unwrap();
    vmx.enable_on_this_cpu(CPU0).unwrap();
    let ept = vmx.new_ept(&GuestMemory::leaked(GuestMemory::ALIGN));
    let mut vcpu = vmx.new_vcpu(&ept);
    vcpu.attach(CPU0);
    assert!(!vcpu.virtualizes_apic() && !vcpu.show_apic(ApicMode::X2Apic, &[]));
    assert_eq!(secondary(&vcpu), 0);
    assert!(!vmx.describe().contains("virtual x2APIC"));
}

#[test]
fn interrupts_are_posted_to_an_apic_that_is_virtualized() {
    const POSTED: u64 = 1 << 7;
    for faulty in [false, true] {
        let (vmx, ept) = machine(&skylake());
        vmx.0.ignores_if.call_once(|| faulty);
        assert_eq!(vmx.describe().contains("posted interrupts"), !faulty);
        let mut vcpu = vmx.new_vcpu(&ept);
        let requests = Arc::new(InterruptRequests::new());
        vcpu.take_requests_from(&requests);
        vcpu.attach(CPU0);
        let pin = |vcpu: &VmxVcpu| vcpu.vmcs.read(Field::PIN) & POSTED;
        for (mode, posted) in [
            (ApicMode::XApic, false),
            (ApicMode::X2Apic, !faulty),
            (ApicMode::Disabled, false),
        ] {
            vcpu.show_apic(mode, &[]);
            assert_eq!(pin(&vcpu) != 0, posted, "{mode:?}");
            assert_eq!(requests.is_posting(), posted, "{mode:?}");
        }
        if !faulty {
            let read = |field| vcpu.vmcs.read(field);
            assert_eq!(read(Field::POSTED_VECTOR), u64::from(vector::POSTED));
            assert_eq!(read(Field::POSTED_DESCRIPTOR), physical(&*requests));
            assert_eq!(read(Field::POSTED_DESCRIPTOR) % 64, 0);
        }
    }
}

#[test]
fn where_nothing_posted_is_taken_for_something_there_is_always_something() {
    let fake = skylake();
    let msrs = |msr| fake.get(&msr).copied();
    let wanted = ApicWanted {
        virtualized: true,
        posting: lull_core::options::Posting::On,
    };
    let vmx = Vmx::detect(&cpuid, &msrs, wanted).unwrap();
    vmx.enable_on_this_cpu(CPU0).unwrap();
    vmx.0.ignores_if.call_once(|| true);
    let mut vcpu = vmx.new_vcpu(&vmx.new_ept(&GuestMemory::leaked(GuestMemory::ALIGN)));
    vcpu.attach(CPU0);
    vcpu.show_apic(ApicMode::X2Apic, &[]);
    vcpu.lend_apic(&ApicState::default());
    assert_eq!(vcpu.vmcs.read(Field::INTERRUPT_STATUS), 1);
    assert_eq!(vcpu.take_apic_back(), ApicState::default());
}

#[test]
fn a_write_that_the_processor_leaves_to_us_is_passed_on() {
    let mut vcpu = loaded();
    vcpu.show_apic(ApicMode::X2Apic, &[(0x3f, 5)]);
    let write = [(Field::EXIT_REASON, 56), (Field::QUALIFICATION, 0x3f0)];
    let wanted = Exit::ApicWrite {
        offset: 0x3f0,
        value: 5,
    };
    assert_eq!(exit(&mut vcpu, &write), wanted);
    assert_eq!(exit(&mut vcpu, &[(Field::EXIT_REASON, 45)]), Exit::Handled);
}

#[test]
fn where_if_is_ignored_interrupts_are_kept_back() {
    const IF: u64 = 1 << 9 | 2;
    for (faulty, flags, window) in [(false, 2, false), (true, 2, true), (true, IF, false)] {
        let (vmx, ept) = machine(&skylake());
        vmx.0.ignores_if.call_once(|| faulty);
        let mut vcpu = vmx.new_vcpu(&ept);
        vcpu.reset(PVH);
        vcpu.attach(CPU0);
        vcpu.show_apic(ApicMode::X2Apic, &[]);
        vcpu.set_rflags(flags);
        vcpu.want_window(false);
        vcpu.lend_apic(&one_request());
        let _ = exit(&mut vcpu, &[(Field::EXIT_REASON, 52)]);
        let open = primary(&vcpu).contains(PrimaryControls::INTERRUPT_WINDOW_EXITING);
        assert_eq!(open, window, "{faulty} {flags:#x}");
        assert_eq!(vcpu.take_apic_back(), one_request());
    }
}

#[test]
fn a_processor_that_waits_for_if_is_not_suspected() {
    let memory = GuestMemory::leaked(GuestMemory::ALIGN);
    let mut sent = 0;
    let mut vcpu = loaded();
    vcpu.vmcs.write(Field::EXIT_REASON, 1);
    let mut interrupt = || sent += 1;
    assert!(!super::super::probe::ignores_if(
        &mut vcpu,
        &memory,
        &mut interrupt
    ));
    assert_eq!(sent, 1, "it was tried");
}
