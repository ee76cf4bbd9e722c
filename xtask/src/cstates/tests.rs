use super::*;
use clap::Parser;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: CStatesArgs,
}

fn ask(line: &str) -> Result<String> {
    let words = std::iter::once("cstates").chain(line.split_whitespace());
    Ok(answer(&Cli::try_parse_from(words)?.args)?.0)
}

fn json(line: &str) -> serde_json::Value {
    serde_json::from_str(&ask(&format!("{line} --json")).unwrap()).unwrap()
}

/// The used states, as `NAME method latency/residency`.
fn used(answer: &serde_json::Value) -> Vec<String> {
    let states = answer["states"].as_array().unwrap().iter();
    states
        .filter(|state| state["verdict"] == "used" && state["name"] != "POLL")
        .map(|state| {
            format!(
                "{} {} {}/{}",
                state["name"].as_str().unwrap(),
                state["method"].as_str().unwrap(),
                state["exit_latency_us"],
                state["target_residency_us"]
            )
        })
        .collect()
}

#[test]
fn the_example_of_the_help_is_answered() {
    let line = "--vendor intel --model 0x55 --leaf5-edx 0x2020 --pkg-limit 0";
    assert_eq!(
        used(&json(line)),
        [
            "C1 MWAIT+IRQ 0x00 2/2",
            "C1E MWAIT 0x01 10/20",
            "C6 MWAIT 0x20 92/276"
        ]
    );
    let slow = json(&format!("{line} --nonstop-tsc no"));
    assert_eq!(used(&slow), ["C1 MWAIT 0x00 2/2", "C1E MWAIT 0x01 10/20"]);
    assert_eq!(slow["msr_writes"][0]["msr"], 0x1FC);
    let text = ask(line).unwrap();
    assert!(
        text.contains("re-timed from 133/600 to 92/276 us"),
        "{text}"
    );
    assert!(text.contains("MSR 0x1fc: clear 0x2 on every CPU"), "{text}");
}

#[test]
fn every_model_of_the_list_can_be_asked_about() {
    let all: serde_json::Value = serde_json::from_str(&print::list(true).unwrap()).unwrap();
    let all = all.as_array().unwrap();
    assert_eq!(all.len(), 53);
    for model in all {
        let answer = json(&format!(
            "--family {} --model {}",
            model["family"], model["model"]
        ));
        assert_eq!(answer["cpu"]["name"], model["name"]);
        // Without anything that says otherwise, all of a table is used, but C1 where C1E stands for it.
        let table = model["states"].as_array().unwrap().len();
        let expected = match model["table"].as_str() {
            Some("adl" | "adl_l" | "gmt") => table - 1,
            // The erratum of fast transitions: C1 and C1E.
            Some("nehalem") if model["name"] != "WESTMERE_EX" => 2,
            // PC10 and no SGX.
            Some("skl") if model["name"] == "SKYLAKE" => table - 2,
            Some(_) => table,
            None => 1,
        };
        assert_eq!(used(&answer).len(), expected, "{}", model["name"]);
    }
    assert!(print::list(false).unwrap().lines().count() > 53);
}

