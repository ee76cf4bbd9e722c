//! Bochs: CPUs that claim something else about themselves. Errata by the number of a model, MSRs that a model has, a leaf 5 that
//! lies; and options that come to nothing on the CPU that there is.

use anyhow::{Result, ensure};

use super::bochs::{posts, slept, states};
use crate::test::{
    bochs_rig::BochsRig,
    case::{Case, Lab},
    check,
    rig::Ran,
};

pub fn cases() -> Vec<Case> {
    vec![
        Case::bochs("bochs/msr-writes", msr_writes),
        Case::bochs("bochs/package-limit", package_limit),
        Case::bochs("bochs/flush-before-monitor", flush_before_monitor),
        Case::bochs("bochs/monitor-not-trusted", monitor_not_trusted),
        Case::bochs("bochs/leaf-5-lies", leaf_5_lies),
        Case::bochs("bochs/options-for-nothing", options_for_nothing),
    ]
}

fn skylake<'a>(lab: &'a Lab<'_>, label: &str) -> BochsRig<'a> {
    lab.bochs(label, "corei7_skylake_x")
        .word("for=1")
        .word("loglvl=debug")
}

/// As if it were another model of family 6: CPUID leaf 1 EAX.
fn as_model(model: u32) -> String {
    let eax = (model >> 4) << 16 | 6 << 8 | (model & 0xF) << 4 | 1;
    format!("cpuid=0x1:eax={eax:#x}")
}

fn says(ran: &Ran, cpu: &str, msr: &str, what: &str) -> Result<()> {
    let said = ran
        .console
        .lines()
        .any(|line| line.contains(&format!("{cpu}: MSR {msr}: ")) && line.contains(what));
    ensure!(said, "{cpu} does not say `{what}` of MSR {msr}");
    Ok(())
}

/// What models want changed is changed on each CPU that needs it, and said with the old and the new value.
fn msr_writes(lab: &Lab<'_>) -> Result<()> {
    const PROMOTES: u64 = 0x2904_005B;
    // The model's own, Nehalem-EX, Lincroft, Alder Lake.
    for (label, words, msr, value, change) in [
        (
            "skx",
            String::new(),
            0x1FC,
            PROMOTES,
            "0x2904005b -> 0x29040059",
        ),
        (
            "nhm",
            as_model(0x2E),
            0xE2,
            0x0600_8403,
            "0x6008403 -> 0x8403",
        ),
        (
            "lnc",
            as_model(0x26),
            0xE2,
            0x0600_8403,
            "0x6008403 -> 0x4008403",
        ),
        ("adl", as_model(0x9A), 0x1FC, 0x59, "0x59 -> 0x5b"),
        ("ptl", as_model(0xCC), 0x1FC, 0x59, ""),
    ] {
        let mut rig = skylake(lab, label).msr(msr, value);
        if !words.is_empty() {
            rig = rig.word(&words);
        }
        let ran = rig.run()?;
        ran.ok()?;
        let name = format!("{msr:#x}");
        if change.is_empty() {
            let said = ran.console.contains(&format!("MSR {name}:"));
            ensure!(!said, "{label}: MSR {name} is not to be touched");
            continue;
        }
        for cpu in ["cpu0", "cpu1"] {
            says(&ran, cpu, &name, change)?;
        }
    }
    // Bay Trail's belong to the package: once.
    let ran = skylake(lab, "byt")
        .word(&as_model(0x37))
        .msr(0x668, 7)
        .msr(0x669, 0)
        .run()?;
    ran.ok()?;
    says(&ran, "cpu0", "0x668", "0x7 -> 0x0")?;
    says(&ran, "cpu0", "0x669", "is 0x0 already")?;
    says(&ran, "cpu1", "0x668", "not on this CPU")?;
    Ok(())
}

/// The figures of C6 follow the package limit that the firmware has set.
fn package_limit(lab: &Lab<'_>) -> Result<()> {
    for (model, limit, expected) in [
        ("corei7_skylake_x", 0x8400, 92),
        ("corei7_skylake_x", 0x8402, 133),
        ("sapphire_rapids", 1, 190),
        ("sapphire_rapids", 3, 290),
    ] {
        let ran = lab
            .bochs(&format!("{model}-{limit:x}"), model)
            .word("for=1")
            .msr(0xE2, limit)
            .run()?;
        ran.ok()?;
        for cpu in &ran.last_reading()?.cpus {
            let c6 = check::state(&cpu.counters, "C6")?;
            ensure!(
                c6.latency_us == expected,
                "{model}, limit {limit:#x}: {c6:?}"
            );
        }
    }
    Ok(())
}

