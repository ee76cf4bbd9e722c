//! The check of the accounting notices what it must notice, and reading costs nothing.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::{
    channel::Cstates,
    qemu::exit,
    test::{case::Case, case::Lab},
};

pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = ["drop", "double"]
        .into_iter()
        .map(|fault| {
            Case::icount(format!("accounting/{fault}-is-noticed"), move |lab| {
                is_noticed(lab, fault)
            })
        })
        .collect();
    cases.push(Case::real_time(
        "accounting/reading-wakes-nobody",
        reading_wakes_nobody,
    ));
    cases.push(Case::real_time(
        "accounting/readings-of-64-busy-cpus",
        readings_of_64_cpus,
    ));
    cases.push(Case::real_time(
        "accounting/stopped-while-guests-run",
        stopped_while_guests_run,
    ));
    cases.push(Case::icount(
        "accounting/vcpus-and-cpus-agree",
        vcpus_and_cpus_agree,
    ));
    cases
}

/// One interval that is dropped or counted twice: Lull itself says so, and our own sum says so.
fn is_noticed(lab: &Lab<'_>, fault: &str) -> Result<()> {
    let ran = lab
        .rig("run")
        .guest("idle-timer")
        .word(&format!("test.account={fault}"))
        .run()?;
    ran.ended_with("accounting", exit::ACCOUNTING)?;
    ensure!(
        ran.adds_up().is_err(),
        "Lull says that its times do not add up, yet they do"
    );
    Ok(())
}

/// Two readings of a machine that sleeps: the CPUs that do not print have not woken, and their time has gone on.
fn reading_wakes_nobody(lab: &Lab<'_>) -> Result<()> {
    let mut running = lab.rig("run").guest("quiet,pin=1").word("keep").start()?;
    let up = running
        .session
        .wait_for(Duration::from_secs(30), |channel| {
            channel
                .guests()
                .any(|guest| guest.name == "quiet" && guest.event == "start")
        })?;
    ensure!(up, "the guest did not start");
    let mut readings = Vec::new();
    // Long enough for the guest to halt before the first, and for time to pass before the second.
    for count in 1..=3 {
        running
            .session
            .wait_for(Duration::from_millis(700), |_| false)?;
        running.session.press("c")?;
        let read = running
            .session
            .wait_for(Duration::from_secs(10), |channel| {
                by_key(channel.cstates()).count() == count
            })?;
        ensure!(read, "key c gave no reading {count}");
    }
    running.session.press("Q")?;
    let ran = running.finish()?;
    ran.adds_up()?;
    readings.extend(by_key(ran.channel().cstates()));
    let hz = ran.channel().boot().map_or(0, |boot| boot.tsc_hz);
    for pair in readings.windows(2) {
        let [before, after] = pair else { continue };
        for (old, new) in before
            .cpus
            .iter()
            .zip(&after.cpus)
            .filter(|(cpu, _)| cpu.cpu != 0)
        {
            ensure!(
                new.counters
                    .states
                    .iter()
                    .any(|state| state.name == new.activity),
                "CPU {} sleeps, and is said to be in `{}`",
                new.cpu,
                new.activity
            );
            let (old, new) = (&old.counters, &new.counters);
            ensure!(
                old.wakes == new.wakes,
                "a reading woke a CPU: {:?}, then {:?}",
                old.wakes,
                new.wakes
            );
            ensure!(
                old.usage() == new.usage(),
                "a CPU left its idle state for a reading"
            );
            let slept = new.residency() - old.residency();
            ensure!(
                slept > hz / 2,
                "the open interval of a sleeping CPU is not in the reading: {slept} ticks"
            );
        }
    }
    Ok(())
}

fn by_key<'a>(readings: impl Iterator<Item = &'a Cstates>) -> impl Iterator<Item = &'a Cstates> {
    readings.filter(|reading| reading.reason == "key")
}

/// Readings in the middle of work: each row is one consistent snapshot.
fn readings_of_64_cpus(lab: &Lab<'_>) -> Result<()> {
    let mut running = lab
        .rig("run")
        .cpus(64)
        .guest("smp,vcpus=32")
        .guest("storm")
        .guest("idle-timer")
        .word("keep")
        .limit(120)
        .start()?;
    running.wait_for_guests(3)?;
    for count in 1..=5 {
        running.session.press("c")?;
        let read = running
            .session
            .wait_for(Duration::from_secs(20), |channel| {
                by_key(channel.cstates()).count() == count
            })?;
        ensure!(read, "key c gave no reading {count}");
    }
    running.session.press("Q")?;
    let ran = running.finish()?;
    ran.adds_up()?;
    ensure!(
        by_key(ran.channel().cstates()).all(|reading| reading.cpus.len() == 64),
        "a reading is short of CPUs"
    );
    Ok(())
}

/// The end comes while every CPU is in a guest: the books are closed when all of them have left.
fn stopped_while_guests_run(lab: &Lab<'_>) -> Result<()> {
    let guests = (0..6).fold(lab.rig("run"), |rig, _| {
        rig.guest("busy,cmdline=\"for-ms=60000\"")
    });
    let ran = guests.word("for=1").run()?;
    ran.ok()?;
    let cpus = ran.last_reading()?.cpus.len();
    ensure!(cpus == 4, "the last reading has {cpus} of 4 CPUs");
    Ok(())
}

/// The time that the CPUs spent in guests is the time that the guests' vCPUs ran.
fn vcpus_and_cpus_agree(lab: &Lab<'_>) -> Result<()> {
    let ran = lab
        .rig("run")
        .guest("idle-timer")
        .guest("ipi-pair")
        .guest("storm")
        .run()?;
    ran.ok()?;
    let by_vcpu: u64 = ran
        .channel()
        .guests()
        .flat_map(|guest| &guest.run_ticks)
        .sum();
    let by_cpu: u64 = ran
        .last_reading()?
        .cpus
        .iter()
        .map(|cpu| cpu.counters.guest)
        .sum();
    #[expect(clippy::cast_precision_loss, reason = "compared to 0.1 %")]
    let off = by_vcpu.abs_diff(by_cpu) as f64 / by_cpu.max(1) as f64;
    ensure!(
        by_cpu > 0 && off <= 0.001,
        "vCPUs ran {by_vcpu} ticks, CPUs were in guests for {by_cpu}"
    );
    Ok(())
}
