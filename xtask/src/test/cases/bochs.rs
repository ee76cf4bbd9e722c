//! Bochs: where MONITOR and MWAIT are real, and where they are broken in a way that must be found out.

use anyhow::{Context, Result, ensure};

use crate::{
    bochs::Release,
    channel::{Boot, Counters},
    qemu::exit,
    test::{case::Case, case::Lab, check, rig::Ran},
};

/// The rate of the TSC in Bochs, whatever CPUID says.
const HZ: u64 = 10_000_000;

pub fn cases() -> Vec<Case> {
    vec![
        Case::bochs("bochs/ryzen", ryzen),
        Case::bochs("bochs/ryzen-guests", ryzen_guests),
        Case::bochs("bochs/one-cpu", one_cpu),
        Case::bochs("bochs/fifteen-cpus", fifteen_cpus),
        Case::bochs("bochs/parked-cpus", parked_cpus),
        Case::bochs("bochs/around-the-sleep", around_the_sleep),
        Case::bochs("bochs/tiles-released", tiles_released),
        Case::bochs("bochs/spec-ctrl-cleared", spec_ctrl_cleared),
        Case::bochs("bochs/panic", panics),
        Case::bochs("bochs/broken-monitor", broken_monitor),
    ]
}

pub(super) fn boot(ran: &Ran) -> Result<&Boot> {
    ran.channel().boot().context("no `boot`")
}

/// The states that a CPU sleeps in, but POLL.
pub(super) fn states(counters: &Counters) -> Vec<(&str, &str)> {
    counters
        .states
        .iter()
        .map(|state| (state.name.as_str(), state.method.as_str()))
        .filter(|(name, _)| *name != "POLL")
        .collect()
}

/// Every CPU was asleep for at least this share of its time, in percent.
pub(super) fn slept(ran: &Ran, percent: u64) -> Result<()> {
    for cpu in &ran.last_reading()?.cpus {
        let (slept, all) = (cpu.counters.residency(), cpu.counters.elapsed);
        ensure!(
            slept * 100 >= all * percent,
            "CPU {} slept for {slept} of {all} ticks",
            cpu.cpu
        );
    }
    Ok(())
}

/// Σ over all CPUs of the posts that needed this.
pub(super) fn posts(ran: &Ran, kind: &str) -> Result<u64> {
    let cpus = &ran.last_reading()?.cpus;
    Ok(cpus
        .iter()
        .filter_map(|cpu| cpu.counters.posts.get(kind))
        .sum())
}

/// The TSC was measured, and not believed.
pub(super) fn clock_is_true(boot: &Boot) -> Result<()> {
    ensure!(
        boot.tsc_hz.abs_diff(HZ) * 1000 < HZ
            && matches!(boot.tsc_source.as_str(), "hpet" | "pm-timer"),
        "TSC {} Hz by {}",
        boot.tsc_hz,
        boot.tsc_source
    );
    Ok(())
}

/// AMD: no MWAIT to be had, no x2APIC, no TSC-deadline.
fn ryzen(lab: &Lab<'_>) -> Result<()> {
    let ran = lab
        .bochs("run", "ryzen")
        .word("for=1")
        .word("test.timers=10000")
        .run()?;
    ran.ok()?;
    let boot = boot(&ran)?;
    clock_is_true(boot)?;
    ensure!(
        !boot.x2apic && boot.timer == "lapic" && boot.virt.as_deref() == Some("svm"),
        "{boot:?}"
    );
    for cpu in &ran.last_reading()?.cpus {
        let found = states(&cpu.counters);
        ensure!(found == [("C1", "HLT")], "CPU {}: {found:?}", cpu.cpu);
        let c1 = check::state(&cpu.counters, "C1")?;
        ensure!(
            c1.irq > c1.usage && c1.irq * 20 < c1.residency,
            "handlers ran inside: {c1:?}"
        );
    }
    slept(&ran, 80)?;
    let stores = posts(&ran, "store")?;
    ensure!(stores == 0, "{stores} stores were to wake a CPU in HLT");
    Ok(())
}

