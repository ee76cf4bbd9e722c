//! Guests on Bochs' VMX: the same kernels as on QEMU's SVM, and what is to be seen only where MWAIT and a hypervisor meet.

use anyhow::{Context, Result, bail, ensure};

use super::GUESTS;
use crate::{
    build::GoodEnd,
    channel::Counters,
    qemu::exit,
    test::{case::Case, case::Lab, check, rig::Ran},
};

const SKYLAKE: &str = "corei7_skylake_x";

pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = GUESTS
        .iter()
        .map(|&name| {
            Case::bochs(format!("bochs/guests-{name}"), move |lab| {
                alone(lab, name, "")
            })
        })
        .collect();
    cases.extend(GUESTS.iter().map(|&name| {
        Case::bochs(format!("bochs/guests-software-apic-{name}"), move |lab| {
            alone(lab, name, "vmx.apicv=off")
        })
    }));
    cases.extend([
        Case::bochs("bochs/guests-one-cpu", one_cpu),
        Case::bochs("bochs/guests-on-few-cpus", on_few_cpus),
        Case::bochs("bochs/guests-spin", spin),
        Case::bochs("bochs/guests-virtual-apic", virtual_apic),
        Case::bochs("bochs/guests-posted-interrupts", posted_interrupts),
        Case::bochs("bochs/guests-seen-together", seen_together),
        Case::bochs("bochs/guests-older-vmx", older_vmx),
        Case::bochs("bochs/no-ept", |lab| {
            refused(lab, "core2_penryn_t9600", "without EPT")
        }),
        Case::bochs("bochs/no-unrestricted-guest", |lab| {
            refused(lab, "corei5_lynnfield_750", "without unrestricted guest")
        }),
    ]);
    cases
}

