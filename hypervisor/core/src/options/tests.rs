use super::*;
use crate::cstate::select::Registers;
use crate::sched::credit2::Arrangement;
use crate::units::CpuSet;
use proptest::prelude::*;

fn clean(line: &str) -> Options {
    let (options, problems) = Options::parse(line);
    assert_eq!(problems, [], "{line}");
    options
}

#[test]
fn an_empty_line_gives_the_defaults() {
    assert_eq!(clean("  \t "), Options::default());
    assert_eq!(Options::default().log_level, LogLevel::Info);
    assert!(Options::default().machine_channel);
}

#[test]
fn every_option_reaches_its_field() {
    let options = clean(
        "loglvl=debug idle=hlt governor=menu latency=20:1-3 governor.price=2 sched=fair arinc653=9,g.1:5 sched_ratelimit_us=0 \
         sched_credit2_migrate_resist=7 sched_credit2_max_cpus_runqueue=3 credit2_runqueue=core credit2_cap_period_ms=30 \
         trace.idle=1000 exit-port=0xf4 for=5 keep no-guests maxcpus=4 machine-channel=off \
         ap-timeout-ms=50 tsc-hz=2500000000 test.account=double test.tsc=stops test.timers=500 test.uptime=7 test.absent-ap=3 test.crash=stack \
         wake.ipiless=off wake.notify=off ipi.fence=full hpet=message mitigations=force vmx.apicv=off vmx.posted=on test.wakes=soak test.rounds=9 test.seed=7",
    );
    let expected = Options {
        hpet: HpetInterrupt::Message,
        mitigations: crate::mitigation::Policy::Force,
        vmx_apicv: false,
        vmx_posted: Posting::On,
        log_level: LogLevel::Debug,
        idle: IdleMethod::Halt,
        governor: Some("menu".to_string()),
        latency_price: crate::governor::LatencyPrice(2048),
        trace_idle: Some(1000),
        latency: std::vec![LatencyLimit {
            limit: Micros::new(20),
            cpus: CpuSet::inclusive(1, 3),
        }],
        sched: Some("fair".to_string()),
        arinc653: Some(FrameTable {
            major: Micros::new(9),
            frames: [Frame {
                guest: "g".to_string(),
                vcpu: 1,
                length: Micros::new(5),
            }]
            .into(),
        }),
        credit2: Config {
            ratelimit: Micros::ZERO,
            migrate_resist: Micros::new(7),
            cap_period: Micros::new(30_000),
            arrangement: Arrangement::Core,
            max_cpus: 3,
            ..Config::default()
        },
        cstates: CStateOptions::default(),
        wakes: WakeOptions {
            ipiless: false,
            notify: false,
            fence: IpiFence::Full,
            test: Some(WakeTest::Soak),
            rounds: Some(9),
            seed: 7,
        },
        exit_port: Some(ExitPort::Code(0xF4)),
        run_for: Some(Seconds(5)),
        keep: true,
        no_guests: true,
        max_cpus: Some(4),
        machine_channel: false,
        ap_timeout: Micros::new(50_000),
        tsc_rate: TickRate::from_hz(2_500_000_000),
        test_account: Some(AccountFault::Double),
        test_tsc_stops: true,
        test_timers: Some(Micros::new(500)),
        test_uptime: Some(7),
        test_absent_ap: Some(CpuId::new(3)),
        test_crash: Some(Crash::StackOverflow),
    };
    assert_eq!(options, expected);
    assert_eq!(clean("exit-port=bochs").exit_port, Some(ExitPort::Bochs));
}

#[test]
fn the_last_latency_of_a_cpu_counts() {
    let options = clean("latency=100 latency=20:1-3 latency=7:2");
    let limit = |cpu| options.latency_of(CpuId::new(cpu)).map(Micros::get);
    assert_eq!([0, 1, 2, 3, 4].map(limit), [100, 20, 7, 20, 100].map(Some));
    assert_eq!(clean("latency=0:5").latency_of(CpuId::new(4)), None);
    for (word, why) in [
        ("latency=", "no digits"),
        ("latency=5:", "no CPU"),
        ("latency=5:3-1", "3 is above 1"),
        ("latency=1000001", "1000001 is too large"),
    ] {
        assert_eq!(Options::parse(word).1[0].why, why, "{word}");
    }
}

