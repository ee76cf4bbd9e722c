use super::*;
use crate::units::Micros;
use proptest::prelude::*;

fn cpus(low: u32, high: u32) -> Pin {
    Pin::Cpus {
        low: CpuId::new(low),
        high: CpuId::new(high),
    }
}

fn refused(line: &str) -> Vec<(String, String)> {
    let problems = GuestConfig::from_line(line).expect_err(line);
    problems.into_iter().map(|p| (p.word, p.why)).collect()
}

#[test]
fn a_name_alone_is_a_guest_with_defaults() {
    let guest = GuestConfig::from_line("idle-timer").unwrap();
    assert_eq!(guest.kernel, "idle-timer");
    assert_eq!(guest.vcpus, 1);
    assert_eq!(guest.mem.bytes(), 32 << 20);
    assert_eq!(guest.weight.get(), 256);
    assert_eq!(guest.pin.affinity(), CpuSet::ALL);
    assert_eq!(guest.to_line(), "idle-timer");
}

#[test]
fn both_forms_say_the_same() {
    let expected = GuestConfig {
        name: "heavy".into(),
        kernel: "busy".into(),
        vcpus: 2,
        mem: MemSize::from_bytes(64 << 20).unwrap(),
        weight: Weight::new(1024).unwrap(),
        pin: cpus(0, 1),
        latency: Some(Micros::new(50)),
        halt_poll: Micros::new(200),
        soft: cpus(1, 1),
        cap: Cap::new(150),
        rt: RtParams::new(Micros::new(20_000), Micros::new(5_000), false).unwrap(),
        cmdline: "seconds=10, say=\"hi\" \\o/".into(),
    };
    let options = r#"kernel=busy vcpus=2 mem=64M weight=1024 pin=0-1 latency=50 soft=1 cap=150 halt-poll=200 period-us=20000 budget-us=5000 extratime=off"#;
    let line = format!(r#"heavy {options} cmdline="seconds=10, say=\"hi\" \\o/"  # a comment"#);
    assert_eq!(GuestConfig::from_line(&line), Ok(expected.clone()));
    let commas = options.replace(' ', ",");
    let spec = format!(r#"heavy,{commas},cmdline="seconds=10, say=\"hi\" \\o/""#);
    assert_eq!(GuestConfig::from_commas(&spec), Ok(expected.clone()));
    assert_eq!(GuestConfig::from_line(&expected.to_line()), Ok(expected));
    // What a shell leaves of cmdline="a b".
    let guest = GuestConfig::from_commas("busy,cmdline=a b=c,vcpus=2").unwrap();
    assert_eq!((guest.cmdline.as_str(), guest.vcpus), ("a b=c", 2));
}

#[test]
fn a_bad_line_names_all_that_is_wrong_and_costs_only_itself() {
    let list = GuestList::parse(
        b"# guests\n\nidle-timer pin=1\nbusy vcpus=0 wait=1 mem=1M\r\n  quiet  \nb\xFFd\nstorm cmdline=\"x\nfault pin=3-2\n",
    );
    let names: Vec<_> = list.guests.iter().map(|g| g.name.as_str()).collect();
    assert_eq!(names, ["idle-timer", "quiet"]);
    let said: Vec<_> = list.problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "line 4: `vcpus=0`: 0 is too small (expected vcpus=N from 1 to 64)",
            "line 4: `wait=1`: no such option (expected kernel=, vcpus=, mem=, weight=, pin=, latency=, soft=, cap=, halt-poll=, period-us=, budget-us=, extratime= or cmdline=)",
            "line 4: `mem=1M`: too small (expected mem=SIZE from 2M to 3G in steps of 4K, like 32M, 2052K or 1G)",
            "line 6: `b\u{FFFD}d`: not UTF-8 (expected text)",
            r#"line 7: `cmdline=\"x`: the quote does not end (expected a closing ")"#,
            "line 8: `pin=3-2`: 3 is above 2 (expected pin=CPU, pin=LOW-HIGH (0 to 255) or pin=all)",
        ]
    );
}

#[test]
fn a_reservation_is_right_or_wrong_as_a_whole() {
    let said = |line| {
        let problems = GuestConfig::from_line(line).unwrap_err();
        problems.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        said("g period-us=3000"),
        [
            "`period-us=3000`: a budget of 4000 us does not fit into a period of 3000 us (expected budget-us=N from 10 up to period-us)"
        ]
    );
    assert_eq!(said("g budget-us=10001").len(), 1);
    assert_eq!(
        said("g budget-us=9 cap=0 extratime=yes"),
        [
            "`budget-us=9`: 9 is too small (expected budget-us=N from 10 up to period-us (4000 if not given))",
            "`cap=0`: 0 is too small (expected cap=PERCENT of one CPU, from 1 to 6400)",
            "`extratime=yes`: neither on nor off (expected extratime=on or extratime=off)",
        ]
    );
    let rt = GuestConfig::from_line("g budget-us=100 period-us=100")
        .unwrap()
        .rt;
    assert_eq!(
        (rt.budget(), rt.period(), rt.extratime),
        (Micros::new(100), Micros::new(100), true)
    );
}

