//! Every form of every command, and every mistake with its name.

use super::*;
use crate::governor::AnyGovernor;
use proptest::prelude::*;
use std::string::ToString;

fn parsed(line: &str) -> Command {
    Command::parse(line).unwrap_or_else(|problem| panic!("{line}: {problem}"))
}

#[test]
fn all_forms_are_read() {
    assert_eq!(parsed("help"), Command::Help(None));
    assert_eq!(parsed(" help  latency ").to_string(), "help latency");
    assert_eq!(parsed("show"), Command::Show(CpuSet::ALL));
    assert_eq!(
        parsed("cstate off C6 cpu=2"),
        Command::State {
            state: StateRef::Name("C6".into()),
            on: false,
            cpus: CpuSet::inclusive(2, 2),
        }
    );
    assert_eq!(
        parsed("cstate on 3"),
        Command::State {
            state: StateRef::Index(3),
            on: true,
            cpus: CpuSet::ALL,
        }
    );
    assert_eq!(
        parsed("cstate max 3,1 cpu=0,2-3").to_string(),
        "cstate max 3,1 cpu=0,2-3"
    );
    assert_eq!(
        parsed("cstate max unlimited"),
        Command::MaxCState {
            limit: None,
            cpus: CpuSet::ALL
        }
    );
    assert_eq!(
        parsed("governor teo"),
        Command::Governor {
            name: "teo",
            cpus: CpuSet::ALL
        }
    );
    assert_eq!(
        parsed("latency 50 cpu=all"),
        Command::Latency {
            limit: Some(Micros::new(50)),
            of: LatencyOf::Cpus(CpuSet::ALL),
        }
    );
    assert_eq!(
        parsed("latency none guest=d2 vcpu=1"),
        Command::Latency {
            limit: None,
            of: LatencyOf::Guest {
                guest: GuestRef::Id(DomId::new(2)),
                vcpu: Some(1),
            },
        }
    );
    assert_eq!(
        parsed("latency 7 guest=db").to_string(),
        "latency 7 guest=db"
    );
}

#[test]
fn parameters_of_guests_are_read() {
    for (line, change) in [
        ("weight 512", GuestChange::Weight(Weight::new(512).unwrap())),
        ("cap 25", GuestChange::Cap(Cap::new(25))),
        ("cap none", GuestChange::Cap(None)),
        ("pin 1-2", GuestChange::Pin(CpuSet::inclusive(1, 2))),
        ("soft 0", GuestChange::Soft(CpuSet::inclusive(0, 0))),
        ("halt-poll 200", GuestChange::HaltPoll(Micros::new(200))),
    ] {
        let line = format!("{line} guest=db");
        let expected = Command::Guest {
            change,
            guest: GuestRef::Name("db".into()),
            vcpu: None,
        };
        assert_eq!(parsed(&line), expected);
        assert_eq!(parsed(&line).to_string(), line);
    }
    let one = parsed("halt-poll 0 guest=d3 vcpu=2");
    assert_eq!(one.to_string(), "halt-poll 0 guest=d3 vcpu=2");
    for (line, word, why) in [
        ("weight 0 guest=a", "0", "too small"),
        ("weight 65536 guest=a", "65536", "too large"),
        ("weight 5", "weight", "no guest is named"),
        ("cap 6401 guest=a", "6401", "too large"),
        ("cap 5 guest=a vcpu=1", "vcpu=1", "not expected here"),
        ("pin 3-1 guest=a", "3-1", "above"),
        ("soft guest=a", "soft", "something is missing"),
        ("halt-poll 10001 guest=a", "10001", "too large"),
        ("halt-poll 5 guest=a vcpu=64", "vcpu=64", "too large"),
    ] {
        let problem = Command::parse(line).expect_err(line);
        assert!(
            problem.word == word && problem.why.contains(why),
            "{line}: {problem}"
        );
    }
}

#[test]
fn mistakes_are_named_with_what_would_be_right() {
    for (line, word, why, expected) in [
        ("", "", "no command", "one of help, show"),
        ("halp", "halp", "no such command", "one of help, show"),
        ("help me", "me", "no such command", "one of help"),
        (
            "cstate",
            "cstate",
            "something is missing behind it",
            "cstate on|off",
        ),
        (
            "cstate off",
            "cstate",
            "something is missing behind it",
            "cstate on|off",
        ),
        (
            "cstate kill C6",
            "kill",
            "neither on, off nor max",
            "cstate on|off",
        ),
        (
            "cstate off C6 C7",
            "C7",
            "not expected here",
            "cstate on|off",
        ),
        (
            "cstate off C-6",
            "C-6",
            "not the name of a state",
            "index from 0 to 15",
        ),
        (
            "cstate off 16",
            "16",
            "16 is too large",
            "index from 0 to 15",
        ),
        (
            "cstate max 16",
            "16",
            "16 is too large",
            "each from 0 to 15",
        ),
        ("cstate off C6 cpu=", "cpu=", "no CPU", "cpu=all"),
        (
            "cstate off C6 cpu=3-1",
            "cpu=3-1",
            "3 is above 1",
            "cpu=all",
        ),
        (
            "cstate off C6 cpu=1 cpu=2",
            "cpu=2",
            "`cpu` is given more than once",
            "it once",
        ),
        (
            "cstate cpu=1 off C6",
            "off",
            "not expected here",
            "cstate on|off",
        ),
        (
            "governor",
            "governor",
            "something is missing behind it",
            "governor NAME",
        ),
        (
            "governor best",
            "best",
            "no such governor",
            "one of lull, menu",
        ),
        (
            "latency fast",
            "fast",
            "not a whole number",
            "microseconds from 0 to 1000000",
        ),
        (
            "latency 1000001",
            "1000001",
            "1000001 is too large",
            "or none",
        ),
        (
            "latency 5 cpu=1 guest=a",
            "cpu=1",
            "either CPUs or a guest",
            "latency MICRO",
        ),
        (
            "latency 5 vcpu=1",
            "vcpu=1",
            "without a guest",
            "latency MICRO",
        ),
        (
            "latency 5 guest=",
            "guest=",
            "not the name of a guest",
            "guest=NAME",
        ),
        (
            "latency 5 guest=a vcpu=64",
            "vcpu=64",
            "64 is too large",
            "from 0 to 63",
        ),
        ("show now", "now", "not expected here", "show [cpu=CPUS]"),
    ] {
        let problem = Command::parse(line).expect_err(line);
        assert_eq!(
            (problem.word.as_str(), problem.why.as_str()),
            (word, why),
            "{line}"
        );
        assert!(problem.expected.contains(expected), "{line}: {problem}");
    }
}

