use super::super::Svm;
use super::*;
use crate::virt::{Gpr, GuestMemory};

fn vcpu() -> SvmVcpu {
    let svm = Svm::for_test();
    let npt = svm.new_npt(&GuestMemory::leaked(GuestMemory::ALIGN));
    svm.new_vcpu(&npt)
}

fn doubling_vcpu() -> SvmVcpu {
    let mut vcpu = vcpu();
    Arc::get_mut(&mut vcpu.shared)
        .unwrap()
        .features
        .doubles_injections = true;
    vcpu.vmcb().save.rflags |= RFLAGS_IF;
    vcpu
}

#[test]
fn where_injections_are_doubled_an_interrupt_goes_in_as_a_software_interrupt() {
    let mut vcpu = doubling_vcpu();
    vcpu.inject(Injection::Interrupt(0x55));
    vcpu.want_window(true);
    vcpu.place_event();
    assert_eq!(vcpu.vmcb().control.event_inj, 0x8000_0455);
    assert_ne!(vcpu.vmcb().control.vintr & vintr::IRQ, 0, "the window");
    // Its delivery was interrupted: it goes in again. Then it was delivered.
    vcpu.vmcb().control.exit_int_info = 0x8000_0455;
    vcpu.book_event();
    assert!(vcpu.injection_pending());
    vcpu.place_event();
    assert_eq!(vcpu.vmcb().control.event_inj, 0x8000_0455);
    vcpu.vmcb().control.exit_int_info = 0x455;
    vcpu.book_event();
    assert!(!vcpu.injection_pending());
    // All others are what they are.
    for event in [Injection::GP0, Injection::Nmi] {
        vcpu.inject(event);
        vcpu.place_event();
        assert_eq!(vcpu.vmcb().control.event_inj, encode(event));
        vcpu.book_event();
    }
}

#[test]
fn where_injections_are_doubled_what_the_guest_could_refuse_goes_in_as_a_virtual_interrupt() {
    // User mode, where a gate may refuse software interrupts; interrupts off; a shadow.
    let cases: [fn(&mut Vmcb); 3] = [
        |vmcb| vmcb.save.cpl = 3,
        |vmcb| vmcb.save.rflags &= !RFLAGS_IF,
        |vmcb| vmcb.control.interrupt_shadow = 1,
    ];
    for change in cases {
        let mut vcpu = doubling_vcpu();
        vcpu.inject(Injection::Interrupt(0x55));
        vcpu.want_window(true);
        change(vcpu.vmcb());
        vcpu.place_event();
        let control = &vcpu.vmcb().control;
        assert_eq!(control.event_inj, 0);
        assert_eq!(
            control.vintr,
            0x55 << 32 | 1 << 24 | 1 << 20 | 0xf << 16 | 1 << 8
        );
        assert_eq!(
            control.intercept_misc1 & misc1::VINTR,
            0,
            "it must not exit instead"
        );
        // The exit came first: it still waits, and goes in again.
        vcpu.book_event();
        assert!(vcpu.injection_pending());
        assert_eq!(vcpu.vmcb().control.vintr & vintr::IRQ, 0);
        vcpu.place_event();
        assert_ne!(vcpu.vmcb().control.vintr & vintr::IRQ, 0);
        // The guest took it.
        vcpu.vmcb().control.vintr &= !vintr::IRQ;
        vcpu.book_event();
        assert!(!vcpu.injection_pending());
    }
}

#[test]
fn an_exception_that_was_interrupted_while_a_virtual_interrupt_waits_comes_first() {
    let fault = Injection::Exception {
        vector: 14,
        error: Some(2),
    };
    // The delivery of the virtual interrupt itself, as QEMU reports it, and that of a fault of the guest's.
    for (info, first) in [
        (0x8000_0355, Injection::Interrupt(0x55)),
        (encode(fault), fault),
    ] {
        let mut vcpu = doubling_vcpu();
        vcpu.vmcb().save.rflags &= !RFLAGS_IF;
        vcpu.inject(Injection::Interrupt(0x55));
        vcpu.place_event();
        vcpu.vmcb().control.exit_int_info = info;
        vcpu.book_event();
        assert_eq!(vcpu.events.first(), Some(first), "{info:#x}");
        vcpu.vmcb().control.exit_int_info = 0;
        vcpu.place_event();
        vcpu.vmcb().control.vintr &= !vintr::IRQ;
        vcpu.book_event();
        let left = (first == fault).then_some(Injection::Interrupt(0x55));
        assert_eq!(vcpu.events.first(), left, "{info:#x}");
    }
}