#[test]
fn an_unknown_scheduler_is_named_and_the_default_one_used() {
    let (options, problems) =
        Options::parse("sched=cfs sched_ratelimit_us=50 credit2_runqueue=rack");
    assert_eq!(options, Options::default());
    assert!(
        problems[0]
            .why
            .starts_with("no such scheduler: there are credit2, "),
        "{}",
        problems[0]
    );
    assert_eq!(problems[1].why, "neither 0 nor at least 100");
    assert_eq!(problems[2].why, "not one of the choices");
}

#[test]
fn a_bad_word_is_named_and_leaves_the_rest_alone() {
    let (options, problems) =
        Options::parse("quiet idle=nap for=0 keep=yes maxcpus loglvl=warn =x tsc-hz=1GHz");
    assert_eq!(
        options,
        Options {
            log_level: LogLevel::Warn,
            ..Options::default()
        }
    );
    let said: Vec<_> = problems
        .iter()
        .map(|p| (p.word.as_str(), p.why.as_str()))
        .collect();
    assert_eq!(
        said,
        [
            ("quiet", "no such option"),
            ("idle=nap", "not one of the choices"),
            ("for=0", "0 is too small"),
            ("keep=yes", "takes no value"),
            ("maxcpus", "has no value"),
            ("=x", "no such option"),
            ("tsc-hz=1GHz", "not a whole number"),
        ]
    );
    assert_eq!(problems[1].expected, "idle=auto|hlt|mwait|poll");
    assert!(
        problems[0]
            .expected
            .starts_with("one of loglvl, idle, governor")
    );
}

#[test]
fn the_last_of_two_counts_and_is_noted() {
    let (options, problems) = Options::parse("idle=hlt keep idle=poll");
    assert_eq!(options.idle, IdleMethod::Poll);
    assert_eq!(problems.len(), 1);
    assert_eq!(
        problems[0].to_string(),
        "`idle=poll`: `idle` is given more than once: the last one counts (expected it once)"
    );
    // A bad repetition does not count: the good one stays.
    let (options, problems) = Options::parse("idle=hlt idle=");
    assert_eq!(options.idle, IdleMethod::Halt);
    assert_eq!(problems[0].why, "has no value");
}

#[test]
fn a_garbage_word_is_cut_and_escaped() {
    let garbage = "\u{1b}[2J".repeat(1000);
    let (_, problems) = Options::parse(&garbage);
    assert!(problems[0].word.starts_with("\\u{1b}[2J") && problems[0].word.ends_with("..."));
    assert!(problems[0].word.len() < 300);
}

#[test]
fn every_option_about_cstates_reaches_its_field() {
    let options = clean(
        "cpuidle=off mwait-idle=off mwait-idle.table=C1E:20:40,C6::700 max_cstate=3,1 states_off=0x4,C6 \
         idle_latency_factor=3 irq-enable-early=force force-mwait preferred-c1e=off tsc=unstable \
         cpuid=5:edx=0x2020,0x80000007:edx=0 cpuid=6:eax=4 acpi_cst=off",
    );
    let edit = |name: &str, latency, residency| TableEdit {
        name: name.to_string(),
        latency: Option::map(latency, Micros::new),
        residency: Option::map(residency, Micros::new),
    };
    let cpuid = |leaf, register, value| CpuidOverride {
        leaf,
        register,
        value,
    };
    let expected = CStateOptions {
        cpuidle: false,
        mwait_idle: false,
        edits: vec![edit("C1E", Some(20), Some(40)), edit("C6", None, Some(700))],
        max_cstate: Some(MaxCState {
            class: 3,
            substate: Some(1),
        }),
        states_off: StatesOff {
            mask: 4,
            names: vec!["C6".to_string()],
        },
        latency_factor: Some(3),
        early_irq: EarlyIrq::Force,
        force_mwait: true,
        preferred_c1e: Some(false),
        tsc_unstable: true,
        cpuid: vec![
            cpuid(5, CpuidRegister::Edx, 0x2020),
            cpuid(0x8000_0007, CpuidRegister::Edx, 0),
            cpuid(6, CpuidRegister::Eax, 4),
        ],
        acpi_cst: false,
    };
    assert_eq!(options.cstates, expected);
    let no_sub = clean("max_cstate=0").cstates.max_cstate;
    assert_eq!(
        no_sub,
        Some(MaxCState {
            class: 0,
            substate: None
        })
    );
}

