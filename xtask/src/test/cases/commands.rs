//! Commands of the debug console: what each changes, and what is said to one that cannot be carried out.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::{
    channel::{CpuCounters, Cstates},
    test::{
        case::{Case, Lab},
        cases::acpi,
        check,
        rig::Running,
    },
};

pub fn cases() -> Vec<Case> {
    vec![
        Case::real_time("commands/answers", answers),
        Case::real_time("commands/mistakes", mistakes),
        Case::real_time("commands/line", line),
        Case::bochs("commands/states-on-and-off", states_on_and_off),
        Case::bochs("commands/governor", governor),
        Case::bochs("commands/latency", latency_of_cpus),
        Case::real_time("latency/guest", guest_limits_its_cpu),
        Case::real_time("latency/guest-moves", guest_moves),
        Case::bochs("latency/option", latency_option),
    ]
}

fn guest(lab: &Lab<'_>) -> Result<Running> {
    let mut running = lab
        .rig("run")
        .guest("idle-timer,pin=1,cmdline=\"duty=30 periods=100000\"")
        .word("keep")
        .start()?;
    running.up(1)?;
    Ok(running)
}

/// Four idle CPUs in Bochs, with C1, C1E and C6 that sleep.
fn idle(lab: &Lab<'_>) -> Result<Running> {
    let mut running = lab
        .bochs("run", "corei7_skylake_x")
        .cpus(3)
        .word("keep")
        .start()?;
    running.up(0)?;
    Ok(running)
}

fn end(mut running: Running) -> Result<()> {
    running.session.press("Q")?;
    running.finish()?.adds_up()?;
    Ok(())
}

/// Each command is answered on the console and on the machine channel.
fn answers(lab: &Lab<'_>) -> Result<()> {
    let mut running = guest(lab)?;
    for (line, part) in [
        ("help", "governor NAME [cpu=CPUS]"),
        ("help latency", "guest=NAME|dN"),
        ("show", "cpu3: governor lull; latency limit none"),
        ("show cpu=2", "cpu2: governor lull"),
        ("governor teo cpu=1", "teo chooses on cpu 1"),
        ("show cpu=1", "cpu1: governor teo"),
        (
            "latency 50 cpu=0-1",
            "exit latency at most 50 us on cpu 0-1",
        ),
        ("show cpu=1", "latency limit 50 us, own 50 us"),
        ("latency none", "no limit on exit latency on cpu 0-3"),
        ("latency 20 guest=idle-timer", "that d1 last ran on"),
        (
            "show cpu=1",
            "latency limit 20 us, own none, of vCPUs 20 us",
        ),
        ("latency none guest=d1 vcpu=0", "that d1v0 last ran on"),
        ("weight 512 guest=idle-timer", "weight 512 for d1"),
        ("cap 50 guest=d1", "at most 50 % of a CPU for d1"),
        ("cap none guest=d1", "no cap for d1"),
        ("pin 1-2 guest=d1 vcpu=0", "d1v0 may run on cpu 1-2"),
        ("soft 2 guest=d1", "d1 prefers cpu 2"),
        ("halt-poll 100 guest=d1", "looks of up to 100 us before d1"),
        ("halt-poll 0 guest=d1", "d1 blocks without a look"),
        ("cstate off POLL cpu=2", "POLL is off on cpu 2"),
        ("show cpu=2", "POLL off C1 on"),
        ("cstate on 0 cpu=2", "POLL is on on cpu 2"),
        ("cstate max 0", "nothing deeper than class 0 on cpu 0-3"),
        ("cstate max unlimited", "no limit on depth on cpu 0-3"),
    ] {
        let answer = running.does(line)?;
        ensure!(
            answer.answer.iter().any(|said| said.contains(part)),
            "`{line}`: no `{part}` in {answer:?}"
        );
        ensure!(
            running.console().contains(part),
            "`{line}`: no `{part}` on the console"
        );
    }
    end(running)
}

/// What cannot be carried out is refused by name, and changes nothing.
fn mistakes(lab: &Lab<'_>) -> Result<()> {
    let mut running = guest(lab)?;
    let before = running.does("show")?.answer;
    for (line, why, expected) in [
        ("governer teo", "no such command", "governor"),
        ("governor best", "no such governor", "lull"),
        ("governor teo cpu=9", "9 not online", "CPUs of 0-3"),
        ("cstate off C6", "no such state", "one of POLL, C1"),
        ("cstate off 7", "no such state", "one of POLL, C1"),
        ("latency -1", "not a whole number", "microseconds"),
        ("latency 1 guest=nobody", "no such guest", "d1 idle-timer"),
        ("weight 0 guest=d1", "too small", "1 to 65535"),
        ("weight 5 guest=nobody", "no such guest", "d1 idle-timer"),
        ("pin 9 guest=d1", "no CPU of 9 is online", "scheduler"),
        ("halt-poll 20000 guest=d1", "too large", "0 to 10000"),
        ("latency 1 guest=d1 vcpu=4", "no such vCPU", "one below 1"),
    ] {
        let answer = running.command(line)?;
        ensure!(
            !answer.ok && answer.why.contains(why) && answer.expected.contains(expected),
            "`{line}`: {answer:?}"
        );
    }
    let after = running.does("show")?.answer;
    ensure!(before == after, "{before:?}, then {after:?}");
    running.does("cstate off POLL cpu=2")?;
    let last = running.command("cstate off C1 cpu=2")?;
    ensure!(!last.ok && last.why.contains("no sleep left"), "{last:?}");
    running.does("cstate on POLL cpu=2")?;
    // A CPU that only polls is not idle.
    let last = running.command("cstate off C1 cpu=2")?;
    ensure!(!last.ok && last.why.contains("no sleep left"), "{last:?}");
    end(running)
}