#[test]
fn an_entry_that_did_not_take_place_leaves_no_virtual_interrupt_behind() {
    let mut vcpu = doubling_vcpu();
    vcpu.vmcb().save.cpl = 3;
    vcpu.inject(Injection::Interrupt(0x55));
    vcpu.place_event();
    vcpu.take_back_event();
    assert_eq!(vcpu.vmcb().control.vintr, 1 << 24);
    assert!(vcpu.injection_pending());
    // An exception that comes now goes alone.
    vcpu.inject(Injection::GP0);
    vcpu.place_event();
    assert_eq!(vcpu.vmcb().control.event_inj, encode(Injection::GP0));
    assert_eq!(vcpu.vmcb().control.vintr, 1 << 24);
}

#[test]
fn all_that_must_be_intercepted_is() {
    let mut vcpu = vcpu();
    let control = &vcpu.vmcb().control;
    assert_eq!(
        control.intercept_misc1, 0x9dc4_800b,
        "window and IRET only on demand"
    );
    assert_eq!(control.intercept_misc2, 0x0000_2e7f);
    assert_eq!(control.intercept_exceptions, 0x0006_0002);
    assert_eq!(control.vintr, 1 << 24);
    assert_eq!(control.nested_control, 1);
    assert_eq!(
        check::broken_rule(vcpu.vmcb(), 52),
        Some("the ASID is 0"),
        "given at entry; all else is in order"
    );
}

#[test]
fn registers_are_where_the_processor_looks() {
    let mut vcpu = vcpu();
    for (number, register) in Gpr::ALL.into_iter().enumerate() {
        vcpu.set_gpr(register, 100 + number as u64);
    }
    assert_eq!((vcpu.vmcb().save.rax, vcpu.vmcb().save.rsp), (100, 104));
    assert_eq!((vcpu.gprs[Gpr::Rcx.index()], vcpu.gprs[15]), (101, 115));
    for (number, register) in Gpr::ALL.into_iter().enumerate() {
        assert_eq!(vcpu.gpr(register), 100 + number as u64);
    }
}

#[test]
fn the_window_is_open_once() {
    let mut vcpu = vcpu();
    vcpu.set_cr8(5);
    vcpu.want_window(true);
    assert_eq!(
        vcpu.vmcb().control.vintr,
        1 << 24 | 1 << 20 | 0xf << 16 | 1 << 8 | 5
    );
    assert_ne!(vcpu.vmcb().control.intercept_misc1 & misc1::VINTR, 0);
    assert_eq!(vcpu.vmcb().control.intercept_cr, 1 << 24);
    vcpu.want_window_below(0x4);
    assert_eq!(vcpu.vmcb().control.vintr, 1 << 24 | 5);
    assert_eq!(vcpu.vmcb().control.intercept_cr, 1 << 24);
    vcpu.vmcb().control.exit_code = 0x18;
    assert_eq!(vcpu.exit_for_test(), Exit::Cr8Write);
    vcpu.want_window(true);
    vcpu.vmcb().control.exit_code = 0x64;
    assert_eq!(vcpu.exit_for_test(), Exit::InterruptWindow);
    assert_eq!(vcpu.vmcb().control.vintr, 1 << 24 | 5);
    assert_eq!(vcpu.vmcb().control.intercept_misc1 & misc1::VINTR, 0);
    assert_eq!(vcpu.vmcb().control.intercept_cr, 0);
    assert_eq!(vcpu.cr8(), 5);
}