#[test]
fn a_bad_option_about_cstates_is_named_and_changes_nothing() {
    for (word, why) in [
        ("cpuidle=maybe", "not one of the choices"),
        ("max_cstate=16", "16 is too large"),
        ("max_cstate=3,", "no digits"),
        ("max_cstate=C6", "not a whole number"),
        ("states_off=", "a state has no name"),
        ("states_off=C6,C/7", "not the name of a state"),
        ("states_off=0x100000000", "4294967296 is too large"),
        ("idle_latency_factor=0", "0 is too small"),
        ("irq-enable-early=on", "not one of the choices"),
        ("test.rounds=0", "0 is too small"),
        ("force-mwait=on", "takes no value"),
        ("preferred-c1e=", "has no value"),
        ("tsc=stable", "not one of the choices"),
        ("cpuid=5:edx", "expected LEAF:REG=VALUE"),
        (
            "cpuid=5:edi=1",
            "expected one of the registers eax, ebx, ecx, edx",
        ),
        ("cpuid=5:edx=0x123456789", "4886718345 is too large"),
        (
            "mwait-idle.table=C6",
            "`C6`: expected NAME:LATENCY:RESIDENCY",
        ),
        (
            "mwait-idle.table=C6:0:9",
            "`C6:0:9`: latency 0 us, expected 1 to 5000",
        ),
        (
            "mwait-idle.table=C6:5001:9000",
            "`C6:5001:9000`: latency 5001 us, expected 1 to 5000",
        ),
        (
            "mwait-idle.table=C6::100001",
            "`C6::100001`: residency 100001 us, expected at most 100000",
        ),
        (
            "mwait-idle.table=C6:9:8",
            "`C6:9:8`: residency 8 us is shorter than latency 9 us",
        ),
        (
            "mwait-idle.table=C6:1:2:3:4:5:6",
            "`C6:1:2:3:4:5:6`: too many fields",
        ),
        ("mwait-idle.table=:1:2", "`:1:2`: a state has no name"),
    ] {
        let (options, problems) = Options::parse(word);
        assert_eq!(options, Options::default(), "{word}");
        assert_eq!(problems.len(), 1, "{word}");
        assert_eq!(problems[0].why, why, "{word}");
    }
    let long = format!("mwait-idle.table=C6:1:{}", "0".repeat(300));
    assert_eq!(Options::parse(&long).1[0].why, "longer than 256 characters");
}

#[test]
fn a_governor_must_be_one_that_there_is() {
    use crate::governor::AnyGovernor;
    for name in AnyGovernor::NAMES {
        let options = clean(&format!("governor={name}"));
        assert_eq!(options.governor.as_deref(), Some(name));
    }
    let (options, problems) = Options::parse("governor=best");
    assert_eq!(options.governor, None);
    assert!(
        problems[0]
            .why
            .starts_with("no such governor: there are lull")
    );
    assert_eq!(Options::parse("governor=").1[0].why, "no name");
}

#[test]
fn a_price_is_a_decimal_number_up_to_a_hundred() {
    use crate::governor::LatencyPrice;
    for (text, price) in [
        ("0.5", 512),
        ("2", 2048),
        ("0", 0),
        ("0.1", 102),
        ("100", 102_400),
        ("1.001", 1025),
    ] {
        let options = clean(&format!("governor.price={text}"));
        assert_eq!(options.latency_price, LatencyPrice(price), "{text}");
    }
    assert_eq!(clean("").latency_price, LatencyPrice(512));
    let format = "not a number like 0.5, with at most three digits on each side";
    for (text, why) in [
        ("", "has no value"),
        ("100.001", "over 100"),
        ("1.", format),
        (".5", format),
        ("-1", format),
        ("0.1234", format),
        ("1e3", format),
        ("0.5x", format),
        ("9999", format),
    ] {
        let (options, problems) = Options::parse(&format!("governor.price={text}"));
        assert_eq!(problems[0].why, why, "{text}");
        assert_eq!(options.latency_price, LatencyPrice::DEFAULT);
    }
}

#[test]
fn the_good_edits_of_a_table_stand_beside_a_bad_one() {
    let (options, problems) = Options::parse("mwait-idle.table=C1:0:0,C1E:20:40,C6:x:");
    assert_eq!(options.cstates.edits.len(), 1);
    assert_eq!(options.cstates.edits[0].name, "C1E");
    assert_eq!(
        problems[0].why,
        "`C1:0:0`: latency 0 us, expected 1 to 5000; `C6:x:`: latency: not a whole number; what is not named stands"
    );
}