#[test]
fn limits_are_exact() {
    for good in [
        "g vcpus=64",
        "g mem=2M",
        "g mem=3G",
        "g mem=2052K",
        "g mem=2097152",
        "g weight=65535",
        "g weight=1",
        "g pin=255",
        "g pin=7-7",
        "a234567890123456789012345678901",
    ] {
        assert!(GuestConfig::from_line(good).is_ok(), "{good}");
    }
    for (bad, why) in [
        ("vcpus=65", "65 is too large"),
        ("mem=2050K", "no whole number of 4K pages"),
        ("mem=3145729K", "too large"),
        ("mem=99999999999999999999G", "too large"),
        ("mem=17179869184G", "17179869184 is too large"),
        ("mem=M", "no digits"),
        ("mem=", "no digits"),
        ("weight=65536", "65536 is too large"),
        ("weight=0", "0 is too small"),
        ("pin=256", "256 is too large"),
        ("pin=-1", "no digits"),
        ("pin", "has no value"),
        ("latency=1000001", "1000001 is too large"),
        ("latency=none", "not a whole number"),
        ("kernel=../x", "not a name"),
        ("kernel=", "no name"),
    ] {
        let said = refused(&std::format!("g {bad}"));
        assert_eq!(said, [(bad.to_string(), why.to_string())]);
    }
    assert_eq!(
        refused("g vcpus=1 vcpus=2")[0].1,
        "`vcpus` is given more than once"
    );
    assert_eq!(
        refused("a2345678901234567890123456789012")[0].1,
        "a name of 32 bytes is too long"
    );
    assert_eq!(refused("-x")[0].1, "not a name");
    assert_eq!(refused("vcpus=2")[0].1, "not a name");
    assert_eq!(GuestConfig::from_commas("").unwrap_err()[0].why, "no name");
    let long = std::format!("g cmdline=\"{}\"", "x".repeat(MAX_CMDLINE + 1));
    assert_eq!(refused(&long)[0].1, "1025 bytes are too many");
}

#[test]
fn too_many_guests_are_refused_by_name() {
    let list = GuestList::parse("g\n".repeat(MAX_GUESTS + 1).as_bytes());
    assert_eq!(list.guests.len(), MAX_GUESTS);
    assert_eq!(list.problems.len(), 1);
    assert_eq!(list.problems[0].line, MAX_GUESTS + 1);
}

prop_compose! {
    fn any_guest()(
        name in "[a-zA-Z0-9][a-zA-Z0-9._-]{0,30}",
        kernel in prop::option::of("[a-zA-Z0-9][a-zA-Z0-9._-]{0,30}"),
        vcpus in 1..=MAX_VCPUS,
        pages in (2_u64 << 20) / 4096..=(3_u64 << 30) / 4096,
        weight in 1_u16..,
        pin in prop::option::of((0_u32..256, 0_u32..256)),
        latency in prop::option::of(0..=1_000_000_u64),
        soft in prop::option::of(0_u32..256),
        halt_poll in 0..=10_000_u64,
        cap in prop::option::of(1_u16..=6400),
        (period, part, extratime) in (10_u64..=3_600_000_000, 0_u64..=100, any::<bool>()),
        cmdline in "[^\\pC]{0,60}",
    ) -> GuestConfig {
        GuestConfig {
            kernel: kernel.unwrap_or_else(|| name.clone()),
            name,
            vcpus,
            mem: MemSize::from_bytes(pages * 4096).unwrap(),
            weight: Weight::new(weight).unwrap(),
            pin: pin.map_or(Pin::All, |(a, b)| cpus(a.min(b), a.max(b))),
            latency: latency.map(Micros::new),
            halt_poll: Micros::new(halt_poll),
            soft: soft.map_or(Pin::All, |cpu| cpus(cpu, cpu)),
            cap: cap.and_then(Cap::new),
            rt: RtParams::new(Micros::new(period), Micros::new((period * part / 100).max(10)), extratime).unwrap(),
            cmdline,
        }
    }
}

proptest! {
    #[test]
    fn a_line_reads_as_it_was_written(guests in prop::collection::vec(any_guest(), 0..8)) {
        let file: String = guests.iter().map(|g| g.to_line() + "\n").collect();
        let list = GuestList::parse(file.as_bytes());
        prop_assert_eq!(list.problems, []);
        prop_assert_eq!(list.guests, guests);
    }

    #[test]
    fn no_file_makes_it_panic(file in any::<Vec<u8>>()) {
        let list = GuestList::parse(&file);
        let lines = file.split(|&b| b == b'\n').count();
        prop_assert!(list.guests.len() <= lines);
    }

    #[test]
    fn no_text_makes_it_panic(line in "[a-z=,\"\\\\ #0-9KMG-]{0,60}") {
        for read in [GuestConfig::from_line(&line), GuestConfig::from_commas(&line)] {
            match read {
                Ok(guest) => prop_assert_eq!(GuestConfig::from_line(&guest.to_line()), Ok(guest)),
                Err(problems) => prop_assert!(!problems.is_empty()),
            }
        }
    }
}
