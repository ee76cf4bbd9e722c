//! Figures that must be right.

use anyhow::{Context, Result, ensure};

use crate::{
    channel::Counters,
    test::{
        case::{Case, Lab},
        check::{self, share, within},
        rig::Ran,
    },
};

pub fn cases() -> Vec<Case> {
    vec![
        Case::icount("numbers/duty-cycle", duty_cycle),
        Case::icount("numbers/identical-runs", identical_runs),
        Case::icount("numbers/weights-on-one-cpu", weights_on_one_cpu),
        Case::real_time("numbers/weights-on-two-cpus", weights_on_two_cpus),
        Case::icount("numbers/quiet-costs-nothing", quiet_costs_nothing),
        Case::icount("numbers/wakes-of-vcpus", wakes_of_vcpus),
    ]
}

/// The counters of CPU `index` at the end. They begin when the guests are about to start.
fn at_the_end(ran: &Ran, index: u32) -> Result<&Counters> {
    Ok(&check::cpu(ran.last_reading()?, index)?.counters)
}

/// A guest that works 30 % of the time leaves 70 % to sleep on a CPU of its own; its own record says the same.
fn duty_cycle(lab: &Lab<'_>) -> Result<()> {
    let guest = "idle-timer,pin=1,cmdline=\"duty=30 period-us=10000 periods=300\"";
    let ran = lab.rig("run").guest(guest).run()?;
    ran.ok()?.passed("idle-timer")?;
    let counters = at_the_end(&ran, 1)?;
    within(
        "the residency of CPU 1",
        share(counters.residency(), counters.elapsed),
        0.70,
        0.01,
    )?;
    let (work, elapsed) = (
        ran.figure("idle-timer", "work_ticks")?,
        ran.figure("idle-timer", "elapsed_ticks")?,
    );
    within(
        "the guest's own record of its work",
        work / elapsed,
        0.30,
        0.003,
    )?;
    // What the guest took for work, Lull must have given it as run time.
    #[expect(clippy::cast_precision_loss, reason = "compared to a percent")]
    let ran_for = ran.run_ticks("idle-timer")? as f64;
    within(
        "run time by Lull / work by the guest",
        ran_for / work,
        1.0,
        0.02,
    )
}

/// Instructions from a wake to the woken vCPU on the same CPU, and from a deadline to its handler: Lull's share of them is a few
/// thousand.
fn wakes_of_vcpus(lab: &Lab<'_>) -> Result<()> {
    let guest = "wakes,vcpus=2,cmdline=\"rounds=20\"";
    let ran = lab.rig("run").cpus(1).guest(guest).run()?;
    ran.ok()?.passed("wakes")?;
    let get = |name: &str| ran.figure("wakes", name);
    for name in [
        "wake",
        "answer",
        "all_send",
        "all_wake",
        "all_answer",
        "timer",
    ] {
        let all = ["min", "p50", "p90", "p99", "max"]
            .map(|statistic| get(&format!("{name}_{statistic}")));
        let all = all.into_iter().collect::<Result<Vec<f64>>>()?;
        ensure!(all.is_sorted() && all[0] > 0.0, "{name}: {all:?}");
        let mean = get(&format!("{name}_mean"))?;
        ensure!(
            all[0] <= mean && mean <= all[4],
            "{name}: mean {mean} of {all:?}"
        );
    }
    let (wake, answer, timer) = (get("wake_p50")?, get("answer_p50")?, get("timer_p50")?);
    ensure!(
        wake < answer && answer < 20_000.0 && timer < 10_000.0,
        "wake {wake}, answer {answer}, timer {timer} instructions"
    );
    Ok(())
}

/// Everything that is counted is the same in a second run: figures, run times, counters.
fn identical_runs(lab: &Lab<'_>) -> Result<()> {
    let run = |label| -> Result<Ran> {
        let ran = lab.rig(label).guest("idle-timer").guest("ipi-pair").run()?;
        ran.ok()?;
        Ok(ran)
    };
    let (first, second) = (run("first")?, run("second")?);
    for (one, other) in first
        .channel()
        .messages
        .iter()
        .zip(&second.channel().messages)
    {
        ensure!(one == other, "the runs differ:\n{one:?}\n{other:?}");
    }
    let (one, other) = (
        first.channel().messages.len(),
        second.channel().messages.len(),
    );
    ensure!(
        one == other,
        "the first run said {one} things, the second {other}"
    );
    Ok(())
}

