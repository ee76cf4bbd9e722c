//! Clocks that stop in deep states: what stands in for them, and that no time and no timer is lost.

use std::ops::Range;

use anyhow::{Context, Result, ensure};

use crate::{
    channel::Counters,
    test::{
        case::{Case, Lab},
        cases::acpi,
        check,
        rig::{Ran, Rig},
    },
};

/// Without ARAT.
const NO_ARAT: &str = "cpuid=0x6:eax=0";
/// Without a nonstop TSC, and with one.
const STOPPING_TSC: &str = "cpuid=0x80000007:edx=0";
const NONSTOP_TSC: &str = "cpuid=0x80000007:edx=0x100";

/// Ticks a second of the TSC in Bochs.
const HZ: u64 = 10_000_000;

pub fn cases() -> Vec<Case> {
    vec![
        Case::bochs("clocks/timer-broadcast", timer_broadcast),
        Case::bochs("clocks/tsc-restored", tsc_restored),
        Case::bochs(
            "clocks/tsc-restored-on-four-cpus",
            tsc_restored_on_four_cpus,
        ),
        Case::bochs("clocks/both-stop", both_stop),
        Case::real_time("clocks/broadcast-in-qemu", broadcast_in_qemu),
        Case::real_time("clocks/broadcast-by-messages", broadcast_by_messages),
        Case::icount("clocks/no-hpet", no_hpet),
        Case::icount("clocks/tsc-that-cannot-be-written", not_written),
        Case::icount("clocks/late-msr-writes", late_msr_writes),
        Case::bochs("clocks/late-msr-writes-refused", late_msr_writes_refused),
        Case::bochs("clocks/poll-by-tpause", poll_by_tpause),
    ]
}

/// CPUs with timers every 10 ms each, of which the last sleeps as deep as it can. The boot CPU polls if there is another one:
/// in Bochs, a CPU that arms its monitor wakes all others, so two that sleep would not need their timers.
fn with_timers(lab: &Lab<'_>, cpus: u32, words: &[&str]) -> Result<Ran> {
    let mut rig = lab
        .bochs(&format!("{cpus}-cpus"), "corei7_skylake_x")
        .cpus(cpus)
        .word("for=2")
        .word("governor=deepest-fit")
        .word("loglvl=debug")
        .word("test.timers=10000")
        .limit(240);
    if cpus > 1 {
        rig = rig.word("latency=0:0");
    }
    for word in words {
        rig = rig.word(word);
    }
    let ran = rig.run()?;
    ran.ok()?;
    Ok(ran)
}

/// Every timer came, on every CPU, and none late by more than `micros`.
fn no_timer_lost(ran: &Ran, micros: u64) -> Result<()> {
    let timers = ran.channel().timers().context("no `timers`")?;
    for cpu in &timers.cpus {
        let elapsed = counters(ran, cpu.cpu)?.elapsed;
        let expected = elapsed / timers.period;
        ensure!(
            cpu.came.abs_diff(expected) <= 2 && cpu.skipped == 0,
            "CPU {}: {} timers came in {expected} periods, {} skipped",
            cpu.cpu,
            cpu.came,
            cpu.skipped
        );
        let latest = cpu.latest * 1_000_000 / HZ;
        ensure!(
            latest <= micros,
            "CPU {}: a timer was {latest} us late",
            cpu.cpu
        );
    }
    Ok(())
}

fn counters(ran: &Ran, cpu: u32) -> Result<&Counters> {
    Ok(&check::cpu(ran.last_reading()?, cpu)?.counters)
}

/// The local APIC timer is switched off in C6, as if it stopped: the HPET wakes the boot CPU, and that wakes the others.
fn timer_broadcast(lab: &Lab<'_>) -> Result<()> {
    for cpus in [1, 2] {
        let ran = with_timers(lab, cpus, &[NO_ARAT])?;
        no_timer_lost(&ran, 1000)?;
        broadcast_well(&ran, cpus - 1)?;
        ensure!(ran.console.contains("the HPET stands in"), "not said");
    }
    Ok(())
}