#[test]
fn each_command_has_its_help() {
    for spec in &COMMANDS {
        assert!(!spec.help.is_empty() && spec.usage().starts_with(spec.name));
        assert_eq!(
            parsed(&std::format!("help {}", spec.name)),
            Command::Help(Some(spec))
        );
    }
}

fn cpus() -> impl Strategy<Value = CpuSet> {
    prop_oneof![
        Just(CpuSet::ALL),
        proptest::collection::vec(0..256_u32, 1..8)
            .prop_map(|cpus| cpus.into_iter().map(crate::units::CpuId::new).collect()),
    ]
}

fn commands() -> impl Strategy<Value = Command> {
    let limit = proptest::option::of((0..=15_u8, proptest::option::of(0..=15_u8)));
    let state = prop_oneof![
        (0..=15_u8).prop_map(StateRef::Index),
        "[A-Z][A-Za-z0-9_]{0,15}".prop_map(StateRef::Name),
    ];
    let guest = prop_oneof![
        (0..=u16::MAX).prop_map(|id| GuestRef::Id(DomId::new(id))),
        "[a-ce-z][a-z0-9._-]{0,30}".prop_map(GuestRef::Name),
    ];
    let of = prop_oneof![
        cpus().prop_map(LatencyOf::Cpus),
        (guest.clone(), proptest::option::of(0..64_u32))
            .prop_map(|(guest, vcpu)| LatencyOf::Guest { guest, vcpu }),
    ];
    let change = prop_oneof![
        (1_u16..).prop_map(|weight| GuestChange::Weight(Weight::new(weight).unwrap())),
        (0..=6400_u16).prop_map(|cap| GuestChange::Cap(Cap::new(cap))),
        cpus().prop_map(GuestChange::Pin),
        cpus().prop_map(GuestChange::Soft),
        (0..=10_000_u64).prop_map(|us| GuestChange::HaltPoll(Micros::new(us))),
    ];
    let whose = (guest.clone(), proptest::option::of(0..64_u32));
    prop_oneof![
        (any::<bool>(), cpus()).prop_map(|(on, cpus)| Command::Online { on, cpus }),
        (change, whose).prop_map(|(change, (guest, vcpu))| Command::Guest {
            vcpu: vcpu.filter(|_| !matches!(change, GuestChange::Cap(_))),
            change,
            guest,
        }),
        proptest::option::of(0..COMMANDS.len())
            .prop_map(|index| Command::Help(index.map(|index| &COMMANDS[index]))),
        cpus().prop_map(Command::Show),
        (state, any::<bool>(), cpus()).prop_map(|(state, on, cpus)| Command::State {
            state,
            on,
            cpus
        }),
        (limit, cpus()).prop_map(|(limit, cpus)| Command::MaxCState {
            limit: limit.map(|(class, substate)| MaxCState { class, substate }),
            cpus
        }),
        (proptest::sample::select(&AnyGovernor::NAMES[..]), cpus())
            .prop_map(|(name, cpus)| Command::Governor { name, cpus }),
        (proptest::option::of(0..=1_000_000_u64), of).prop_map(|(limit, of)| Command::Latency {
            limit: limit.map(Micros::new),
            of
        }),
    ]
}

proptest! {
    #[test]
    fn what_is_shown_is_read_as_the_same(command in commands()) {
        prop_assert_eq!(Command::parse(&command.to_string()), Ok(command));
    }

    #[test]
    fn nothing_that_is_typed_panics(line in ".{0,80}") {
        if let Err(problem) = Command::parse(&line) {
            prop_assert!(!problem.expected.is_empty() && !problem.to_string().contains('\n'));
        }
    }

    #[test]
    fn nothing_that_begins_well_panics(
        words in proptest::collection::vec(
            prop_oneof![
                proptest::sample::select(vec![
                    "help", "show", "cstate", "governor", "latency", "on", "off", "max", "unlimited",
                    "none", "C6", "cpu=", "guest=", "vcpu=", "=", ",", "-", "teo",
                ]).prop_map(std::string::String::from),
                "[a-z0-9=,-]{0,9}",
            ],
            0..6,
        )
    ) {
        let line = words.join(" ");
        if let Ok(command) = Command::parse(&line) {
            prop_assert_eq!(Command::parse(&command.to_string()), Ok(command));
        }
    }
}
