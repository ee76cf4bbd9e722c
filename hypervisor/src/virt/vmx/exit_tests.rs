use super::*;

fn with(fields: &[(Field, u64)], string_info: bool) -> Decoded {
    let vmcs = Vmcs::new(1);
    vmcs.make_current();
    for &(field, value) in fields {
        vmcs.write(field, value);
    }
    decode(&vmcs, string_info, AddressSize::Bits16)
}

fn exit(basic: u64, qualification: u64) -> Decoded {
    with(
        &[
            (Field::EXIT_REASON, basic),
            (Field::QUALIFICATION, qualification),
        ],
        true,
    )
}

#[test]
fn port_io() {
    let out = IoExit {
        port: 0xe9,
        size: 1,
        write: true,
        string: false,
        rep: false,
        address_size: AddressSize::Bits16,
        segment: None,
        next_rip: None,
    };
    assert_eq!(exit(30, 0x00e9_0040), Decoded::Exit(Exit::Io(out)));
    let rep_insw = IoExit {
        port: 0x3f8,
        size: 2,
        write: false,
        string: true,
        rep: true,
        address_size: AddressSize::Bits64,
        segment: Some(SegmentRegister::Es),
        ..out
    };
    let string = |qualification, info, told| {
        with(
            &[
                (Field::EXIT_REASON, 30),
                (Field::QUALIFICATION, qualification),
                (Field::INSTRUCTION_INFO, info),
            ],
            told,
        )
    };
    assert_eq!(
        string(0x03f8_0039, 2 << 7, true),
        Decoded::Exit(Exit::Io(rep_insw))
    );
    let outsd = IoExit {
        size: 4,
        write: true,
        rep: false,
        address_size: AddressSize::Bits32,
        segment: Some(SegmentRegister::Fs),
        ..rep_insw
    };
    assert_eq!(
        string(0x03f8_0013, 1 << 7 | 4 << 15, true),
        Decoded::Exit(Exit::Io(outsd))
    );
    let untold = IoExit {
        address_size: AddressSize::Bits16,
        segment: None,
        ..outsd
    };
    assert_eq!(
        string(0x03f8_0013, 1 << 7 | 4 << 15, false),
        Decoded::Exit(Exit::Io(untold))
    );
}

#[test]
fn nested_faults() {
    let fault = |qualification, gpa| {
        with(
            &[
                (Field::EXIT_REASON, 48),
                (Field::QUALIFICATION, qualification),
                (Field::GUEST_PHYSICAL, gpa),
            ],
            true,
        )
    };
    assert_eq!(
        fault(0x182, 0xfee0_00b0),
        Decoded::Exit(Exit::NestedFault {
            gpa: 0xfee0_00b0,
            write: true,
            fetch: false,
            present: false,
            page_walk: false,
        })
    );
    assert_eq!(
        fault(0x0a9, 0x5000),
        Decoded::Exit(Exit::NestedFault {
            gpa: 0x5000,
            write: false,
            fetch: false,
            present: true,
            page_walk: true,
        })
    );
    // No linear address: the access was not of a walk for one.
    assert!(matches!(
        fault(0x1, 0x5000),
        Decoded::Exit(Exit::NestedFault {
            page_walk: false,
            ..
        })
    ));
}

#[test]
fn plain_reasons() {
    for (basic, expected) in [
        (2, Exit::TripleFault),
        (7, Exit::InterruptWindow),
        (10, Exit::Cpuid),
        (12, Exit::Hlt),
        (18, Exit::Hypercall),
        (31, Exit::Rdmsr),
        (32, Exit::Wrmsr),
        (36, Exit::Mwait),
        (52, Exit::Event),
        (54, Exit::CacheFlush),
        (55, Exit::Xsetbv),
    ] {
        assert_eq!(exit(basic, 0), Decoded::Exit(expected), "{basic}");
    }
    for basic in [11, 19, 20, 21, 22, 23, 24, 25, 26, 27, 50, 53, 59] {
        assert_eq!(exit(basic, 0), Decoded::Exit(Exit::Undefined), "{basic}");
    }
    assert_eq!(exit(8, 0), Decoded::NmiWindow);
    assert_eq!(exit(43, 0), Decoded::TaskPriority);
}

#[test]
fn what_came_from_outside_and_what_from_the_guest() {
    let interrupted = |basic, info, error| {
        with(
            &[
                (Field::EXIT_REASON, basic),
                (Field::EXIT_INTERRUPTION, info),
                (Field::EXIT_INTERRUPTION_ERROR, error),
                (Field::QUALIFICATION, 1 << 14),
            ],
            true,
        )
    };
    assert_eq!(
        interrupted(1, 0x8000_00ef, 0),
        Decoded::Physical(Physical::Interrupt(0xef))
    );
    assert_eq!(
        interrupted(0, 0x8000_0202, 0),
        Decoded::Physical(Physical::Nmi)
    );
    assert_eq!(
        interrupted(0, 0x8000_0312, 0),
        Decoded::Physical(Physical::MachineCheck)
    );
    assert_eq!(
        interrupted(0, 0x8000_0301, 0),
        Decoded::Debug {
            causes: 1 << 14,
            by_instruction: false
        }
    );
    assert!(matches!(
        interrupted(0, 0x8000_0501, 0),
        Decoded::Debug {
            by_instruction: true,
            ..
        }
    ));
    assert_eq!(
        interrupted(0, 0x8000_0b11, 0),
        Decoded::Exit(Exit::Exception {
            vector: 17,
            error: 0
        })
    );
}

#[test]
fn control_registers_name_the_general_one() {
    assert_eq!(
        exit(28, 0x900),
        Decoded::ControlRegister(CrAccess::Write {
            register: 0,
            from: Gpr::R9
        })
    );
    assert_eq!(
        exit(28, 0x318),
        Decoded::ControlRegister(CrAccess::Read {
            register: 8,
            to: Gpr::Rbx
        })
    );
    assert_eq!(exit(28, 0x20), Decoded::ControlRegister(CrAccess::Other));
}

#[test]
fn a_refused_state_and_an_unknown_reason_are_shown() {
    assert_eq!(exit(1 << 31 | 33, 0), Decoded::EntryFailed(33));
    let Decoded::Exit(Exit::Invalid { reason }) = exit(77, 5) else {
        panic!("must end the guest")
    };
    assert_eq!(reason, "unknown exit reason 77 (qualification 0x5)");
}

#[test]
fn a_length_is_told_for_instructions_only() {
    for basic in [10, 12, 13, 15, 18, 27, 28, 30, 31, 32, 36, 39, 40, 54, 55] {
        assert!(has_length(basic), "{basic}");
    }
    for basic in [0, 1, 2, 7, 8, 43, 48, 49, 52] {
        assert!(!has_length(basic), "{basic}");
    }
}
