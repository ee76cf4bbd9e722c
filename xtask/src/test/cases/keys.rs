//! Every debug key, pressed in a run with guests. What a key prints for people is only looked at for being there.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::{
    qemu::exit,
    test::{
        case::{Case, Lab},
        rig::Running,
    },
};

/// Keys that print something and change nothing.
const KEYS: [&str; 11] = ["h", "c", "C", "r", "q", "a", "t", "i", "v", "d", "*"];

pub fn cases() -> Vec<Case> {
    vec![
        Case::real_time("keys/every-key-in-a-run", every_key),
        Case::real_time("keys/who-woke-whom-in-a-storm", who_woke_whom),
        Case::bochs("keys/c-says-what-the-channel-says", same_on_both),
        Case::real_time("keys/barriers-between-guests", barriers),
        Case::real_time("keys/power-off", |lab| ends(lab, "Q")),
        Case::real_time("keys/reboot", |lab| ends(lab, "R")),
    ]
}

fn with_guests(lab: &Lab<'_>) -> Result<Running> {
    let guest = "idle-timer,pin=1,cmdline=\"duty=30 periods=100000\"";
    let mut running = lab
        .rig("run")
        .guest(guest)
        .guest("quiet")
        .word("keep")
        .start()?;
    running.wait_for_guests(2)?;
    // The console has said what it says at the start.
    settled(&mut running)?;
    Ok(running)
}

/// Waits until the console is silent for a while; gives how much it has said.
fn settled(running: &mut Running) -> Result<usize> {
    let mut said = running.console().len();
    loop {
        running
            .session
            .wait_for(Duration::from_millis(300), |_| false)?;
        let now = running.console().len();
        if now == said {
            return Ok(said);
        }
        said = now;
    }
}

fn every_key(lab: &Lab<'_>) -> Result<()> {
    let mut running = with_guests(lab)?;
    for key in KEYS {
        let before = settled(&mut running)?;
        let readings = |channel: &crate::channel::Channel| {
            channel.cstates().filter(|c| c.reason == "key").count()
        };
        let mut read_before = 0;
        running.session.wait_for(Duration::ZERO, |channel| {
            read_before = readings(channel);
            true
        })?;
        running.session.press(key)?;
        if matches!(key, "c" | "*") {
            let read = running
                .session
                .wait_for(Duration::from_secs(10), |channel| {
                    readings(channel) > read_before
                })?;
            ensure!(read, "key {key} gave no reading on the machine channel");
        }
        let after = settled(&mut running)?;
        let said = running.console()[before..after].trim().lines().count();
        ensure!(said >= 2, "key {key} printed {said} lines");
    }
    running.session.press("Q")?;
    let ran = running.finish()?;
    ran.adds_up()?;
    // All keys print; none stops the machine.
    ensure!(
        ran.channel().end().is_none_or(|end| end.status != "panic"),
        "a key made it panic"
    );
    Ok(())
}

/// During a storm of interrupts between vCPUs, `w` gives for each CPU sums that add up, before and after `W`, and rates.
fn who_woke_whom(lab: &Lab<'_>) -> Result<()> {
    let mut running = lab
        .rig("run")
        .guest("storm,vcpus=4")
        .guest("idle-timer,vcpus=2,cmdline=\"duty=30 periods=100000\"")
        .word("keep")
        .start()?;
    running.wait_for_guests(2)?;
    settled(&mut running)?;
    let mut woken = Vec::new();
    for key in ["i", "w", "W", "w"] {
        let before = settled(&mut running)?;
        running.session.press(key)?;
        let after = settled(&mut running)?;
        let said = running.console()[before..after].to_owned();
        match key {
            "w" => woken.push((sums(&said)?, matrix(&said)?)),
            "i" => ensure!(said.contains("/s), woken "), "key i gave no rates: {said}"),
            _ => ensure!(said.contains("counted anew"), "key W said: {said}"),
        }
    }
    let [before, after] = woken[..] else {
        anyhow::bail!("{} readings", woken.len());
    };
    ensure!(
        before.0 > 0 && after.0 < before.0,
        "{before:?} wakes before the reset, {after:?} after it"
    );
    // By CPUs: all but those by devices and NMIs. The matrix is read a moment earlier than the causes.
    ensure!(
        0 < before.1 && before.1 <= before.0 && after.1 < before.1 && after.1 <= after.0,
        "by the matrix, {before:?} wakes before the reset, {after:?} after it"
    );
    running.session.press("Q")?;
    // The end holds both sides' books against each other.
    running.finish()?.adds_up().map(|_| ())
}