#[test]
fn firmware_and_options_can_be_described() {
    let genoa = json("--vendor amd --model 0x11 --cst 0x0:1,io0x414:800");
    assert_eq!(used(&genoa), ["C1 MWAIT 0x00 1/2", "C2 IO 0x414 800/1600"]);
    let limited = answer(
        &Cli::try_parse_from([
            "cstates",
            "--model",
            "0x3c",
            "--cmdline",
            "max_cstate=2 irq-enable-early=force",
            "--json",
        ])
        .unwrap()
        .args,
    );
    let limited: serde_json::Value = serde_json::from_str(&limited.unwrap().0).unwrap();
    assert_eq!(used(&limited)[2], "C3 MWAIT+IRQ 0x10 33/100");
    // What the command line makes of CPUID holds here too; the rest stays as it was described.
    let skylake = |cmdline: &str| {
        let words = ["cstates", "--model", "0x55", "--json", "--cmdline", cmdline];
        let said = answer(&Cli::try_parse_from(words).unwrap().args).unwrap();
        used(&serde_json::from_str(&said.0).unwrap())
    };
    let stopping = ["C1 MWAIT 0x00 2/2", "C1E MWAIT 0x01 10/20"];
    assert_eq!(skylake("cpuid=0x80000007:edx=0"), stopping);
    let shallow = ["C1 MWAIT+IRQ 0x00 2/2", "C1E MWAIT 0x01 10/20"];
    assert_eq!(skylake("cpuid=0x5:edx=0x20"), shallow);
    let twice = skylake("cpuid=0x5:edx=0x20 cpuid=0x80000007:edx=0");
    assert_eq!(twice, stopping);
    assert_eq!(skylake("cpuid=0x1:ecx=0"), ["C1 HLT 2/2"]);
    // Of another model: Haswell, by its own signature; and not of Intel's any more.
    let haswell = skylake("cpuid=0x1:eax=0x306c3");
    assert_eq!(haswell[..2], ["C1 MWAIT 0x00 2/2", "C1E MWAIT 0x01 10/20"]);
    assert_eq!(
        haswell,
        used(&json("--model 0x3c --stepping 3 --leaf5-edx 0x2020"))
    );
    let amd = "cpuid=0x0:ebx=0x68747541,0x0:edx=0x69746e65,0x0:ecx=0x444d4163";
    assert_eq!(
        skylake(amd),
        used(&json("--vendor amd --family 6 --model 0x55"))
    );
    assert_ne!(skylake(amd), skylake(""));
    for (bad, why) in [
        (
            "--model 0x55 --msr 0x999=1",
            "does not read MSR 0x999 (it reads 0xe2, 0x1fc, 0x3a)",
        ),
        (
            "--vendor amd --model 1 --msr 0xe2=1",
            "does not read MSR 0xe2 (it reads none)",
        ),
        ("--model 0x55 --file /dev/zero", "larger than 64 MiB"),
        ("--model 0x555", "too large"),
        ("--model 0x55 --cst 0x0", "expected HINT:LATENCY"),
        (
            "--model 0x8c --cst 0x0:1,io0x0:9",
            "entry 2: 0x0 is no I/O port",
        ),
        (
            "--model 0x8c --cst 0x0:1,io0x10000:9",
            "entry 2: 0x10000 is no I/O port",
        ),
        (
            "--model 0x8c --cst 0x0:1,0x20:100001",
            "entry 2: latency 100001 us, expected 1 to 100000",
        ),
        (
            "--model 0x8c --cst 0:1,1:2,2:3,3:4,4:5,5:6,6:7,7:8,8:9",
            "only 7 entries are used",
        ),
        ("--model 0x55 --pkg-limit 99", "expected 0 to 15"),
        ("--model 0x55 --packages 0", "expected 1 to 4096"),
        ("--model 0x55 --stepping 16", "expected 0 to 15"),
        ("--model 0x55 --msr 0xe2", "expected MSR=VALUE"),
    ] {
        let said = format!("{:#}", ask(bad).unwrap_err());
        assert!(said.contains(why), "{bad}: {said}");
    }
}

/// Two threads of a Skylake-SP, as `cpuid -r` prints them (the leaves that count).
const DUMP: &str = "CPU 0:
   0x00000000 0x00: eax=0x00000016 ebx=0x756e6547 ecx=0x6c65746e edx=0x49656e69
   0x00000001 0x00: eax=0x00050654 ebx=0x00200800 ecx=0x7ffefbff edx=0xbfebfbff
   0x00000005 0x00: eax=0x00000040 ebx=0x00000040 ecx=0x00000003 edx=0x00002020
   0x00000006 0x00: eax=0x00000ef7 ebx=0x00000002 ecx=0x00000009 edx=0x00000000
   0x00000007 0x00: eax=0x00000000 ebx=0xd39ffffb ecx=0x00000818 edx=0xbc000400
   0x0000000b 0x00: eax=0x00000001 ebx=0x00000002 ecx=0x00000100 edx=0x00000000
   0x0000000b 0x01: eax=0x00000006 ebx=0x00000028 ecx=0x00000201 edx=0x00000000
   0x80000000 0x00: eax=0x80000008 ebx=0x00000000 ecx=0x00000000 edx=0x00000000
   0x80000007 0x00: eax=0x00000000 ebx=0x00000000 ecx=0x00000000 edx=0x00000100
CPU 1:
   0x00000001 0x00: eax=0x00050654 ebx=0x41200800 ecx=0x7ffefbff edx=0xbfebfbff
   0x0000000b 0x00: eax=0x00000001 ebx=0x00000002 ecx=0x00000100 edx=0x00000041
";

