//! Bochs: where MONITOR and MWAIT are real, and where they are broken in a way that must be found out.

use anyhow::{Context, Result, bail, ensure};

use crate::{
    bochs::Release,
    channel::{Boot, Counters},
    qemu::exit,
    test::{case::Case, case::Lab, check, rig::Ran},
};

/// The rate of the TSC in Bochs, whatever CPUID says.
const HZ: u64 = 10_000_000;

/// A model, and the states that its table gives it: name and method.
struct Model {
    name: &'static str,
    states: &'static [(&'static str, &'static str)],
}

/// The models with a table of their own, and three without one.
const INTEL: [Model; 6] = [
    Model {
        name: "corei7_skylake_x",
        states: &[
            ("C1", "MWAIT+IRQ 0x00"),
            ("C1E", "MWAIT 0x01"),
            ("C6", "MWAIT 0x20"),
        ],
    },
    Model {
        name: "sapphire_rapids",
        states: &[
            ("C1", "MWAIT 0x00"),
            ("C1E", "MWAIT 0x01"),
            ("C6", "MWAIT 0x20"),
        ],
    },
    Model {
        name: "corei7_haswell_4770",
        states: &[
            ("C1", "MWAIT 0x00"),
            ("C1E", "MWAIT 0x01"),
            ("C3", "MWAIT 0x10"),
            ("C6", "MWAIT 0x20"),
            ("C7s", "MWAIT 0x32"),
        ],
    },
    Model {
        name: "corei7_icelake_u",
        states: C1_ONLY,
    },
    Model {
        name: "tigerlake",
        states: C1_ONLY,
    },
    Model {
        name: "arrow_lake",
        states: C1_ONLY,
    },
];

const C1_ONLY: &[(&str, &str)] = &[("C1", "MWAIT 0x00")];

pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = INTEL
        .iter()
        .map(|model| {
            let name = format!("bochs/{}", model.name.replace('_', "-"));
            Case::bochs(name, move |lab| intel(lab, model))
        })
        .collect();
    cases.extend([
        Case::bochs("bochs/ryzen", ryzen),
        Case::bochs("bochs/ryzen-guests", ryzen_guests),
        Case::bochs("bochs/wakes-by-store", wakes_by_store),
        Case::bochs("bochs/early-interrupts", early_interrupts),
        Case::bochs("bochs/stopping-tsc", stopping_tsc),
        Case::bochs("bochs/one-cpu", one_cpu),
        Case::bochs("bochs/parked-cpus", parked_cpus),
        Case::bochs("bochs/around-the-sleep", around_the_sleep),
        Case::bochs("bochs/panic", panics),
        Case::bochs("bochs/broken-monitor", broken_monitor),
    ]);
    cases
}

fn boot(ran: &Ran) -> Result<&Boot> {
    ran.channel().boot().context("no `boot`")
}

/// The states that a CPU sleeps in, but POLL.
fn states(counters: &Counters) -> Vec<(&str, &str)> {
    counters
        .states
        .iter()
        .map(|state| (state.name.as_str(), state.method.as_str()))
        .filter(|(name, _)| *name != "POLL")
        .collect()
}