/// All wakes of all CPUs, by what key `w` has printed: the causes and the wakers of each CPU add up to its wakes.
fn sums(said: &str) -> Result<u64> {
    let (mut all, mut open, mut cpus) = (0, 0, 0);
    let number = |text: &str| -> Result<u64> {
        let word = text.split_whitespace().next().unwrap_or_default();
        let digits = word.trim_matches(|c: char| !c.is_ascii_digit());
        digits.parse().with_context(|| format!("no number: {text}"))
    };
    for line in said.lines() {
        if let Some((_, rest)) = line.split_once(": woken ") {
            ensure!(open == 0, "{open} wakes have no waker: {said}");
            let woken = number(rest)?;
            ensure!(rest.contains("/s)"), "no rate: {line}");
            let causes = ["store ", "IPI ", "timer ", "device ", "NMI "];
            let mut by_cause = 0;
            for cause in causes {
                let (_, count) = rest.split_once(cause).context("a cause is missing")?;
                by_cause += number(count)?;
            }
            ensure!(by_cause == woken, "{by_cause} by cause: {line}");
            (all, open, cpus) = (all + woken, woken, cpus + 1);
        } else if cpus > 0 && line.ends_with("/s)") {
            let (_, counted) = line.rsplit_once("(LULL)").unwrap_or(("", line));
            open = open
                .checked_sub(number(counted)?)
                .with_context(|| format!("more wakers than wakes: {said}"))?;
        }
    }
    ensure!(cpus > 1 && open == 0, "{open} wakes have no waker: {said}");
    Ok(all)
}

/// All wakes in the matrix of key `w`, which has a row and a column for each CPU.
fn matrix(said: &str) -> Result<u64> {
    let cells = |line: &str| -> Vec<u64> {
        let (_, cells) = line.rsplit_once("(LULL)").unwrap_or(("", line));
        let numbers = cells.split_whitespace();
        numbers.filter_map(|number| number.parse().ok()).collect()
    };
    let mut lines = said
        .lines()
        .skip_while(|line| !line.contains("woken \\ by"));
    let heads = cells(lines.next().context("there is no matrix")?);
    let mut all = 0;
    for (row, line) in heads.iter().zip(lines) {
        let numbers = cells(line);
        ensure!(
            numbers.len() == heads.len() + 1 && numbers.first() == Some(row),
            "no row of CPU {row}: {line}"
        );
        all += numbers.iter().skip(1).sum::<u64>();
    }
    Ok(all)
}

