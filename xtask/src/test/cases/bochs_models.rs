//! Bochs: what is promised of Intel's CPUs, on each of the models that Bochs has.

use anyhow::{Context, Result, ensure};

use super::bochs::{boot, clock_is_true, posts, slept, states};
use crate::test::{
    case::{Case, Lab},
    check,
    rig::Ran,
};

/// A model, why it has the states that it has, and those: name, method and the words that leave it nothing deeper.
struct Model {
    name: &'static str,
    why: &'static str,
    states: &'static [(&'static str, &'static str, &'static str)],
}

const C1_ONLY: &[(&str, &str, &str)] = &[("C1", "MWAIT 0x00", "")];

/// Three models with a table of their own, and three without one.
const MODELS: [Model; 6] = [
    Model {
        name: "corei7_skylake_x",
        why: "SKYLAKE_X has table skx",
        states: &[
            ("C1", "MWAIT+IRQ 0x00", "max_cstate=1,0"),
            ("C1E", "MWAIT 0x01", "max_cstate=1"),
            ("C6", "MWAIT 0x20", ""),
        ],
    },
    Model {
        name: "sapphire_rapids",
        why: "SAPPHIRERAPIDS_X has table spr",
        states: &[
            ("C1", "MWAIT 0x00", "max_cstate=1,0"),
            ("C1E", "MWAIT 0x01", "max_cstate=1"),
            ("C6", "MWAIT 0x20", ""),
        ],
    },
    Model {
        name: "corei7_haswell_4770",
        why: "HASWELL has table hsw",
        states: &[
            ("C1", "MWAIT 0x00", "max_cstate=1,0"),
            ("C1E", "MWAIT 0x01", "max_cstate=1"),
            ("C3", "MWAIT 0x10", "max_cstate=2"),
            ("C6", "MWAIT 0x20", "max_cstate=3"),
            ("C7s", "MWAIT 0x32", ""),
        ],
    },
    Model {
        name: "corei7_icelake_u",
        why: "no table is known for Intel 06_7E stepping 5, and no sibling's is taken",
        states: C1_ONLY,
    },
    Model {
        name: "tigerlake",
        why: "no table is known for Intel 06_8C stepping 1, and no sibling's is taken",
        states: C1_ONLY,
    },
    Model {
        name: "arrow_lake",
        why: "no table is known for Intel 06_C6 stepping 2, and no sibling's is taken",
        states: C1_ONLY,
    },
];