/// A CPU whose sleeps in C6 nothing but the broadcast ended.
fn broadcast_well(ran: &Ran, cpu: u32) -> Result<()> {
    let all = counters(ran, cpu)?;
    let c6 = check::state(all, "C6")?.usage;
    ensure!(
        c6 > 150 && all.timer_handed_over >= c6,
        "CPU {cpu}: C6 {c6} times, its timer handed over {} times",
        all.timer_handed_over
    );
    // The boot CPU has the interrupt itself, and wakes the others.
    ensure!(
        cpu == 0 || all.timer_broadcast_wakes > 150,
        "CPU {cpu} was woken {} times",
        all.timer_broadcast_wakes
    );
    Ok(())
}

/// The TSC is set back after every sleep in C6, as if it had stopped there: the clock goes on as if it had not.
fn tsc_restored(lab: &Lab<'_>) -> Result<()> {
    for cpus in [1, 2] {
        let ran = with_timers(lab, cpus, &[STOPPING_TSC, "test.tsc=stops"])?;
        no_timer_lost(&ran, 1000)?;
        restored_well(&ran, cpus - 1)?;
    }
    Ok(())
}

fn both_stop(lab: &Lab<'_>) -> Result<()> {
    for cpus in [1, 2] {
        let ran = with_timers(lab, cpus, &[STOPPING_TSC, "test.tsc=stops", NO_ARAT])?;
        no_timer_lost(&ran, 1000)?;
        restored_well(&ran, cpus - 1)?;
        broadcast_well(&ran, cpus - 1)?;
    }
    Ok(())
}

/// A CPU whose TSC stopped in C6, and nobody has noticed. Its timers are due by its own clock: had it lost time, too few would
/// have come in the run, which the boot CPU's ends.
fn restored_well(ran: &Ran, cpu: u32) -> Result<()> {
    let all = counters(ran, cpu)?;
    let c6 = check::state(all, "C6")?;
    ensure!(
        c6.usage > 150 && all.tsc_restored * 10 > c6.usage * 9,
        "CPU {cpu}: C6 {} times, its TSC restored {} times",
        c6.usage,
        all.tsc_restored
    );
    ensure!(
        c6.residency * 10 > all.elapsed * 8,
        "CPU {cpu}: {} of {} ticks in C6",
        c6.residency,
        all.elapsed
    );
    let open = all.states.iter().find(|state| state.method.contains("IRQ"));
    ensure!(open.is_none(), "handlers run with a stopped TSC: {open:?}");
    clocks_agree(ran, "hpet", 2 * HZ..3 * HZ)
}

/// Every CPU's TSC has gone with the platform timer through the whole run, which took `expected` ticks: to 20 us, however often
/// it was restored.
fn clocks_agree(ran: &Ran, source: &str, expected: Range<u64>) -> Result<()> {
    let clocks = ran.channel().clocks().context("no `clocks`")?;
    let cpus = ran.last_reading()?.cpus.len();
    ensure!(
        clocks.source == source && clocks.cpus.len() == cpus,
        "{cpus} CPUs: {clocks:?}"
    );
    for cpu in &clocks.cpus {
        ensure!(
            cpu.tsc.abs_diff(cpu.platform) * 1_000_000 <= 20 * HZ,
            "{cpu:?}"
        );
        // The run, and the console's lines before and after, by a clock that does not stop.
        ensure!(
            expected.contains(&cpu.platform),
            "the run took CPU {} {} ticks by the HPET",
            cpu.cpu,
            cpu.platform
        );
    }
    Ok(())
}