#[test]
fn the_text_of_the_cpuid_program_is_understood() {
    let dump = dump::Dump::parse(DUMP).unwrap();
    assert_eq!(dump.apic_ids(), [0, 0x41]);
    let args = Cli::try_parse_from(["cstates", "--pkg-limit", "3"])
        .unwrap()
        .args;
    let question = of_dump(&args, DUMP, &Options::default()).unwrap();
    let expected = Topology {
        packages: 2,
        cpus: 2,
        smt: false,
    };
    assert_eq!(question.topology, expected);
    assert_eq!(question.cpu.identity.to_string(), "Intel 06_55 stepping 4");
    assert_eq!(question.cpu.mwait.substates, 0x2020);
    assert!(question.cpu.nonstop_tsc && question.cpu.arat && !question.cpu.hypervisor);
    assert_eq!(question.msrs.package_control, Some(3));
    let (options, _) = Options::parse("cpuid=0x80000007:edx=0");
    let question = of_dump(&args, DUMP, &options).unwrap();
    assert!(!question.cpu.nonstop_tsc);
}

#[test]
fn what_a_text_leaves_out_is_assumed_and_said() {
    let args = Cli::try_parse_from(["cstates"]).unwrap().args;
    let without = |leaf: &str| {
        let kept: Vec<&str> = DUMP.lines().filter(|line| !line.contains(leaf)).collect();
        let question = of_dump(&args, &kept.join("\n"), &Options::default()).unwrap();
        let said = question
            .assumed
            .iter()
            .find(|what| what.contains("the text has no"));
        (
            question.cpu.nonstop_tsc,
            question.cpu.mwait.substates,
            said.cloned(),
        )
    };
    let nothing = (true, 0x2020, None);
    assert_eq!(without("no such leaf"), nothing);
    assert_eq!(
        without("0x80000000 0x00"),
        nothing,
        "the others tell how many there are"
    );
    let (nonstop, _, said) = without("0x80000007 0x00");
    assert!(!nonstop);
    assert_eq!(
        said.unwrap(),
        "the TSC stops in deep states: the text has no CPUID leaf 0x80000007"
    );
    let (_, substates, said) = without("0x00000005 0x00");
    assert_eq!(substates, 0);
    assert!(said.unwrap().ends_with("no CPUID leaf 0x5"));
}

#[test]
fn entries_out_of_order_are_put_in_order_as_the_firmwares_are() {
    let sorted = json("--model 0x8c --cst 0x0:90,0x20:3,0x60:40");
    let states = [
        "C1_ACPI MWAIT 0x00 90/90",
        "C2_ACPI MWAIT 0x20 90/270",
        "C3_ACPI MWAIT 0x60 90/270",
    ];
    assert_eq!(used(&sorted), states);
    let said = sorted["assumed"].to_string();
    assert!(said.contains("the entries were out of order"), "{said}");
}

