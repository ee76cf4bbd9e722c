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
    let up = running
        .session
        .wait_for(Duration::from_secs(30), |channel| {
            channel.guests().count() >= 2
        })?;
    ensure!(up, "the guests did not start");
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
    let up = running
        .session
        .wait_for(Duration::from_secs(30), |channel| {
            channel.guests().count() >= 2
        })?;
    ensure!(up, "the guests did not start");
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