/// AAI65: the line is flushed before MONITOR, on every entry; stores still end the sleep. BA80 leaves C1 and C1E, since leaf Bh has
/// both CPUs in one core.
fn flush_before_monitor(lab: &Lab<'_>) -> Result<()> {
    let ran = skylake(lab, "run")
        .word(&as_model(0x2E))
        .word("latency=0:0")
        .run()?;
    ran.ok()?;
    for part in ["AAI65", "cpu1: around each sleep: FLUSH_LINE"] {
        ensure!(
            ran.console.contains(part),
            "the console does not say {part}"
        );
    }
    let (stores, ipis) = (posts(&ran, "store")?, posts(&ran, "ipi")?);
    ensure!(
        stores > 0 && ipis == 0,
        "{stores} wakes by store, {ipis} by IPI"
    );
    let all = &check::cpu(ran.last_reading()?, 1)?.counters;
    ensure!(
        states(all) == [("C1", "MWAIT 0x00"), ("C1E", "MWAIT 0x01")],
        "{all:?}"
    );
    ensure!(
        all.residency() * 10 > all.elapsed * 8 && ran.console.contains("erratum BA80"),
        "{all:?}"
    );
    Ok(())
}

/// ICX143: this monitor passes its test, and is not trusted all the same: MWAIT is the way to sleep, and an IPI the way to wake.
fn monitor_not_trusted(lab: &Lab<'_>) -> Result<()> {
    let ran = skylake(lab, "run")
        .word(&as_model(0x6A))
        .word("latency=0:0")
        .run()?;
    ran.ok()?;
    ensure!(
        ran.channel().boot().and_then(|boot| boot.store_wakes) == Some(true)
            && ran.console.contains("APL30/ICX143/LNL030"),
        "the test passes, and the erratum is said"
    );
    let (stores, ipis) = (posts(&ran, "store")?, posts(&ran, "ipi")?);
    ensure!(
        stores == 0 && ipis > 0,
        "{stores} wakes by store, {ipis} by IPI"
    );
    let all = &check::cpu(ran.last_reading()?, 1)?.counters;
    ensure!(
        states(all).contains(&("C6", "MWAIT 0x20")),
        "MWAIT is not used: {all:?}"
    );
    Ok(())
}

/// Whatever leaf 5 says, there is a state that sleeps, and every timer comes.
fn leaf_5_lies(lab: &Lab<'_>) -> Result<()> {
    const HALT: &[(&str, &str)] = &[("C1", "HLT")];
    const OPEN: &[(&str, &str)] = &[("C1", "MWAIT+IRQ 0x00")];
    const ONES: &str = "cpuid=5:eax=0xffffffff,5:ebx=0xffffffff,5:ecx=0xffffffff,5:edx=0xffffffff";
    for (label, words, expected) in [
        ("no-substates", "cpuid=0x5:edx=0", HALT),
        ("only-c0", "cpuid=0x5:edx=0xf", HALT),
        ("no-line", "cpuid=0x5:eax=0", HALT),
        ("no-extensions", "cpuid=0x5:ecx=0", OPEN),
        ("zeros", "cpuid=5:eax=0,5:ebx=0 cpuid=5:ecx=0,5:edx=0", HALT),
        ("ones", ONES, HALT),
    ] {
        let mut rig = skylake(lab, label).cpus(1).word("test.timers=10000");
        for word in words.split(' ') {
            rig = rig.word(word);
        }
        let ran = rig.run()?;
        ran.ok()?;
        slept(&ran, 80)?;
        let found = states(&check::cpu(ran.last_reading()?, 0)?.counters);
        ensure!(found == expected, "{label}: {found:?}");
        ensure!(
            label != "ones" || ran.console.contains("CPUID leaf 5 is nonsense"),
            "the console does not say why"
        );
        let came = ran
            .channel()
            .timers()
            .map_or(0, |timers| timers.cpus[0].came);
        ensure!(came >= 50, "{label}: {came} timers came");
    }
    Ok(())
}

/// What an option was meant to do and could not is a complaint that names it; the rest of it is done. MSRs that fault leave the
/// worst case.
fn options_for_nothing(lab: &Lab<'_>) -> Result<()> {
    let ran = skylake(lab, "run")
        .word("mwait-idle.table=C9:1:1,C1E:150:700,C6:140:")
        .word("states_off=C7,C1E")
        .word("preferred-c1e=off")
        .run()?;
    ran.ok()?
        .complains("cmdline", &["mwait-idle.table", "C9", "no such state"])?
        .complains(
            "cmdline",
            &["mwait-idle.table", "C1E", "smaller than those of C6"],
        )?
        .complains("cmdline", &["states_off", "C7"])?
        .complains("cmdline", &["preferred-c1e", "nothing is to be chosen"])?;
    let count = ran.channel().problems();
    let count = count.filter(|problem| problem.place == "cmdline").count();
    ensure!(count == 4, "{count} complaints for two CPUs, expected 4");
    for cpu in &ran.last_reading()?.cpus {
        let c6 = check::state(&cpu.counters, "C6")?;
        let c1e = check::state(&cpu.counters, "C1E")?;
        ensure!(
            c6.latency_us == 140 && c1e.latency_us == 10 && c1e.off && c1e.usage == 0,
            "{c6:?}, {c1e:?}"
        );
    }
    for part in [
        "MSR 0xe2 is not known: the worst-case figures stay",
        "MSR 0x1fc is not known",
    ] {
        ensure!(
            ran.console.contains(part),
            "the console does not say {part}"
        );
    }
    Ok(())
}
