use super::*;
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
        "loglvl=debug idle=hlt governor=menu exit-port=0xf4 for=5 keep maxcpus=4 machine-channel=off \
         ap-timeout-ms=50 tsc-hz=2500000000 test.account=double test.absent-ap=3 test.crash=stack",
    );
    let expected = Options {
        log_level: LogLevel::Debug,
        idle: IdleMethod::Halt,
        governor: Some("menu".to_string()),
        exit_port: Some(0xF4),
        run_for: Some(Seconds(5)),
        keep: true,
        max_cpus: Some(4),
        machine_channel: false,
        ap_timeout: Micros::new(50_000),
        tsc_rate: TickRate::from_hz(2_500_000_000),
        test_account: Some(AccountFault::Double),
        test_absent_ap: Some(CpuId::new(3)),
        test_crash: Some(Crash::StackOverflow),
    };
    assert_eq!(options, expected);
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

proptest! {
    #[test]
    fn no_line_makes_it_panic(line in any::<String>()) {
        let (_, problems) = Options::parse(&line);
        for problem in problems {
            prop_assert!(!problem.to_string().chars().any(char::is_control));
        }
    }

    #[test]
    fn no_value_makes_it_panic(option in 0..OPTIONS.len(), value in "[-+0-9a-fxA-Z=., ]{0,30}") {
        let line = format!("{}={value}", OPTIONS[option].name);
        let words = line.split_whitespace().count();
        prop_assert!(Options::parse(&line).1.len() <= words);
    }
}