/// Three CPUs that sleep keep waking each other, so that each TSC is restored thousands of times: the error of one restoring does
/// not add to the next. By the HPET, and by the PM timer where the HPET may stop: in PC10, of which leaf 5 tells.
fn tsc_restored_on_four_cpus(lab: &Lab<'_>) -> Result<()> {
    for (source, words) in [
        ("hpet", &[STOPPING_TSC, "test.tsc=stops"][..]),
        (
            "pm-timer",
            &[STOPPING_TSC, "test.tsc=stops", "cpuid=0x5:edx=0x10002020"],
        ),
    ] {
        let ran = with_timers(lab, 4, words)?;
        no_timer_lost(&ran, 1000)?;
        for cpu in 1..4 {
            let all = counters(&ran, cpu)?;
            let c6 = check::state(all, "C6")?.usage;
            ensure!(
                c6 > 1000 && all.tsc_restored * 10 > c6 * 9,
                "CPU {cpu}: C6 {c6} times, its TSC restored {} times",
                all.tsc_restored
            );
        }
        clocks_agree(&ran, source, 2 * HZ..4 * HZ)?;
    }
    Ok(())
}

/// ACPI's C2 in QEMU, where it does not really sleep: the same path, and guests that pass.
fn broadcast_in_qemu(lab: &Lab<'_>) -> Result<()> {
    let ran = broadcast_rig(lab, "run")?.run()?;
    stood_in(&ran, "legacy routing")
}

/// The same with messages, which need no IOAPIC; and an HPET that has none is not used where nothing else is wanted.
fn broadcast_by_messages(lab: &Lab<'_>) -> Result<()> {
    let rig = broadcast_rig(lab, "messages")?.hpet_messages();
    stood_in(&rig.word("hpet=message").run()?, "messages")?;

    let ran = broadcast_rig(lab, "none")?.word("hpet=message").run()?;
    ran.complains("cpu", &["arat", "its comparator has no messages"])?;
    dropped(&ran, "timer")
}

fn broadcast_rig<'l>(lab: &'l Lab<'_>, name: &str) -> Result<Rig<'l>> {
    Ok(lab
        .rig(name)
        .acpi_table(acpi::compile(lab, "intel")?)
        .guest("idle-timer,pin=1")
        .word(NONSTOP_TSC)
        .word("governor=deepest-fit")
        .word("loglvl=debug")
        .word(NO_ARAT)
        // A read of a port that is not there ends at once, so a CPU is seldom found asleep: by many timers it is.
        .word("test.timers=1000")
        .limit(120))
}

/// The HPET, interrupting so, has stood in for every CPU.
fn stood_in(ran: &Ran, how: &str) -> Result<()> {
    ran.ok()?.passed("idle-timer")?;
    let said = format!("the HPET stands in for timers that stop in deep states, by {how}");
    ensure!(
        ran.console.contains(&said),
        "the console does not say `{said}`"
    );
    for cpu in 0..4 {
        let all = counters(ran, cpu)?;
        let c2 = check::state(all, "C2")?;
        ensure!(
            c2.usage > 0 && all.timer_handed_over > 0,
            "CPU {cpu}: C2 {} times, its timer handed over {} times",
            c2.usage,
            all.timer_handed_over
        );
        ensure!(
            cpu == 0 || all.timer_broadcast_wakes > 0,
            "CPU {cpu} was never woken by it"
        );
        ensure!(c2.irq == 0, "no handler runs inside a port's read: {c2:?}");
    }
    Ok(())
}

/// That CPU 0 has no C2, for this reason.
fn dropped(ran: &Ran, why: &str) -> Result<()> {
    ensure!(
        check::state(counters(ran, 0)?, "C2").is_err(),
        "C2 is there"
    );
    let said = ran
        .console
        .lines()
        .any(|line| line.contains("cpu0: C2 by IO") && line.contains(why));
    ensure!(said, "no line drops C2 because `{why}`");
    Ok(())
}