/// A line can be corrected and given up; a key in it is no key; noise is no command.
fn line(lab: &Lab<'_>) -> Result<()> {
    let mut running = guest(lab)?;
    running.session.press(":shoQ\x7fw cpu=1\r")?;
    let answered = running
        .session
        .wait_for(Duration::from_secs(10), |channel| {
            channel.commands().count() == 1
        })?;
    ensure!(answered, "a line with a correction was not answered");
    running.session.press(":governor teo\x1b")?;
    running.session.press(&format!(":{}\r", "x".repeat(300)))?;
    let answer = running
        .session
        .wait_for(Duration::from_secs(10), |channel| {
            let mut commands = channel.commands();
            let first = commands
                .next()
                .is_some_and(|c| c.line == "show cpu=1" && c.ok);
            let long = commands
                .next()
                .is_some_and(|c| !c.ok && c.line.len() == 200);
            first && long
        })?;
    ensure!(
        answer,
        "the long line is not cut, or the abandoned one was run"
    );
    let teo = running
        .does("show")?
        .answer
        .iter()
        .any(|line| line.contains("teo"));
    ensure!(!teo, "an abandoned command was carried out");
    end(running)
}

/// What a CPU has done in a state since the reading before.
fn change(cpu: &CpuCounters, name: &str) -> Result<u64> {
    let delta = cpu.delta.as_ref().context("no change")?;
    Ok(check::state(delta, name)?.usage)
}

/// A reading that begins with a reading: what is in its change happened in between. Machine time is ample.
fn second_reading(running: &mut Running) -> Result<Cstates> {
    running.reading()?;
    running
        .session
        .wait_for(Duration::from_millis(1500), |_| false)?;
    running.reading()
}

/// A state that is off is not entered again, on that CPU; on again, it is.
fn states_on_and_off(lab: &Lab<'_>) -> Result<()> {
    let mut running = idle(lab)?;
    let used = second_reading(&mut running)?;
    ensure!(
        change(check::cpu(&used, 1)?, "C6")? > 0 && change(check::cpu(&used, 2)?, "C6")? > 0,
        "C6 is not used to begin with"
    );
    running.does("cstate off C6 cpu=1")?;
    let off = second_reading(&mut running)?;
    let (one, two) = (check::cpu(&off, 1)?, check::cpu(&off, 2)?);
    ensure!(
        change(one, "C6")? == 0 && check::state(&one.counters, "C6")?.off,
        "C6 is off, and was entered: {one:?}"
    );
    ensure!(change(two, "C6")? > 0, "C6 is off on another CPU: {two:?}");
    running.does("cstate on C6 cpu=1")?;
    running.does("cstate max 1,0 cpu=2")?;
    let on = second_reading(&mut running)?;
    let (one, two) = (check::cpu(&on, 1)?, check::cpu(&on, 2)?);
    ensure!(change(one, "C6")? > 0, "C6 is on, and not entered: {one:?}");
    ensure!(
        change(two, "C6")? == 0 && change(two, "C1E")? == 0 && change(two, "C1")? > 0,
        "nothing deeper than C1 was allowed: {two:?}"
    );
    // Without HLT in its table, the shallowest MWAIT is what it keeps, also where POLL is off.
    running.does("cstate off POLL cpu=2")?;
    let said = running.does("cstate max 0 cpu=2")?.answer;
    ensure!(
        said.iter().any(|line| line.contains("C1 stays")),
        "{said:?}"
    );
    let none = second_reading(&mut running)?;
    let two = check::cpu(&none, 2)?;
    ensure!(
        change(two, "C1")? > 0 && change(two, "POLL")? == 0 && change(two, "C6")? == 0,
        "no sleep is left: {two:?}"
    );
    end(running)
}

/// Another governor chooses otherwise: haltpoll knows nothing deeper than the first state.
fn governor(lab: &Lab<'_>) -> Result<()> {
    let mut running = idle(lab)?;
    running.does("governor haltpoll cpu=2")?;
    let reading = second_reading(&mut running)?;
    let (one, two) = (check::cpu(&reading, 1)?, check::cpu(&reading, 2)?);
    ensure!(
        one.counters.governor == "lull" && two.counters.governor == "haltpoll",
        "{} and {}",
        one.counters.governor,
        two.counters.governor
    );
    // In Bochs whoever arms a monitor wakes all others, so how deep the first one still goes is not said.
    let before = check::state(&two.counters, "C6")?.usage;
    ensure!(
        before > 0 && change(two, "C6")? == 0 && change(two, "C1")? > 0,
        "{two:?}"
    );
    end(running)
}