/// Guests from a bundle that GRUB has loaded, on an SVM that is not QEMU's.
fn ryzen_guests(lab: &Lab<'_>) -> Result<()> {
    let ran = lab
        .bochs("run", "ryzen")
        .guest("idle-timer")?
        .guest("fault")?
        .run()?;
    ran.ok()?.passed("idle-timer")?.passed("fault")?;
    Ok(())
}

/// One CPU has nobody to try stores with, and nobody who wakes it: its sleep is as deep and as long as can be.
fn one_cpu(lab: &Lab<'_>) -> Result<()> {
    let ran = lab
        .bochs("run", "corei7_skylake_x")
        .cpus(1)
        .word("for=1")
        .run()?;
    ran.ok()?;
    let boot = boot(&ran)?;
    ensure!(
        boot.cpus == 1 && boot.store_wakes.is_none(),
        "{:?} with {} CPUs",
        boot.store_wakes,
        boot.cpus
    );
    slept(&ran, 95)?;
    let counters = &check::cpu(ran.last_reading()?, 0)?.counters;
    let c6 = check::state(counters, "C6")?;
    ensure!(
        c6.method == "MWAIT 0x20" && c6.usage <= 10 && c6.residency * 100 > counters.elapsed * 90,
        "{c6:?}"
    );
    Ok(())
}

/// As many as Bochs has: all are up, all sleep, and no wake is lost.
fn fifteen_cpus(lab: &Lab<'_>) -> Result<()> {
    let ran = lab
        .bochs("run", "corei7_skylake_x")
        .cpus(15)
        .word("for=1")
        .word("test.timers=100000")
        .limit(300)
        .run()?;
    ran.ok()?;
    let up = boot(&ran)?;
    ensure!(
        up.cpus == 15 && up.cpus_failed.is_empty() && up.store_wakes == Some(true),
        "{up:?}"
    );
    ensure!(ran.last_reading()?.cpus.len() == 15, "not all are counted");
    slept(&ran, 1)?;
    let timers = ran.channel().timers().context("no `timers`")?;
    for cpu in &timers.cpus {
        ensure!(cpu.came >= 5 && cpu.skipped == 0, "{cpu:?} of about 10");
    }
    Ok(())
}

/// CPUs that `maxcpus=` leaves out are parked in the deepest state, and nobody waits for them at the end.
fn parked_cpus(lab: &Lab<'_>) -> Result<()> {
    for (model, method) in [("corei7_skylake_x", "MWAIT 0x20"), ("ryzen", "HLT")] {
        let ran = lab
            .bochs(model, model)
            .cpus(3)
            .word("for=1")
            .word("maxcpus=1")
            .word("loglvl=debug")
            .run()?;
        ran.ok()?;
        let (up, read) = (boot(&ran)?.cpus, ran.last_reading()?.cpus.len());
        ensure!(
            up == 1 && read == 1,
            "{up} CPUs are up, {read} in the reading"
        );
        for cpu in ["cpu1", "cpu2"] {
            let said = ran.console.contains(&format!("{cpu}: parked by {method}"));
            ensure!(said, "{model}: {cpu} is not parked by {method}");
        }
    }
    Ok(())
}

/// What some CPUs need around a sleep, asked for by CPUID: VERW before MONITOR (MD_CLEAR) does no harm, and the stores that end a
/// sleep are still seen. SPEC_CTRL is not touched, which no bit here asks for.
fn around_the_sleep(lab: &Lab<'_>) -> Result<()> {
    const MD_CLEAR: u32 = 1 << 10;
    const AMX: u32 = 1 << 24;
    let word = format!("cpuid=0x7:edx={:#x}", MD_CLEAR | AMX);
    let ran = lab
        .bochs("run", "sapphire_rapids")
        .cpus(2)
        .word("for=1")
        .word("loglvl=debug")
        .word(&word)
        .run()?;
    ran.ok()?;
    slept(&ran, 25)?;
    let ipis = posts(&ran, "ipi")?;
    ensure!(ipis == 0, "{ipis} wakes by IPI");
    let c6 = check::state(&check::cpu(ran.last_reading()?, 1)?.counters, "C6")?;
    ensure!(
        c6.usage > 0,
        "C6, which releases tiles, is not used: {c6:?}"
    );
    ensure!(
        ran.console.contains("around each sleep: CLEAR_BUFFERS"),
        "the console does not say that buffers are cleared"
    );
    Ok(())
}