/// With nothing to stand in, the state is not used, and the reason is named.
fn no_hpet(lab: &Lab<'_>) -> Result<()> {
    let ran = lab
        .rig("run")
        .no_hpet()
        .acpi_table(acpi::compile(lab, "intel")?)
        .guest("idle-timer,pin=1")
        .word(NONSTOP_TSC)
        .word(NO_ARAT)
        .word("loglvl=debug")
        .limit(120)
        .run()?;
    ran.ok()?
        .passed("idle-timer")?
        .complains("cpu", &["ARAT", "nothing stands in", "no HPET"])?;
    dropped(&ran, "the local APIC timer stops in it")
}

/// QEMU ignores writes of the TSC: one that stops could not be restored.
fn not_written(lab: &Lab<'_>) -> Result<()> {
    let ran = lab
        .rig("run")
        .acpi_table(acpi::compile(lab, "intel")?)
        .guest("idle-timer,pin=1")
        .word(STOPPING_TSC)
        .word("loglvl=debug")
        .limit(120)
        .run()?;
    ran.ok()?.passed("idle-timer")?;
    dropped(&ran, "the TSC stops in it, and is not restored")?;
    ensure!(ran.console.contains("cannot be restored"), "not said");
    Ok(())
}

/// A write that waits for the machine's 1000th day (AMD 1474) is made then, on every CPU, and not before.
fn late_msr_writes(lab: &Lab<'_>) -> Result<()> {
    let rig = |label| {
        lab.rig(label)
            .cpu("EPYC,check=off")
            .guest("idle-timer")
            // No hypervisor above: it would have to see to it.
            .word("cpuid=0x1:ecx=0")
            .word("loglvl=debug")
    };
    let performed = |ran: &Ran| {
        (0..4)
            .filter(|cpu| {
                ran.console.lines().any(|line| {
                    line.contains(&format!("cpu{cpu}: MSR 0xc0010296:")) && line.contains("already")
                })
            })
            .count()
    };
    let young = rig("young").run()?;
    young.ok()?;
    ensure!(
        performed(&young) == 0 && young.console.contains("wait until 1000 days"),
        "it was done at once, or nothing waits"
    );
    let old = rig("old").word("test.uptime=1000").run()?;
    old.ok()?;
    let done = performed(&old);
    ensure!(done == 4, "{done} of 4 CPUs have done it");
    Ok(())
}

/// Where the CPU refuses it, that is named.
fn late_msr_writes_refused(lab: &Lab<'_>) -> Result<()> {
    let ran = lab
        .bochs("run", "ryzen")
        .word("for=1")
        .word("test.uptime=5000")
        .run()?;
    ran.ok()?;
    for cpu in ["cpu0", "cpu1"] {
        ran.complains("cpu", &[cpu, "MSR 0xc0010296", "#GP"])?;
    }
    Ok(())
}

/// With WAITPKG, a poll waits by TPAUSE: and still sees its timers.
fn poll_by_tpause(lab: &Lab<'_>) -> Result<()> {
    for (model, has) in [("arrow_lake", true), ("corei7_skylake_x", false)] {
        let ran = lab
            .bochs(model, model)
            .cpus(2)
            .word("for=1")
            .word("idle=poll")
            .word("test.timers=10000")
            .run()?;
        ran.ok()?;
        ensure!(
            ran.console.contains("POLL waits by TPAUSE") == has,
            "{model}: TPAUSE expected: {has}"
        );
        let timers = ran.channel().timers().context("no `timers`")?;
        for cpu in &timers.cpus {
            ensure!(
                cpu.came >= 90 && cpu.skipped == 0,
                "{model}: {cpu:?} of about 100"
            );
            let poll = check::state(counters(&ran, cpu.cpu)?, "POLL")?;
            ensure!(
                poll.irq > cpu.came && poll.irq * 20 < poll.residency,
                "{model}: handlers ran inside: {poll:?}"
            );
        }
    }
    Ok(())
}