/// The last reading, as people get it and as tools do: the same figures, column by column.
fn same_on_both(lab: &Lab<'_>) -> Result<()> {
    let ran = lab
        .bochs("run", "corei7_skylake_x")
        .cpus(3)
        .word("for=1")
        .word("states_off=C1E")
        .word("latency=200:2")
        .word("test.timers=10000")
        .run()?;
    ran.ok()?;
    let hz = ran.channel().boot().map_or(1, |boot| boot.tsc_hz);
    let nanos = |ticks: u64| u128::from(ticks) * 1_000_000_000 / u128::from(hz);
    let micros = |ticks: u64| u128::from(ticks) * 1_000_000 / u128::from(hz);
    // Behind the heading, in the order of the CPUs.
    let mut lines = ran
        .console
        .lines()
        .skip_while(|line| !line.contains("C-states, reading"))
        .filter_map(|line| Some(line.strip_prefix("(LULL) ")?.trim()));
    for cpu in &ran.last_reading()?.cpus {
        let all = &cpu.counters;
        let delta = cpu.delta.as_ref().context("no change")?;
        let limit = all
            .latency_limit_ns
            .map_or_else(|| "none".to_owned(), |ns| format!("{} us", ns / 1000));
        let mut expected = vec![
            format!(
                "==cpu{}== {}.{:03} s, now {}; aborted before sleep {}, spurious {}",
                cpu.cpu,
                nanos(all.elapsed) / 1_000_000_000,
                nanos(all.elapsed) / 1_000_000 % 1000,
                cpu.activity,
                all.aborted,
                all.spurious
            ),
            format!(
                "governor {}, latency limit {limit}; a state in brackets is off",
                all.governor
            ),
        ];
        for (state, change) in all.states.iter().zip(&delta.states) {
            let name = if state.off {
                format!("[{}]", state.name)
            } else {
                state.name.clone()
            };
            let share = u128::from(state.residency) * 10_000 / u128::from(all.elapsed);
            let shortest = state
                .shortest
                .map_or_else(|| "-".to_owned(), |ticks| micros(ticks).to_string());
            expected.push(format!(
                "{name} {} {} {} {} {} {}.{:02}% {} {} {} {shortest} {} {} {}",
                state.method,
                state.latency_us,
                state.usage,
                nanos(state.residency),
                nanos(state.irq),
                share / 100,
                share % 100,
                state.above,
                state.below,
                state.rejected,
                micros(state.longest),
                change.usage,
                nanos(change.residency)
            ));
        }
        let c0 = u128::from(all.c0) * 10_000 / u128::from(all.elapsed);
        expected.push(format!(
            "C0 {} {}.{:02}% {}",
            nanos(all.c0),
            c0 / 100,
            c0 % 100,
            nanos(delta.c0)
        ));
        expected.push(format!(
            "of it guest {} ns, hypervisor {} ns",
            nanos(all.guest),
            nanos(all.hypervisor)
        ));
        for wanted in expected {
            let found = lines.find(|line| words(line) == words(&wanted));
            ensure!(
                found.is_some(),
                "the console does not say `{wanted}`, in its place"
            );
        }
    }
    Ok(())
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Two guests on one CPU, with every barrier that there is: the key shows that guests were changed and entered with them.
fn barriers(lab: &Lab<'_>) -> Result<()> {
    let busy = |name: &str| format!("{name},pin=1,cmdline=\"for-ms=100000\"");
    let mut running = lab
        .rig("run")
        .guest(&busy("busy"))
        .guest(&busy("busy"))
        .word("mitigations=force")
        .word("keep")
        .start()?;
    running.wait_for_guests(2)?;
    // Some slices.
    running
        .session
        .wait_for(Duration::from_secs(1), |_| false)?;
    let before = settled(&mut running)?;
    running.session.press("v")?;
    settled(&mut running)?;
    let said = running.console()[before..].to_owned();
    let line = said
        .lines()
        .find(|line| line.contains("cpu1: IBPB"))
        .with_context(|| format!("no line of CPU 1: {said}"))?;
    let count = |name: &str| {
        let after = line.split(name).nth(1)?;
        let digits = after
            .trim_start()
            .split(|c: char| !c.is_ascii_digit())
            .next()?;
        digits.parse::<u64>().ok()
    };
    for name in ["IBPB", "RSB fill", "VERW", "L1D flush"] {
        let made = count(name);
        ensure!(
            made.is_some_and(|made| made > 2),
            "{name}: {made:?} ({line})"
        );
    }
    ensure!(
        count("VERW") > count("IBPB"),
        "fewer entries than changes: {line}"
    );
    running.session.press("Q")?;
    running.finish()?;
    Ok(())
}

/// The machine ends in good order.
fn ends(lab: &Lab<'_>, key: &str) -> Result<()> {
    let mut running = with_guests(lab)?;
    running.session.press(key)?;
    let ran = running.finish()?;
    let code = ran.ended.code();
    ensure!(
        code == Some(0) || code == Some(exit::OK),
        "after key {key}: {}",
        ran.ended.how()
    );
    Ok(())
}