#[test]
fn only_cpuid_may_be_given_twice() {
    assert_eq!(Options::parse("cpuid=5:edx=1 cpuid=5:ecx=3").1, []);
    assert_eq!(Options::parse("max_cstate=1 max_cstate=2").1.len(), 1);
    let many = "cpuid=5:edx=1 ".repeat(40);
    let (options, problems) = Options::parse(&many);
    assert_eq!(options.cstates.cpuid.len(), 32);
    assert_eq!(problems.len(), 8);
}

#[test]
fn an_overridden_leaf_keeps_its_other_registers() {
    let options = clean("cpuid=5:edx=0x2020,5:ecx=3").cstates;
    let said = Registers {
        eax: 64,
        ebx: 64,
        ecx: 0,
        edx: 1,
    };
    let expected = Registers {
        ecx: 3,
        edx: 0x2020,
        ..said
    };
    assert_eq!(options.override_leaf(5, said), expected);
    assert_eq!(options.override_leaf(6, said), said);
}

#[test]
fn fields_for_others_are_ignored_and_named() {
    let (options, problems) = Options::parse("mwait-idle.table=C6::700:x:y:z");
    assert_eq!(options.cstates.edits.len(), 1);
    assert_eq!(
        problems[0].why,
        "`C6::700:x:y:z`: `x:y:z` is ignored; what is not named stands"
    );
}

#[test]
fn what_is_said_of_absent_things_is_found() {
    let options = clean("cpuid=5:edx=0x2020,9:eax=1 latency=9 latency=20:1-7 latency=30:0");
    let idle: Vec<u32> = options
        .cstates
        .idle_overrides(&[0, 1, 5])
        .map(|one| one.leaf)
        .collect();
    assert_eq!(idle, [9]);
    let absent: Vec<_> = options.absent_cpus(&CpuSet::inclusive(0, 3)).collect();
    assert_eq!(absent, [(Micros::new(20), CpuSet::inclusive(4, 7))]);
}

proptest! {
    #[test]
    fn no_edit_gets_through_that_breaks_the_limits(value in "(C[0-9]{0,2}E?|)(:[0-9]{0,7}){0,6}(,C6:[0-9]{1,5}:[0-9]{1,7}){0,3}") {
        let (options, _) = Options::parse(&format!("mwait-idle.table={value}"));
        for edit in options.cstates.edits {
            prop_assert!(!edit.name.is_empty());
            prop_assert!(edit.latency.is_none_or(|us| (1..=5000).contains(&us.get())));
            prop_assert!(edit.residency.is_none_or(|us| us.get() <= 100_000));
            if let (Some(latency), Some(residency)) = (edit.latency, edit.residency) {
                prop_assert!(residency >= latency);
            }
        }
    }

    #[test]
    fn what_is_written_is_what_is_read(class in 0u8..16, sub in proptest::option::of(0u8..16), leaf: u32, value: u32, mask: u32) {
        let sub_text = sub.map_or(String::new(), |sub| format!(",{sub}"));
        let line = format!("max_cstate={class}{sub_text} cpuid={leaf:#x}:ebx={value} states_off={mask:#x}");
        let (options, problems) = Options::parse(&line);
        prop_assert_eq!(problems, []);
        prop_assert_eq!(options.cstates.max_cstate, Some(MaxCState { class, substate: sub }));
        prop_assert_eq!(options.cstates.cpuid, vec![CpuidOverride { leaf, register: CpuidRegister::Ebx, value }]);
        prop_assert_eq!(options.cstates.states_off.mask, mask);
    }

    #[test]
    fn no_line_makes_it_panic(line in any::<String>()) {
        let (_, problems) = Options::parse(&line);
        for problem in problems {
            prop_assert!(!problem.to_string().chars().any(char::is_control));
        }
    }

    #[test]
    fn no_value_makes_it_panic(option in 0..OPTIONS.len(), value in "[-+0-9a-fxA-Z=.,: ]{0,30}") {
        let line = format!("{}={value}", OPTIONS[option].name);
        let words = line.split_whitespace().count();
        prop_assert!(Options::parse(&line).1.len() <= words);
    }
}