const WEIGHTS: [(&str, &str, u64); 3] = [
    ("light", "light,kernel=busy,weight=256", 1),
    ("middle", "middle,kernel=busy,weight=512", 2),
    ("heavy", "heavy,kernel=busy,weight=1024", 4),
];

fn three_busy(lab: &Lab<'_>, cpus: u32, seconds: u32) -> Result<Ran> {
    // The guests would go on for longer: the end comes to all at the same time.
    let rig = WEIGHTS.iter().fold(lab.rig("run"), |rig, (_, spec, _)| {
        rig.guest(&format!(
            "{spec},cmdline=\"for-ms={}\"",
            (seconds + 20) * 1000
        ))
    });
    let ran = rig
        .cpus(cpus)
        .word(&format!("for={seconds}"))
        .limit(300)
        .run()?;
    // A guest that the end of the machine cuts off has neither passed nor failed.
    ran.ok()?;
    Ok(ran)
}

/// Weights 1:2:4 on one CPU: 1:2:4 of its time.
fn weights_on_one_cpu(lab: &Lab<'_>) -> Result<()> {
    let ran = three_busy(lab, 1, 10)?;
    let times = WEIGHTS.map(|(name, _, _)| ran.run_ticks(name));
    let total: u64 = times.iter().flatten().sum();
    for ((name, _, weight), time) in WEIGHTS.iter().zip(times) {
        let wanted = share(*weight, 7);
        within(
            &format!("the share of {name}"),
            share(time?, total),
            wanted,
            wanted * 0.01,
        )?;
    }
    let counters = at_the_end(&ran, 0)?;
    let idle = share(counters.residency(), counters.elapsed);
    ensure!(
        idle < 0.001,
        "there is work all the time, yet the CPU sleeps {idle:.4} of it"
    );
    Ok(())
}

/// The same on two CPUs. The heavy one wants 8/7 of a CPU and can use one; the others share the second one 1:2.
/// So work conservation allows 1/3, 2/3 and 1.
fn weights_on_two_cpus(lab: &Lab<'_>) -> Result<()> {
    let ran = three_busy(lab, 2, 10)?;
    let hz = ran.channel().boot().context("no `boot`")?.tsc_hz;
    let wanted = [1.0 / 3.0, 2.0 / 3.0, 1.0];
    for ((name, _, _), wanted) in WEIGHTS.iter().zip(wanted) {
        within(
            &format!("CPUs that {name} had"),
            share(ran.run_ticks(name)?, 10 * hz),
            wanted,
            0.05,
        )?;
    }
    Ok(())
}

/// With only `quiet` running, no CPU wakes more than once a second.
fn quiet_costs_nothing(lab: &Lab<'_>) -> Result<()> {
    const SECONDS: u64 = 60;
    let ran = lab
        .rig("run")
        .guest("quiet")
        .word(&format!("for={SECONDS}"))
        .run()?;
    ran.ok()?.passed("quiet")?;
    let hz = ran.channel().boot().context("no `boot`")?.tsc_hz;
    let cpus = ran.last_reading()?.cpus.len();
    for index in (0..).take(cpus) {
        let counters = at_the_end(&ran, index)?;
        let wakes = counters.wakes_total();
        let slept = share(counters.residency(), counters.elapsed);
        ensure!(
            counters.elapsed >= (SECONDS - 1) * hz,
            "CPU {index} was watched for {} ticks only",
            counters.elapsed
        );
        ensure!(
            wakes <= SECONDS,
            "CPU {index} woke {wakes} times in {SECONDS} s"
        );
        ensure!(
            counters.usage() <= SECONDS,
            "CPU {index} went to sleep {} times in {SECONDS} s",
            counters.usage()
        );
        ensure!(slept > 0.99, "CPU {index} slept {slept:.4} of the time");
    }
    Ok(())
}
