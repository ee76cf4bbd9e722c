//! Each guest kernel on Lull: counting instructions, where two runs are alike, and in real time, where CPUs are
//! truly concurrent.

use anyhow::{Result, ensure};

use super::GUESTS;
use crate::{
    build::GoodEnd,
    test::{case::Case, case::Lab},
};

pub fn cases() -> Vec<Case> {
    let mut cases = vec![Case::icount("guests/none-forgotten", none_forgotten)];
    for name in GUESTS {
        cases.push(Case::icount(format!("guests/{name}"), |lab| {
            alone(lab, name)
        }));
        cases.push(Case::real_time(format!("guests/{name}-real-time"), |lab| {
            alone(lab, name)
        }));
    }
    cases.push(Case::icount("guests/spin", spin));
    cases.push(Case::icount(
        "guests/fault-and-idle-timer",
        fault_hurts_only_itself,
    ));
    cases.push(Case::real_time(
        "guests/fault-and-idle-timer-real-time",
        fault_hurts_only_itself,
    ));
    cases.push(Case::real_time("guests/many-vcpus-on-few-cpus", |lab| {
        lab.rig("run")
            .cpus(2)
            .guest("smp,vcpus=8")
            .guest("ipi-pair")
            .limit(120)
            .run()?
            .ok()?
            .passed("smp")?
            .passed("ipi-pair")?;
        Ok(())
    }));
    cases.push(Case::real_time("guests/all-at-once", |lab| {
        let ran = GUESTS
            .iter()
            .filter(|name| {
                lab.context
                    .built
                    .guest(name)
                    .is_ok_and(|kernel| kernel.end != GoodEnd::Never)
            })
            .fold(lab.rig("run"), |rig, name| match name {
                // QEMU's VMRUN loads DR7 without arming what it says: breakpoints stay on the CPU that set them.
                &"adversity" => rig.guest("adversity,pin=0"),
                name => rig.guest(name),
            })
            .limit(180)
            .run()?;
        ran.ok()?;
        Ok(())
    }));
    cases
}

/// The table of cases and the build agree on the guests.
fn none_forgotten(lab: &Lab<'_>) -> Result<()> {
    let built: Vec<&str> = lab
        .context
        .built
        .guests
        .keys()
        .map(String::as_str)
        .collect();
    ensure!(
        built == GUESTS,
        "the build makes {built:?}, the cases know {GUESTS:?}"
    );
    Ok(())
}

fn alone(lab: &Lab<'_>, name: &str) -> Result<()> {
    let mut rig = lab.rig("run").guest(name).limit(120);
    if lab.context.built.guest(name)?.end == GoodEnd::Never {
        rig = rig.word("for=3");
    }
    rig.run()?.ok()?.passed(name)?;
    Ok(())
}

/// A guest that spins with interrupts off has its slice, and no more.
fn spin(lab: &Lab<'_>) -> Result<()> {
    let ran = lab
        .rig("run")
        .cpus(2)
        .guest("busy,pin=0,cmdline=\"for-ms=60000\"")
        .guest("idle-timer,pin=0,cmdline=\"periods=30\"")
        .word("for=2")
        .limit(120)
        .run()?;
    ran.ok()?.passed("idle-timer")?;
    Ok(())
}

fn fault_hurts_only_itself(lab: &Lab<'_>) -> Result<()> {
    lab.rig("run")
        .guest("fault")
        .guest("idle-timer")
        .limit(120)
        .run()?
        .ok()?
        .passed("idle-timer")?
        .passed("fault")?;
    Ok(())
}