#[test]
fn an_hpet_stands_in_for_clocks_that_stop() {
    let names = |words: &str| {
        let used = used(&json(words));
        used.iter()
            .map(|state| state.split(' ').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let stops = "--model 0x55 --leaf5-edx 0x2020 --nonstop-tsc=no --arat=no";
    assert_eq!(names(stops), ["C1", "C1E"]);
    assert_eq!(names(&format!("{stops} --hpet")), ["C1", "C1E", "C6"]);
}

#[test]
fn options_override_the_text() {
    let words =
        "--vendor intel --model 0x55 --leaf5-edx 0x20 --pkg-limit 0 --nonstop-tsc=no --stepping 7";
    let words = std::iter::once("cstates").chain(words.split_whitespace());
    let args = Cli::try_parse_from(words).unwrap().args;
    let question = of_dump(&args, DUMP, &Options::default()).unwrap();
    assert_eq!(question.cpu.identity.to_string(), "Intel 06_55 stepping 7");
    assert_eq!(question.cpu.mwait.substates, 0x20);
    assert!(!question.cpu.nonstop_tsc);

    let words = [
        "cstates", "--vendor", "amd", "--family", "0x19", "--model", "0x11",
    ];
    let args = Cli::try_parse_from(words).unwrap().args;
    let question = of_dump(&args, DUMP, &Options::default()).unwrap();
    assert_eq!(question.cpu.identity.to_string(), "AMD 19_11 stepping 4");
}

#[test]
fn amd_and_hygon_can_be_asked_about() {
    for (vendor, family) in [("amd", 0x17), ("amd", 0x19), ("amd", 0x1A), ("hygon", 0x18)] {
        let answer = json(&format!("--vendor {vendor} --family {family:#x} --model 1"));
        let names = used(&answer);
        assert!(
            names[0].starts_with("C1 MWAIT 0x00"),
            "{family:x}: {names:?}"
        );
        assert!(names[1].starts_with("C2 HLT"), "{family:x}: {names:?}");
    }
}

/// As on the machine, a word that cannot be used is named, and the rest counts.
#[test]
fn what_cannot_be_used_is_named_and_costs_no_answer() {
    for (line, word, why) in [
        (
            "--model 0x55 --cmdline max_cstate=x",
            "max_cstate=x",
            "not a whole number",
        ),
        (
            "--model 0x55 --cmdline bogus=1",
            "bogus=1",
            "no such option",
        ),
        (
            "--model 0x55 --cmdline cpuid=0x1234:eax=1",
            "cpuid",
            "nothing here looks at leaf 0x1234",
        ),
        (
            "--model 0x55 --pkg-limit 8",
            "--pkg-limit",
            "code 8 means nothing on this model",
        ),
    ] {
        let said = json(line);
        let problem = &said["problems"][0];
        let has = |key: &str, part: &str| problem[key].as_str().unwrap().contains(part);
        assert!(has("name", word) && has("why", why), "{line}: {problem}");
        let text = ask(line).unwrap();
        assert!(text.contains("problem: ") && text.contains(why), "{text}");
        assert_eq!(used(&said).len(), 3, "{line}");
    }
    let twice = [
        "cstates",
        "--model",
        "0x55",
        "--json",
        "--cmdline",
        "max_cstate=1,0 max_cstate=2",
    ];
    let said = answer(&Cli::try_parse_from(twice).unwrap().args).unwrap().0;
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(used(&said).len(), 2, "the last one counts");
    assert_eq!(said["problems"].as_array().unwrap().len(), 1);
}

#[test]
fn lines_that_look_like_leaves_and_do_not_count_are_named() {
    let text = "CPU 0:
   0x00000000 0x00: eax=0x00000016 ebx=0x756e6547 ecx=0x6c65746e edx=0x49656e69
   0x00000001 0x00: eax=0x00050654 ebx=0x00000800 ecx=0x00000008 edx=0x00080000
   0x00000005 0x00: eax=0x00000040 ebx=0x0000004g ecx=0x00000003 edx=0x00002020
   0x00000001 0x00: eax=0x000306c3 ebx=0x00000800 ecx=0x00000008 edx=0x00080000
   a remark of its own\n";
    let dump = dump::Dump::parse(text).unwrap();
    assert_eq!(dump.leaf(1, 0).eax, 0x50654, "the first counts");
    let named: Vec<String> = dump.problems().iter().map(ToString::to_string).collect();
    assert_eq!(named.len(), 2, "{named:?}");
    assert!(
        named[0].contains("0x0000004g") || named[0].contains("0x00000005 0x00"),
        "{named:?}"
    );
    assert!(
        named[0].contains("not a leaf") && named[1].contains("the first counts"),
        "{named:?}"
    );
}

#[test]
fn text_of_something_else_is_refused() {
    for text in [
        "",
        "hello",
        "CPU 0:\n 0x0 0x0: eax=zz\n",
        "CPU:\n",
        "0x00000005 0x00: eax=0x1",
    ] {
        assert!(dump::Dump::parse(text).is_err(), "{text}");
    }
}

#[test]
fn a_cpu_that_is_only_half_described_is_refused() {
    let asked = |words: &[&str]| {
        let words = std::iter::once("cstates").chain(words.iter().copied());
        command(&Cli::try_parse_from(words).unwrap().args)
    };
    for words in [
        &["--vendor", "amd"][..],
        &["--pkg-limit", "0"],
        &["--acpi", "no-such-file"],
        &["--cmdline", "max_cstate=1"],
    ] {
        let said = format!("{:#}", asked(words).unwrap_err());
        assert!(said.contains("by --model or --file"), "{words:?}: {said}");
    }
    asked(&[]).unwrap();
}

#[test]
fn a_store_wakes_only_where_a_state_watches() {
    for (line, wakes) in [
        ("--model 0x55", true),
        ("--model 0x55 --cmdline idle=hlt", false),
        ("--model 0x55 --cmdline cpuidle=off", false),
        ("--model 0x5c", false),
    ] {
        assert_eq!(json(line)["stores_wake"], wakes, "{line}");
    }
}