/// A CPU that has AMX, with its tiles in XCR0: TILERELEASE before each sleep in C6.
fn tiles_released(lab: &Lab<'_>) -> Result<()> {
    let ran = lab
        .bochs("run", "sapphire_rapids")
        .cpus(2)
        .word("for=1")
        .run()?;
    ran.ok()?;
    for cpu in 0..2 {
        let all = &check::cpu(ran.last_reading()?, cpu)?.counters;
        let c6 = check::state(all, "C6")?;
        ensure!(
            all.tiles_released > 0 && all.tiles_released >= c6.usage,
            "CPU {cpu}: tiles released {} times, C6 {c6:?}",
            all.tiles_released
        );
    }
    Ok(())
}

/// SPEC_CTRL is 0 in the deep states of a core with two threads, and what it was outside of them. The MSR is one that Bochs does
/// not know: it is defined for this, with IBRS set.
fn spec_ctrl_cleared(lab: &Lab<'_>) -> Result<()> {
    const SPEC_CTRL: u32 = 0x48;
    const IBRS: u64 = 1;
    let with = |label: &str, value: u64| {
        lab.bochs(label, "corei7_skylake_x")
            .cpus(2)
            .msr(SPEC_CTRL, value)
            .word("for=1")
            .word("loglvl=debug")
            // Two threads of one core, which have SPEC_CTRL.
            .word("cpuid=0x7:edx=0x4000000,0xb:eax=1")
            .run()
    };
    let ran = with("set", IBRS)?;
    ran.ok()?;
    ensure!(
        ran.console.contains("around each sleep: SPEC_CTRL"),
        "the console does not say that SPEC_CTRL is cleared"
    );
    for cpu in 0..2 {
        let all = &check::cpu(ran.last_reading()?, cpu)?.counters;
        let c6 = check::state(all, "C6")?;
        let (cleared, restored) = (all.spec_ctrl_cleared, all.spec_ctrl_restored);
        // A reading may come from the middle of a sleep. Were it not put back, the next sleep would find 0 and clear nothing.
        ensure!(
            cleared > 1 && cleared >= c6.usage && cleared - restored <= 1,
            "CPU {cpu}: cleared {cleared} times, put back {restored} times, C6 {c6:?}"
        );
    }
    // Nothing to clear: nothing is written.
    let ran = with("clear", 0)?;
    ran.ok()?;
    let all = &check::cpu(ran.last_reading()?, 1)?.counters;
    ensure!(
        all.spec_ctrl_cleared == 0,
        "cleared {} times",
        all.spec_ctrl_cleared
    );
    Ok(())
}

/// A panic ends Bochs too, with its status.
fn panics(lab: &Lab<'_>) -> Result<()> {
    let ran = lab
        .bochs("run", "corei7_skylake_x")
        .word("test.crash=panic")
        .run()?;
    ran.ended_with("panic", exit::PANIC)?;
    ensure!(
        ran.console.contains("2 of 2 CPUs stopped"),
        "the console does not say that both CPUs stopped"
    );
    Ok(())
}

/// Bochs 2.7 loses stores to a monitored line: found out at boot, and nobody is left asleep.
fn broken_monitor(lab: &Lab<'_>) -> Result<()> {
    let ran = lab
        .bochs("run", "corei7_skylake_x")
        .release(Release::Broken)
        .cpus(3)
        .word("for=1")
        .run()?;
    ran.ok()?
        .complains("cpu", &["MONITOR", "slept on", "every wake is an IPI"])?;
    let boot = boot(&ran)?;
    ensure!(
        boot.mwait
            .starts_with("with interrupts open works, masked works")
            && boot.store_wakes == Some(false),
        "MWAIT: {}",
        boot.mwait
    );
    // MWAIT is still the way to sleep: it is only that nobody relies on its monitor.
    slept(&ran, 80)?;
    let (stores, ipis) = (posts(&ran, "store")?, posts(&ran, "ipi")?);
    ensure!(
        stores == 0 && ipis == 2,
        "{stores} wakes by store, {ipis} by IPI: expected none and two"
    );
    Ok(())
}
