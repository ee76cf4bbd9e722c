//! Row `guest`: how soon a vCPU runs that was woken by another, with all others, or by its own timer.
//!
//! By guest `wakes`, whose clock is that of the machine: an instruction in QEMU, a tick in Bochs. What the guest's own code takes is
//! in all figures.

use anyhow::{Context, Result};

use super::{
    bench::{Bench, Boot, Emulator},
    report::{Figure, Report},
};
use crate::session::Ended;

const ROW: &str = "guest";

/// What is measured, as the guest names it, and as reports do.
const FIGURES: [(&str, &str); 6] = [
    ("wake", "wakes a vCPU, until its handler"),
    ("answer", "wakes a vCPU, until the answer"),
    ("all_send", "wakes all others, the command"),
    ("all_wake", "wakes all others, until the last handler"),
    ("all_answer", "wakes all others, until the answer"),
    ("timer", "timer overshoot, out of HLT"),
];

/// Of each, in this order.
const STATISTICS: [&str; 6] = ["min", "p50", "p90", "p99", "max", "mean"];

/// A machine and its guests.
struct Scene {
    name: &'static str,
    cpus: u32,
    vcpus: u32,
    words: &'static str,
    /// A vCPU that never halts is there, too.
    busy: bool,
    /// Which of the figures are told.
    figures: &'static [&'static str],
}

const PAIR: &[&str] = &["wake", "answer"];
const ALL: &[&str] = &["all_send", "all_wake", "all_answer"];
const TIMER: &[&str] = &["timer"];

const SCENES: [Scene; 7] = [
    Scene {
        name: "same pCPU",
        cpus: 1,
        vcpus: 2,
        words: "",
        busy: false,
        figures: PAIR,
    },
    Scene {
        name: "across pCPUs",
        cpus: 2,
        vcpus: 2,
        words: "",
        busy: false,
        figures: PAIR,
    },
    // Each vCPU has a pCPU for good: whatever the scheduler does otherwise, that is across.
    Scene {
        name: "across pCPUs, null",
        cpus: 2,
        vcpus: 2,
        words: "sched=null",
        busy: false,
        figures: PAIR,
    },
    Scene {
        name: "4 vCPUs, 1 pCPU",
        cpus: 1,
        vcpus: 4,
        words: "",
        busy: false,
        figures: ALL,
    },
    Scene {
        name: "4 vCPUs, 4 pCPUs",
        cpus: 4,
        vcpus: 4,
        words: "",
        busy: false,
        figures: ALL,
    },
    Scene {
        name: "alone",
        cpus: 1,
        vcpus: 1,
        words: "",
        busy: false,
        figures: TIMER,
    },
    Scene {
        name: "beside a busy vCPU",
        cpus: 1,
        vcpus: 1,
        words: "",
        busy: true,
        figures: TIMER,
    },
];

/// Runs all scenes on the emulators that are wanted.
///
/// # Errors
/// A run does not end well, or a guest has not measured something.
pub fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    for (emulator, kind, unit) in [
        (bench.qemu()?, "SVM", "instructions"),
        (bench.bochs()?, "VMX", "ticks"),
    ] {
        let Some(emulator) = emulator else { continue };
        println!("guest wakes, {kind} in {}: {unit}", emulator.name);
        print!("{:<42} {:<20}", "", "");
        for statistic in STATISTICS {
            print!(" {statistic:>8}");
        }
        println!();
        for scene in &SCENES {
            of_scene(bench, &emulator, scene, report)
                .with_context(|| format!("{}, guests {}", emulator.name, scene.name))?;
        }
    }
    Ok(())
}

fn of_scene(bench: &Bench, emulator: &Emulator, scene: &Scene, report: &mut Report) -> Result<()> {
    let rounds = if bench.quick { 10 } else { 200 };
    let mut guests =
        vec![format!("wakes,vcpus={},cmdline=\"rounds={rounds}\"", scene.vcpus).parse()?];
    if scene.busy {
        // Longer than the timer is measured.
        guests.push(format!("busy,cmdline=\"for-ms={}\"", 2 * rounds).parse()?);
    }
    let emulator = emulator.with(scene.cpus);
    let boot = Boot {
        emulator: &emulator,
        label: format!("guest {}", scene.name.replace(',', "")),
        words: scene.words.to_owned(),
    };
    let ended = bench.boot_guests(&boot, &guests)?;
    for (name, title) in FIGURES {
        if scene.figures.contains(&name) {
            print!("{title:<42} {:<20}", scene.name);
            for statistic in STATISTICS {
                let value = value(&ended, &format!("{name}_{statistic}"))?;
                print!(" {value:>8.0}");
                let figure = Figure::new(ROW, scene.name, format!("{name}.{statistic}"), value);
                report.add(figure.on(emulator.name, scene.cpus));
            }
            println!();
        }
    }
    Ok(())
}

/// What guest `wakes` told under this name: no other guest has such figures.
fn value(ended: &Ended, name: &str) -> Result<f64> {
    let mut told = ended.channel.figures().filter(|told| told.name == name);
    told.next()
        .and_then(crate::channel::Figure::number)
        .with_context(|| format!("the guest has not measured {name}"))
}