/// A limit of a CPU holds for that CPU, until it is taken away.
fn latency_of_cpus(lab: &Lab<'_>) -> Result<()> {
    let mut running = idle(lab)?;
    running.does("latency 5 cpu=1")?;
    let limited = second_reading(&mut running)?;
    let (one, two) = (check::cpu(&limited, 1)?, check::cpu(&limited, 2)?);
    ensure!(
        one.counters.latency_limit_ns == Some(5000) && two.counters.latency_limit_ns.is_none(),
        "{:?} and {:?}",
        one.counters.latency_limit_ns,
        two.counters.latency_limit_ns
    );
    ensure!(
        change(one, "C6")? == 0 && change(one, "C1E")? == 0 && change(one, "C1")? > 0,
        "C1 is all that wakes in 5 us: {one:?}"
    );
    ensure!(change(two, "C6")? > 0, "{two:?}");
    running.does("latency none cpu=1")?;
    let free = second_reading(&mut running)?;
    ensure!(change(check::cpu(&free, 1)?, "C6")? > 0, "{free:?}");
    end(running)
}

/// The same from the command line.
fn latency_option(lab: &Lab<'_>) -> Result<()> {
    let ran = lab
        .bochs("run", "corei7_skylake_x")
        .word("for=1")
        .word("latency=5:1")
        .run()?;
    ran.ok()?;
    let reading = ran.last_reading()?;
    let deep =
        |cpu| -> Result<u64> { Ok(check::state(&check::cpu(reading, cpu)?.counters, "C6")?.usage) };
    ensure!(deep(0)? > 0 && deep(1)? == 0, "{reading:?}");

    // With all that it allows off, the limit still holds.
    let ran = lab
        .bochs("all-off", "corei7_skylake_x")
        .word("for=1")
        .word("latency=5")
        .word("states_off=POLL,C1,C1E")
        .run()?;
    ran.ok()?;
    for cpu in 0..2 {
        let all = &check::cpu(ran.last_reading()?, cpu)?.counters;
        let usage = |name| Ok::<_, anyhow::Error>(check::state(all, name)?.usage);
        ensure!(
            usage("C6")? == 0 && usage("C1E")? == 0 && usage("POLL")? > 0,
            "{all:?}"
        );
    }
    Ok(())
}

/// A machine with ACPI's C1 and C2, on which two guests sleep at times, one of them with a limit.
fn two_guests(lab: &Lab<'_>, first_pin: &str) -> Result<Running> {
    let sleeper = "cmdline=\"duty=5 periods=100000\"";
    let mut running = lab
        .rig("run")
        .acpi_table(acpi::compile(lab, "intel")?)
        .guest(&format!("idle-timer,pin={first_pin},latency=1,{sleeper}"))
        .guest(&format!("idle-timer,pin=2,{sleeper}"))
        // QEMU's TSC counts on, though CPUID does not say so.
        .word("cpuid=0x80000007:edx=0x100")
        .word("keep")
        .start()?;
    running.up(2)?;
    Ok(running)
}

/// A guest with `latency=1` keeps its CPU out of C2, and no other.
fn guest_limits_its_cpu(lab: &Lab<'_>) -> Result<()> {
    let mut running = two_guests(lab, "1")?;
    let reading = second_reading(&mut running)?;
    let (one, two) = (check::cpu(&reading, 1)?, check::cpu(&reading, 2)?);
    ensure!(
        one.counters.latency_limit_ns == Some(1000) && two.counters.latency_limit_ns.is_none(),
        "{:?} and {:?}",
        one.counters.latency_limit_ns,
        two.counters.latency_limit_ns
    );
    ensure!(
        change(one, "C2")? == 0 && change(one, "C1")? > 0,
        "CPU 1 with a limit of 1 us: {one:?}"
    );
    ensure!(change(two, "C2")? > 0, "CPU 2 without a limit: {two:?}");
    running.does("latency none guest=d1")?;
    let free = second_reading(&mut running)?;
    ensure!(
        change(check::cpu(&free, 1)?, "C2")? > 0,
        "the limit is gone, and CPU 1 stays in C1"
    );
    end(running)
}

/// The limit is with the CPU that the guest last ran on, and with no other.
fn guest_moves(lab: &Lab<'_>) -> Result<()> {
    let mut running = two_guests(lab, "all")?;
    for _ in 0..3 {
        let reading = second_reading(&mut running)?;
        let limited: Vec<u32> = reading
            .cpus
            .iter()
            .filter(|cpu| cpu.counters.latency_limit_ns.is_some())
            .map(|cpu| cpu.cpu)
            .collect();
        // For a moment, while it moves, it is neither here nor there.
        ensure!(limited.len() <= 1, "one vCPU limits CPUs {limited:?}");
    }
    end(running)
}