/// Short where a kernel can be: every tick of Bochs is emulated.
fn shortly(name: &'static str) -> &'static str {
    match name {
        "busy" => "busy,cmdline=\"for-ms=300\"",
        "exits" => "exits,cmdline=\"count=50\"",
        "idle-timer" => "idle-timer,cmdline=\"periods=30\"",
        "ipi-pair" => "ipi-pair,cmdline=\"rounds=300\"",
        // Here no emulator doubles an interrupt.
        "storm" => "storm,cmdline=\"count=2000 rounds=20 doubles=fail\"",
        name => name,
    }
}

fn by_vmx(ran: &Ran) -> Result<()> {
    let boot = ran.channel().boot().context("no `boot`")?;
    ensure!(boot.virt.as_deref() == Some("vmx"), "{boot:?}");
    Ok(())
}

/// A guest of this kernel; `words` are for Lull's command line.
fn alone(lab: &Lab<'_>, name: &'static str, words: &str) -> Result<()> {
    let mut rig = lab.bochs("run", SKYLAKE).guest(shortly(name))?.word(words);
    if lab.context.built.guest(name)?.end == GoodEnd::Never {
        rig = rig.word("for=1");
    }
    let ran = rig.run()?;
    ran.ok()?.passed(name)?;
    by_vmx(&ran)
}

/// Where Bochs has one CPU, it runs other code than where it has several.
fn one_cpu(lab: &Lab<'_>) -> Result<()> {
    let ran = lab
        .bochs("run", SKYLAKE)
        .cpus(1)
        .guest("fault")?
        .guest(shortly("idle-timer"))?
        .run()?;
    ran.ok()?.passed("fault")?.passed("idle-timer")?;
    Ok(())
}

/// vCPUs that come and go on all CPUs, so that each VMCS moves.
fn on_few_cpus(lab: &Lab<'_>) -> Result<()> {
    let ran = lab
        .bochs("run", SKYLAKE)
        .guest("smp,vcpus=6")?
        .guest(shortly("ipi-pair"))?
        .guest(shortly("idle-timer"))?
        .run()?;
    ran.ok()?
        .passed("smp")?
        .passed("ipi-pair")?
        .passed("idle-timer")?;
    Ok(())
}

/// Where the processor virtualizes the local APIC, a guest's writes of EOI and TPR leave it no more; switched off, each of them does.
fn virtual_apic(lab: &Lab<'_>) -> Result<()> {
    for model in [SKYLAKE, "sapphire_rapids"] {
        for (label, word) in [("on", "vmx.apicv=on"), ("off", "vmx.apicv=off")] {
            let ran = lab
                .bochs(&format!("{model}-{label}"), model)
                .guest("smp")?
                .guest(shortly("ipi-pair"))?
                .word(word)
                .run()?;
            ran.ok()?.passed("smp")?.passed("ipi-pair")?;
            by_vmx(&ran)?;
            let exits = |guest: &str, kind: &str| ran.exits(guest, kind);
            let (eoi, tpr) = (exits("ipi-pair", "eoi")?, exits("smp", "tpr")?);
            let why = ran.channel().boot().and_then(|boot| boot.virt_why.clone());
            let named = why.is_some_and(|why| why.contains("virtual x2APIC"));
            ensure!(
                named == (label == "on"),
                "{model}, {word}: the boot record says otherwise"
            );
            if label == "on" {
                let eoi = eoi + exits("smp", "eoi")?;
                ensure!(
                    (eoi, tpr) == (0, 0),
                    "{model}: {eoi} exits for EOI, {tpr} for TPR"
                );
            } else {
                ensure!(
                    // Two interrupts a round.
                    eoi >= 2 * 300 && tpr > 0,
                    "{model}, {word}: {eoi} exits for EOI, {tpr} for TPR"
                );
            }
        }
    }
    Ok(())
}

/// Interrupts that a vCPU sends to one that runs do not end its guest, where they can be posted. None is lost: the guests count.
fn posted_interrupts(lab: &Lab<'_>) -> Result<()> {
    /// So many are sent to a vCPU that is busy; some come while the hypervisor has it.
    const SENT: u64 = 20;
    let run = |label: &str, word: &str| {
        let ran = lab
            .bochs(label, SKYLAKE)
            .guest(shortly("exits"))?
            .word(word)
            .run()?;
        ran.ok()?.passed("exits")?;
        by_vmx(&ran)?;
        let why = ran.channel().boot().and_then(|boot| boot.virt_why.clone());
        let named = why.is_some_and(|why| why.contains("posted interrupts"));
        let posted = ran.end_of("exits")?.posted;
        Ok::<_, anyhow::Error>((named, posted, ran.exits("exits", "event")?))
    };
    // Bochs delivers virtual interrupts with interrupts off, so that it has to be asked for.
    let mut left = 0;
    for (label, word) in [("auto", "vmx.posted=auto"), ("off", "vmx.posted=off")] {
        let (named, posted, events) = run(label, word)?;
        ensure!(
            !named && posted == 0,
            "{word}: posted {posted}, named {named}"
        );
        left = events;
    }
    let (named, posted, events) = run("on", "vmx.posted=on")?;
    ensure!(
        named && posted >= SENT / 2 && events + posted / 2 <= left,
        "posted {posted}, {events} exits for events, {left} without"
    );
    // More vCPUs than CPUs: many a notification finds another guest there.
    let ran = lab
        .bochs("crowd", SKYLAKE)
        .guest(shortly("exits"))?
        .guest(shortly("storm"))?
        .word("vmx.posted=on")
        .run()?;
    ran.ok()?.passed("exits")?.passed("storm")?;
    ensure!(
        ran.end_of("storm")?.posted > 0,
        "none was posted in a crowd"
    );
    Ok(())
}

/// A guest that spins with interrupts off has its slice, and no more: Bochs takes no physical interrupt for it, the preemption
/// timer ends it all the same.
fn spin(lab: &Lab<'_>) -> Result<()> {
    let ran = lab
        .bochs("run", SKYLAKE)
        .guest("busy,pin=0,cmdline=\"for-ms=60000\"")?
        .guest("idle-timer,pin=0,cmdline=\"periods=30\"")?
        .word("for=2")
        .run()?;
    ran.ok()?.passed("idle-timer")?;
    let (busy, other) = (ran.run_ticks("busy")?, ran.run_ticks("idle-timer")?);
    ensure!(
        busy > 0 && other > 0,
        "busy ran for {busy} ticks, idle-timer for {other}"
    );
    Ok(())
}

/// Early interrupts in C1, wakes without IPIs, and vCPUs that wake each other, all in one machine.
///
/// An IPI is right where a CPU runs a guest, so it may be that one was needed: machines of different timing are tried.
fn seen_together(lab: &Lab<'_>) -> Result<()> {
    let mut ipis_each = Vec::new();
    for (level, cpus) in [("info", 4), ("info", 5), ("warn", 4)] {
        let ran = lab
            .bochs(&format!("{level}-{cpus}"), SKYLAKE)
            .cpus(cpus)
            .guest("ipi-pair,cmdline=\"rounds=200\"")?
            .guest("idle-timer,cmdline=\"periods=20 duty=5\"")?
            .word("max_cstate=1,0")
            .word(&format!("loglvl={level}"))
            .run()?;
        ran.ok()?.passed("ipi-pair")?.passed("idle-timer")?;
        by_vmx(&ran)?;
        let (stores, ipis, irq) = together(&ran)?;
        ensure!(
            irq > 0,
            "the timers that woke CPUs came inside C1, yet no interrupt time is told apart"
        );
        if ipis == 0 {
            ensure!(stores > 0, "nobody was woken by a store");
            ensure!(
                level != "info" || ran.console.contains("in table skx"),
                "the console does not name the table"
            );
            return Ok(());
        }
        ipis_each.push(ipis);
    }
    bail!("physical IPIs in every run: {ipis_each:?}")
}

/// Stores that woke, IPIs, and the time of handlers in C1, of a machine that sleeps in C1 with interrupts open only.
fn together(ran: &Ran) -> Result<(u64, u64, u64)> {
    let (mut stores, mut ipis, mut irq) = (0, 0, 0);
    for cpu in &ran.last_reading()?.cpus {
        let counters = &cpu.counters;
        let c1 = check::state(counters, "C1")?;
        ensure!(
            c1.method == "MWAIT+IRQ 0x00" && c1.usage > 0 && c1.residency > 0,
            "CPU {}: {c1:?}",
            cpu.cpu
        );
        let posts = |kind: &str| counters.posts.get(kind).copied().unwrap_or(0);
        stores += posts("store");
        ipis += posts("ipi");
        irq += c1.irq;
        let others = asleep_elsewhere(counters);
        ensure!(others == 0, "CPU {} slept elsewhere too", cpu.cpu);
    }
    Ok((stores, ipis, irq))
}

fn asleep_elsewhere(counters: &Counters) -> u64 {
    counters
        .states
        .iter()
        .filter(|state| !matches!(state.name.as_str(), "C1" | "POLL"))
        .map(|state| state.usage)
        .sum()
}

/// Processors before Haswell: no PAUSE-loop exiting, no INVPCID, no 1 GiB pages in the second stage.
fn older_vmx(lab: &Lab<'_>) -> Result<()> {
    let ran = lab
        .bochs("run", "corei7_sandy_bridge_2600k")
        .guest(shortly("idle-timer"))?
        .guest("fault")?
        .run()?;
    ran.ok()?.passed("idle-timer")?.passed("fault")?;
    let boot = ran.channel().boot().context("no `boot`")?;
    let why = boot.virt_why.as_deref().unwrap_or_default();
    ensure!(
        why.contains("pages up to 2 MiB") && why.contains("without enable INVPCID, PAUSE-loop"),
        "{why}"
    );
    Ok(())
}

/// The idle part runs, and guests are refused with the reason.
fn refused(lab: &Lab<'_>, model: &str, why: &str) -> Result<()> {
    let ran = lab.bochs("guest", model).guest("idle-timer")?.run()?;
    ran.ended_with("bad-input", exit::BAD_INPUT)?
        .complains("cpu", &["virtualization", why, "guests cannot run"])?;
    let ran = lab.bochs("idle", model).word("for=1").run()?;
    ran.ok()?;
    let boot = ran.channel().boot().context("no `boot`")?;
    ensure!(boot.virt.is_none(), "{boot:?}");
    Ok(())
}