#[test]
fn an_nmi_masks_the_next_until_iret_has_run() {
    let mut vcpu = vcpu();
    assert!(vcpu.nmi_ready());
    vcpu.inject(Injection::Nmi);
    assert!(!vcpu.nmi_ready());
    vcpu.vmcb().control.exit_code = 0x72;
    vcpu.vmcb().control.exit_int_info = 0x202;
    assert_eq!(vcpu.exit_for_test(), Exit::Cpuid);
    assert!(!vcpu.injection_pending() && !vcpu.nmi_ready());
    vcpu.vmcb().control.exit_code = 0x74;
    assert_eq!(vcpu.exit_for_test(), Exit::Handled);
    assert!(!vcpu.nmi_ready(), "IRET itself has not run yet");
    assert_eq!(vcpu.vmcb().control.intercept_misc1 & misc1::IRET, 0);
    vcpu.vmcb().control.exit_code = 0x72;
    assert_eq!(vcpu.exit_for_test(), Exit::Cpuid);
    assert!(!vcpu.nmi_ready(), "RIP is still at the IRET");
    vcpu.vmcb().save.rip += 0x10;
    assert_eq!(vcpu.exit_for_test(), Exit::Cpuid);
    assert!(vcpu.nmi_ready());
}

#[test]
fn interrupts_wait_for_flag_shadow_and_earlier_events() {
    let mut vcpu = vcpu();
    assert!(!vcpu.interruptible(), "IF is clear after INIT");
    vcpu.vmcb().save.rflags |= RFLAGS_IF;
    assert!(vcpu.interruptible());
    vcpu.vmcb().control.interrupt_shadow = 1;
    assert!(!vcpu.interruptible());
    vcpu.advance(0x1234);
    assert_eq!(vcpu.rip(), 0x1234);
    assert!(vcpu.interruptible());
    vcpu.inject(Injection::Interrupt(0x20));
    assert!(!vcpu.interruptible());
    // An exit in the midst of the delivery: it is due again. Once delivered, it is gone.
    vcpu.vmcb().control.exit_code = 0x400;
    vcpu.vmcb().control.exit_int_info = 0x8000_0020;
    let _ = vcpu.exit_for_test();
    assert!(vcpu.injection_pending());
    vcpu.vmcb().control.exit_int_info = 0x20;
    let _ = vcpu.exit_for_test();
    assert!(vcpu.interruptible());
}

#[test]
fn a_refused_state_names_the_rule_and_keeps_the_events() {
    let mut vcpu = vcpu();
    vcpu.inject(Injection::Interrupt(0x20));
    vcpu.vmcb().control.exit_code = 0xffff_ffff;
    vcpu.vmcb().control.asid = 1;
    vcpu.vmcb().save.cr4 = 1 << 40;
    let Exit::Invalid { reason } = vcpu.exit_for_test() else {
        panic!("must be invalid")
    };
    assert!(
        reason
            .starts_with("the processor refused the vCPU's state: CR4 has a reserved bit set (cr0"),
        "{reason}"
    );
    assert!(vcpu.injection_pending());
}

#[test]
fn next_rip_only_where_the_processor_writes_it() {
    let mut vcpu = vcpu();
    vcpu.vmcb().control.exit_code = 0x72;
    vcpu.vmcb().control.next_rip = 0x5678;
    assert_eq!(vcpu.next_rip(), None, "not offered: the field is stale");
    vcpu.vmcb().control.exit_code = 0x7b;
    vcpu.vmcb().control.exit_info2 = 0x1002;
    assert_eq!(vcpu.next_rip(), Some(0x1002));
}

#[test]
fn a_vcpu_that_is_not_loaded_does_not_run() {
    let mut vcpu = vcpu();
    let word = WakeWord::new();
    let exit = vcpu.enter(&word, &mut |_: GateEvent| panic!("must not run"));
    assert!(matches!(exit, Exit::Invalid { .. }));
    for _ in 0..2 {
        vcpu.inject(Injection::Exception {
            vector: 8,
            error: Some(0),
        });
        vcpu.inject(Injection::GP0);
    }
    assert_eq!(
        vcpu.enter(&word, &mut |_: GateEvent| panic!("must not run")),
        Exit::TripleFault
    );
}