/// A question about one model.
type Question = fn(&Lab<'_>, &Model) -> Result<()>;

const QUESTIONS: [(&str, Question); 4] = [
    ("", found_and_used),
    ("-each-state", each_state),
    ("-store", wakes_by_store),
    ("-stopping-tsc", stopping_tsc),
];

pub fn cases() -> Vec<Case> {
    MODELS
        .iter()
        .flat_map(|model| {
            QUESTIONS.iter().map(move |&(suffix, question)| {
                let name = format!("bochs/{}{suffix}", model.name.replace('_', "-"));
                Case::bochs(name, move |lab| question(lab, model))
            })
        })
        .collect()
}

/// The console says on both CPUs which table it is, or why there is none.
fn says_why(ran: &Ran, model: &Model) -> Result<()> {
    for cpu in ["cpu0", "cpu1"] {
        let said = format!("{cpu}: {}", model.why);
        ensure!(
            ran.console.contains(&said),
            "`{said}` is not on the console"
        );
    }
    let only_c1 = ran.console.contains("C1 only");
    ensure!(
        only_c1 == (model.states.len() == 1),
        "whether C1 is all there is: the console says {only_c1}"
    );
    Ok(())
}

/// Two CPUs: everything that an Intel CPU of today has is found, tried and used.
fn found_and_used(lab: &Lab<'_>, model: &Model) -> Result<()> {
    let ran = lab
        .bochs("run", model.name)
        .word("for=1")
        .word("loglvl=debug")
        .run()?;
    ran.ok()?;
    says_why(&ran, model)?;
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
    let expected: Vec<(&str, &str)> = model
        .states
        .iter()
        .map(|&(name, method, _)| (name, method))
        .collect();
    for cpu in &ran.last_reading()?.cpus {
        let found = states(&cpu.counters);
        ensure!(found == expected, "CPU {}: {found:?}", cpu.cpu);
    }
    // Bochs wakes every sleeper whenever another CPU arms its monitor, so two idle CPUs keep waking each other.
    slept(&ran, 25)?;
    let ipis = posts(&ran, "ipi")?;
    ensure!(ipis == 0, "{ipis} wakes by IPI");
    Ok(())
}

/// One CPU, and one state after the other as the deepest that it may use: nearly all of its time is there, and the handlers of its
/// timers are counted apart where they run inside, and nowhere where they do not.
fn each_state(lab: &Lab<'_>, model: &Model) -> Result<()> {
    for &(name, method, words) in model.states {
        let mut rig = lab
            .bochs(name, model.name)
            .cpus(1)
            .word("for=1")
            .word("governor=deepest-fit")
            .word("test.timers=10000");
        if !words.is_empty() {
            rig = rig.word(words);
        }
        let ran = rig.run()?;
        ran.ok()?;
        let all = &check::cpu(ran.last_reading()?, 0)?.counters;
        let state = check::state(all, name)?;
        ensure!(
            state.method == method && state.usage >= 50 && state.residency * 10 > all.elapsed * 8,
            "{state:?} of {} ticks",
            all.elapsed
        );
        // Each of the sleeps was ended by a timer.
        if method.contains("IRQ") {
            ensure!(
                state.irq >= state.usage && state.irq * 100 < all.elapsed * 5,
                "handlers ran inside {state:?}, of {} ticks",
                all.elapsed
            );
        } else {
            ensure!(all.irq() == 0, "no handler runs inside {state:?}");
        }
    }
    Ok(())
}

/// A CPU that sleeps while nobody else arms a monitor: what ends its sleep for good is a store, and no interrupt.
fn wakes_by_store(lab: &Lab<'_>, model: &Model) -> Result<()> {
    let ran = lab
        .bochs("run", model.name)
        .word("for=1")
        .word("latency=0:0")
        .run()?;
    ran.ok()?;
    let (stores, ipis) = (posts(&ran, "store")?, posts(&ran, "ipi")?);
    ensure!(
        stores > 0 && ipis == 0,
        "{stores} wakes by store, {ipis} by IPI"
    );
    let all = &check::cpu(ran.last_reading()?, 1)?.counters;
    ensure!(
        all.usage() <= 50 && all.residency() * 100 > all.elapsed * 90,
        "it slept {} times, for {} of {} ticks",
        all.usage(),
        all.residency(),
        all.elapsed
    );
    Ok(())
}

/// Where the TSC stops in C-states, interrupts stay masked in them, and the console says so of a C1 that would have them open.
fn stopping_tsc(lab: &Lab<'_>, model: &Model) -> Result<()> {
    let ran = lab
        .bochs("run", model.name)
        .word("for=1")
        .word("loglvl=debug")
        .word("cpuid=0x80000007:edx=0")
        .run()?;
    ran.ok()?;
    ensure!(
        ran.console.contains("no nonstop TSC: restored from the "),
        "the override is not seen"
    );
    for cpu in &ran.last_reading()?.cpus {
        let found = states(&cpu.counters);
        let names: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
        let expected: Vec<&str> = model.states.iter().map(|&(name, ..)| name).collect();
        ensure!(names == expected, "CPU {}: {found:?}", cpu.cpu);
        let open = found.iter().find(|(_, method)| method.contains("IRQ"));
        ensure!(open.is_none(), "CPU {}: {open:?}", cpu.cpu);
    }
    let (_, method, _) = model.states.first().context("no state")?;
    let said = ran
        .console
        .contains("interrupts stay masked inside: no nonstop TSC");
    ensure!(
        said == method.contains("IRQ"),
        "that C1 stays masked is said: {said}"
    );
    Ok(())
}
