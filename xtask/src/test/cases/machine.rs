//! Machines of several sizes and kinds.

use std::fs;

use anyhow::{Result, ensure};

use crate::test::{case::Case, case::Lab, check, sleep_pairs};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for cpus in [1, 2, 16] {
        cases.push(Case::icount(format!("machine/{cpus}-cpus"), move |lab| {
            of_size(lab, cpus)
        }));
    }
    cases.push(Case::icount("machine/64-cpus", |lab| of_size(lab, 64)));
    cases.push(Case::real_time("machine/64-cpus-real-time", |lab| {
        of_size(lab, 64)
    }));
    for (name, model) in [
        ("epyc", "EPYC,check=off"),
        ("no-monitor", "max,-monitor"),
        ("no-smap", "max,-smap,-smep"),
    ] {
        cases.push(Case::icount(format!("machine/cpu-{name}"), move |lab| {
            lab.rig("run")
                .cpu(model)
                .guest("idle-timer")
                .guest("ipi-pair")
                .run()?
                .ok()?;
            Ok(())
        }));
    }
    for method in ["hlt", "poll"] {
        cases.push(Case::icount(format!("machine/idle-{method}"), move |lab| {
            idle_method(lab, method)
        }));
    }
    cases.push(Case::real_time(
        "machine/says-what-is-hidden",
        says_what_is_hidden,
    ));
    cases.push(Case::icount("machine/sleep-adjacency", sleep_adjacency));
    cases
}

/// In the built image, STI is directly followed by the sleep, and by nothing else anywhere but in the known windows.
fn sleep_adjacency(lab: &Lab<'_>) -> Result<()> {
    let found = sleep_pairs::check(&fs::read(&lab.context.built.image)?)?;
    fs::write(lab.dir.join("found.txt"), format!("{found:#?}\n"))?;
    ensure!(
        found.hlt_pairs > 0 && found.mwait_pairs > 0 && found.masked_mwaits > 0,
        "not every way to sleep is in the image: {found:?}"
    );
    ensure!(found.windows > 0 && found.gates > 0, "{found:?}");
    Ok(())
}

fn of_size(lab: &Lab<'_>, cpus: u32) -> Result<()> {
    let ran = lab
        .rig("run")
        .cpus(cpus)
        .guest("idle-timer")
        .guest("ipi-pair")
        .word("for=5")
        .limit(180)
        .run()?;
    ran.ok()?.passed("idle-timer")?.passed("ipi-pair")?;
    let up = ran
        .channel()
        .boot()
        .map(|boot| (boot.cpus, boot.cpus_failed.len()));
    ensure!(up == Some((cpus, 0)), "{up:?} of {cpus} CPUs are up");
    let read = ran.last_reading()?.cpus.len();
    ensure!(
        read == cpus as usize,
        "the last reading has {read} of {cpus} CPUs"
    );
    Ok(())
}

/// With `idle=METHOD` no CPU sleeps in another way, and the handlers that end each sleep are counted apart from it.
fn idle_method(lab: &Lab<'_>, method: &str) -> Result<()> {
    let ran = lab
        .rig("run")
        .cpus(2)
        .guest("idle-timer,pin=1")
        .word(&format!("idle={method}"))
        .run()?;
    ran.ok()?.passed("idle-timer")?;
    let all = &check::cpu(ran.last_reading()?, 1)?.counters;
    ensure!(all.usage() > 0, "CPU 1 was never idle");
    for state in &all.states {
        ensure!(
            state.usage == 0 || state.method.eq_ignore_ascii_case(method),
            "state {} by {} was entered {} times",
            state.name,
            state.method,
            state.usage
        );
        ensure!(
            state.usage == 0 || (state.irq > 0 && state.irq * 10 < state.residency),
            "every sleep was ended by a timer's handler: {state:?}"
        );
    }
    Ok(())
}

/// QEMU's emulator offers no nonstop TSC, no TSC-deadline, and an MWAIT that does not work: all must be found out.
fn says_what_is_hidden(lab: &Lab<'_>) -> Result<()> {
    let ran = lab.rig("run").guest("idle-timer").run()?;
    ran.ok()?;
    let boot = ran.channel().boot().cloned().unwrap_or_default();
    ensure!(
        boot.hypervisor
            .as_deref()
            .is_some_and(|name| name.starts_with("TCG")),
        "who runs us: {:?}",
        boot.hypervisor
    );
    ensure!(
        !boot.nonstop_tsc && !boot.tsc_deadline && boot.arat,
        "{boot:?}"
    );
    ensure!(boot.mwait.contains("#GP"), "MWAIT: {}", boot.mwait);
    ensure!(
        boot.virt.as_deref() == Some("svm"),
        "virtualization: {:?}",
        boot.virt
    );
    // The same, for people.
    for word in ["MWAIT", "nonstop TSC", "ARAT", "TSC-deadline"] {
        let said = ran.console.to_lowercase().contains(&word.to_lowercase());
        ensure!(said, "the console does not say what is with {word}");
    }
    Ok(())
}