#[test]
fn the_gate_is_closed_by_an_event_and_open_without() {
    use lull_core::wake::Events;
    let mut vcpu = vcpu();
    let (cpu, word) = (CpuId::new(3), WakeWord::new());
    vcpu.loaded = Some(cpu);
    assert!(
        matches!(
            vcpu.enter(&word, &mut |_: GateEvent| panic!("must not run")),
            Exit::Invalid { .. }
        ),
        "not enabled there"
    );
    Svm(vcpu.shared.clone()).enable_on_this_cpu(cpu).unwrap();
    word.post_local(Events::CALL);
    vcpu.inject(Injection::Nmi);
    assert_eq!(
        vcpu.enter(&word, &mut |_: GateEvent| panic!("must not run")),
        Exit::Event
    );
    assert_eq!(word.state(), SleepState::Awake);
    assert!(vcpu.injection_pending(), "not delivered yet");
    assert_eq!(word.take(), Events::CALL);

    let mut seen = alloc::vec::Vec::new();
    let exit = vcpu.enter(&word, &mut |event: GateEvent| {
        // What a waker does while the guest runs.
        if event == GateEvent::Left {
            assert!(word.post(Events::NOTIFY).needs_ipi());
        }
        seen.push((event, word.state()));
    });
    assert_eq!(exit, Exit::Cpuid);
    assert_eq!(
        seen,
        [
            (GateEvent::Entering, SleepState::Guest),
            (GateEvent::Left, SleepState::Guest)
        ]
    );
    assert_eq!(
        (word.state(), word.pending()),
        (SleepState::Awake, Events::NOTIFY)
    );
    assert!(!vcpu.injection_pending());
    assert_eq!(vcpu.vmcb().control.asid, 1);
}

/// Enters on a CPU whose processor keeps groups by their clean bits, twice, with a change between the two.
fn enter_twice(change: impl FnOnce(&mut SvmVcpu)) {
    let mut vcpu = vcpu();
    Arc::get_mut(&mut vcpu.shared).unwrap().features.flags |= SvmFlags::CLEAN_BITS;
    let (cpu, word) = (CpuId::new(3), WakeWord::new());
    Svm(vcpu.shared.clone()).enable_on_this_cpu(cpu).unwrap();
    vcpu.loaded = Some(cpu);
    let _ = vcpu.enter(&word, &mut |_: GateEvent| ());
    change(&mut vcpu);
    let _ = vcpu.enter(&word, &mut |_: GateEvent| ());
    assert_ne!(vcpu.clean, 0);
}

#[test]
fn what_is_changed_as_it_should_be_is_not_clean() {
    enter_twice(|vcpu| {
        vcpu.set_tsc_offset(5);
        vcpu.want_window(true);
        let _ = vcpu.set_msr(x86::msr::IA32_PAT, 0x0007_0406_0007_0406);
    });
}

#[test]
fn what_placing_an_event_changes_is_not_clean() {
    enter_twice(|vcpu| {
        let shared = Arc::get_mut(&mut vcpu.shared).unwrap();
        shared.features.doubles_injections = true;
        vcpu.inject(Injection::Interrupt(0x55));
    });
}

#[test]
#[should_panic(expected = "VMCB field tsc_offset was 0x0 at the last entry, is 0x5")]
fn a_change_under_a_clean_bit_is_caught() {
    enter_twice(|vcpu| vcpu.vmcb.control.tsc_offset = 5);
}

#[test]
fn leaving_the_guest_loses_no_event() {
    use lull_core::wake::Events;
    let word = WakeWord::new();
    assert_eq!(word.publish(SleepState::Guest), Ok(()));
    let _ = word.post(Events::CALL);
    word.leave_guest();
    assert_eq!(word.state(), SleepState::Awake);
    assert_eq!(word.publish(SleepState::Guest), Err(Events::CALL));
    assert_eq!(word.take(), Events::CALL);
    assert_eq!(word.publish(SleepState::Guest), Ok(()));
    word.leave_guest();
    assert!(!word.is_pending());
}