/// Every CPU was asleep for at least this share of its time, in percent.
fn slept(ran: &Ran, percent: u64) -> Result<()> {
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
fn posts(ran: &Ran, kind: &str) -> Result<u64> {
    let cpus = &ran.last_reading()?.cpus;
    Ok(cpus
        .iter()
        .filter_map(|cpu| cpu.counters.posts.get(kind))
        .sum())
}

/// The TSC was measured, and not believed.
fn clock_is_true(boot: &Boot) -> Result<()> {
    ensure!(
        boot.tsc_hz.abs_diff(HZ) * 1000 < HZ
            && matches!(boot.tsc_source.as_str(), "hpet" | "pm-timer"),
        "TSC {} Hz by {}",
        boot.tsc_hz,
        boot.tsc_source
    );
    Ok(())
}

/// Two CPUs: everything that an Intel CPU of today has is found, tried and used.
fn intel(lab: &Lab<'_>, model: &Model) -> Result<()> {
    let ran = lab.bochs("run", model.name).word("for=1").run()?;
    ran.ok()?;
    let boot = boot(&ran)?;
    clock_is_true(boot)?;
    ensure!(boot.cpus == 2 && boot.cpus_failed.is_empty(), "{boot:?}");
    ensure!(
        boot.x2apic && boot.timer == "tsc-deadline" && boot.nonstop_tsc && boot.arat,
        "{boot:?}"
    );
    ensure!(
        boot.mwait
            .starts_with("with interrupts open works, masked works")
            && boot.store_wakes == Some(true),
        "MWAIT: {}",
        boot.mwait
    );
    for cpu in &ran.last_reading()?.cpus {
        let found = states(&cpu.counters);
        ensure!(found == model.states, "CPU {}: {found:?}", cpu.cpu);
    }
    // Bochs wakes every sleeper whenever another CPU arms its monitor, so two idle CPUs keep waking each other.
    slept(&ran, 25)?;
    let ipis = posts(&ran, "ipi")?;
    ensure!(ipis == 0, "{ipis} wakes by IPI");
    Ok(())
}

/// AMD: no MWAIT to be had, no x2APIC, no TSC-deadline.
fn ryzen(lab: &Lab<'_>) -> Result<()> {
    let ran = lab.bochs("run", "ryzen").word("for=1").run()?;
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

/// A CPU that the end finds asleep is woken by the store alone. Idle CPUs keep waking each other in Bochs, so a CPU may
/// just be awake: machines of different timing are tried until one was found asleep.
fn wakes_by_store(lab: &Lab<'_>) -> Result<()> {
    let mut will_look = 0;
    for (level, cpus) in [
        ("info", 2),
        ("info", 3),
        ("warn", 2),
        ("warn", 3),
        ("debug", 3),
    ] {
        let ran = lab
            .bochs(&format!("{level}-{cpus}"), "corei7_skylake_x")
            .cpus(cpus)
            .word("for=1")
            .word(&format!("loglvl={level}"))
            .run()?;
        ran.ok()?;
        let (stores, ipis) = (posts(&ran, "store")?, posts(&ran, "ipi")?);
        ensure!(ipis == 0, "{ipis} wakes by IPI");
        if stores > 0 {
            return Ok(());
        }
        will_look += posts(&ran, "will_look")?;
    }
    bail!("the end was posted {will_look} times, and never to a CPU that slept")
}

/// C1 is entered with interrupts open, and the handlers inside are not counted as C1.
fn early_interrupts(lab: &Lab<'_>) -> Result<()> {
    let ran = lab
        .bochs("run", "corei7_skylake_x")
        .cpus(1)
        .word("for=1")
        .word("max_cstate=1,0")
        .run()?;
    ran.ok()?;
    slept(&ran, 95)?;
    let counters = &check::cpu(ran.last_reading()?, 0)?.counters;
    let c1 = check::state(counters, "C1")?;
    ensure!(
        c1.method == "MWAIT+IRQ 0x00" && c1.usage > 0 && c1.residency > 0,
        "{c1:?}"
    );
    ensure!(
        c1.irq > 0,
        "the timer that ended the run came inside C1, yet it has no interrupt time: {c1:?}"
    );
    Ok(())
}

/// Where the TSC stops in C-states, interrupts stay masked in them.
fn stopping_tsc(lab: &Lab<'_>) -> Result<()> {
    let ran = lab
        .bochs("run", "corei7_skylake_x")
        .word("for=1")
        .word("cpuid=0x80000007:edx=0")
        .run()?;
    ran.ok()?;
    for cpu in &ran.last_reading()?.cpus {
        let open = states(&cpu.counters)
            .into_iter()
            .find(|(_, method)| method.contains("IRQ"));
        ensure!(open.is_none(), "CPU {}: {open:?}", cpu.cpu);
    }
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
/// sleep are still seen. TILERELEASE is not tried where XCR0 enables no tiles, nor is SPEC_CTRL, which no bit here asks for.
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
