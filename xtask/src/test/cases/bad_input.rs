//! Every bad input gets one clear complaint that names what is wrong, and the machine goes on or ends in good
//! order; it never hangs and never panics.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::{
    build::Bundle,
    qemu::exit,
    test::{
        case::{Case, Lab},
        elf_patch::Elf,
        rig::{Ran, Rig},
    },
};

pub fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::icount("bad/no-virtualization", no_virtualization),
        Case::icount("bad/no-bundle", |lab| {
            refused(lab.rig("run"), "bundle", &["bundle"])
        }),
        Case::icount("bad/empty-bundle", |lab| {
            refused(lab.rig("run").bundle(Vec::new()), "bundle", &["bundle"])
        }),
        Case::icount("bad/bundle-without-files", |lab| {
            refused(
                lab.rig("run").bundle(Bundle::default().to_bytes()?),
                "bundle",
                &["guests.txt"],
            )
        }),
        Case::icount("bad/bundle-of-noise", |lab| {
            let noise: Vec<u8> = (0..4096_u32)
                .map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0])
                .collect();
            refused(lab.rig("run").bundle(noise), "bundle", &["cpio"])
        }),
        Case::icount("bad/bundle-cut-off", |lab| {
            let whole = good_bundle(lab, "idle-timer\n")?.to_bytes()?;
            let half = whole
                .get(..whole.len() / 2)
                .context("an empty bundle")?
                .to_vec();
            refused(lab.rig("run").bundle(half), "bundle", &[])
        }),
        Case::icount("bad/no-guest-in-list", |lab| {
            refused(
                lab.rig("run")
                    .bundle(good_bundle(lab, "# nobody\n\n")?.to_bytes()?),
                "bundle",
                &["guest"],
            )
        }),
        Case::icount("bad/unknown-guest", |lab| {
            others_run(lab, "no-such-guest\nidle-timer\n", "", &["no-such-guest"])
        }),
        Case::icount("bad/too-many-vcpus", |lab| {
            others_run(
                lab,
                "smp vcpus=65\nidle-timer\n",
                "smp",
                &["vcpus=65", "64"],
            )
        }),
        Case::icount("bad/guest-option", |lab| {
            others_run(lab, "smp color=red\nidle-timer\n", "smp", &["color=red"])
        }),
        Case::icount("bad/guest-memory", |lab| {
            others_run(lab, "smp mem=2G\nidle-timer\n", "smp", &["smp", "memory"])
        }),
        Case::icount("bad/pin-to-absent-cpu", |lab| {
            others_run(lab, "smp pin=9\nidle-timer\n", "smp", &["smp", "9"])
        }),
        Case::icount("bad/option-unknown", |lab| {
            option_is_ignored(lab, "colour=red")
        }),
        Case::icount("bad/option-malformed", |lab| {
            option_is_ignored(lab, "idle=sideways")
        }),
        Case::icount("bad/option-not-a-number", |lab| {
            option_is_ignored(lab, "for=soon")
        }),
        Case::icount("bad/option-about-absent-things", about_absent_things),
        Case::icount("bad/too-little-memory", too_little_memory),
        Case::icount("bad/no-64-bit-mode", no_64_bit_mode),
        Case::bochs("bad/no-64-bit-mode-bochs", no_64_bit_mode_bochs),
        Case::icount("bad/absent-ap", absent_ap),
        Case::icount("bad/disabled-cpus", disabled_cpus),
    ];
    for (name, damage, texts) in DAMAGES {
        cases.push(Case::icount(format!("bad/elf-{name}"), move |lab| {
            damaged_elf(lab, damage, texts)
        }));
    }
    for kind in ["pf", "ud", "stack", "panic"] {
        cases.push(Case::icount(format!("bad/crash-{kind}"), move |lab| {
            crash(lab, kind)
        }));
    }
    cases
}

type Damage = fn(Elf) -> Result<Vec<u8>>;

/// What is done to a guest's kernel, and what the complaint must say.
const DAMAGES: [(&str, Damage, &[&str]); 6] = [
    ("not-pvh", Elf::not_pvh, &["pvh"]),
    ("overlapping", Elf::overlapping, &["overlap"]),
    (
        "larger-than-memory",
        |elf| elf.larger_than(1 << 30),
        &["memory"],
    ),
    ("entry-outside", Elf::entry_outside, &["entry"]),
    ("truncated", Elf::truncated, &["file"]),
    (
        "no-elf",
        |_| Ok(b"#!/bin/sh\necho hello\n".to_vec()),
        &["elf"],
    ),
];

/// A bundle with this guest list and the kernels `idle-timer` and `smp`.
fn good_bundle(lab: &Lab<'_>, list: &str) -> Result<Bundle> {
    let mut bundle = Bundle::of_list(list);
    for name in ["idle-timer", "smp"] {
        bundle.add(name, fs::read(&lab.context.built.guest(name)?.path)?);
    }
    Ok(bundle)
}

/// There is nothing to run: a complaint, and an end that says so.
fn refused(rig: Rig<'_>, place: &str, texts: &[&str]) -> Result<()> {
    // No `for=`: that asks for a run without guests.
    let ran = rig.run()?;
    ran.complains(place, texts)?
        .ended_with("bad-input", exit::BAD_INPUT)?
        .adds_up()?;
    Ok(())
}

/// A bad line of the guest list is left out with a complaint; the guest of the good line runs.
fn others_run(lab: &Lab<'_>, list: &str, bad: &str, texts: &[&str]) -> Result<()> {
    let ran = lab
        .rig("run")
        .bundle(good_bundle(lab, list)?.to_bytes()?)
        .run()?;
    let place = if ran
        .channel()
        .problems()
        .any(|problem| problem.place == "guest")
    {
        "guest"
    } else {
        "bundle"
    };
    ran.complains(place, texts)?.passed("idle-timer")?;
    ensure!(
        !ran.channel()
            .guests()
            .any(|guest| guest.name == bad && guest.event == "start"),
        "{bad} was started"
    );
    // A guest that was asked for did not run: that is no success.
    ran.ended_with("bad-input", exit::BAD_INPUT)?;
    Ok(())
}

fn damaged_elf(lab: &Lab<'_>, damage: Damage, texts: &[&str]) -> Result<()> {
    let elf = fs::read(&lab.context.built.guest("smp")?.path)?;
    let mut bundle = good_bundle(lab, "bad\nidle-timer\n")?;
    bundle.add("bad", damage(Elf(elf))?);
    let ran = lab.rig("run").bundle(bundle.to_bytes()?).run()?;
    let mut texts = texts.to_vec();
    texts.push("bad");
    ran.complains("guest", &texts)?.passed("idle-timer")?;
    ran.ended_with("bad-input", exit::BAD_INPUT)?;
    Ok(())
}

/// Without SVM and VMX guests cannot run, but the machine idles and counts.
fn no_virtualization(lab: &Lab<'_>) -> Result<()> {
    let ran = lab
        .rig("run")
        .cpu("max,-svm")
        .guest("idle-timer")
        .word("keep")
        .word("for=3")
        .run()?;
    ran.complains("cpu", &["svm"])?
        .ended_with("bad-input", exit::BAD_INPUT)?
        .adds_up()?;
    let boot = ran.channel().boot().context("no `boot`")?;
    ensure!(
        boot.virt.is_none() && boot.virt_why.as_deref().is_some_and(|why| !why.is_empty()),
        "{boot:?}"
    );
    for cpu in &ran.last_reading()?.cpus {
        let all = &cpu.counters;
        ensure!(
            all.residency() > 2 * boot.tsc_hz,
            "CPU {} did not idle: {all:?}",
            cpu.cpu
        );
    }
    Ok(())
}

/// An option about a CPU or a leaf that is not there is named; what else it says holds.
fn about_absent_things(lab: &Lab<'_>) -> Result<()> {
    let words = [
        "latency=20:0-7",
        "cpuid=9:eax=1",
        "mwait-idle.table=C6:20:400:x",
    ];
    let mut rig = lab.rig("run").guest("idle-timer");
    for word in words {
        rig = rig.word(word);
    }
    let ran = rig.run()?;
    ran.complains("cmdline", &["latency", "20us for CPUs 4-7"])?
        .complains("cmdline", &["cpuid", "leaf 0x9"])?
        .complains("cmdline", &["`x` is ignored"])?
        .ok()?
        .passed("idle-timer")?;
    Ok(())
}

/// An option that is not understood is named and ignored: the run is as without it.
fn option_is_ignored(lab: &Lab<'_>, word: &str) -> Result<()> {
    let ran = lab.rig("run").guest("idle-timer").word(word).run()?;
    ran.complains("cmdline", &[word])?
        .ok()?
        .passed("idle-timer")?;
    ensure!(
        ran.channel().problems().any(|problem| problem
            .expected
            .as_deref()
            .is_some_and(|text| !text.is_empty())),
        "it does not say what is expected"
    );
    Ok(())
}

fn too_little_memory(lab: &Lab<'_>) -> Result<()> {
    let ran = lab.rig("run").mem("16M").guest("idle-timer").run()?;
    ensure!(
        ran.channel()
            .problems()
            .any(|problem| format!("{} {}", problem.name, problem.why).contains("memory")),
        "no complaint about memory ({})",
        ran.ended.how()
    );
    ran.ended_with("bad-input", exit::BAD_INPUT)?;
    Ok(())
}

/// There is nothing to run on, not even for the code that ends machines: it is said all the same, and nobody waits.
fn no_64_bit_mode(lab: &Lab<'_>) -> Result<()> {
    let ran = lab.rig("run").cpu("qemu32").guest("idle-timer").run()?;
    no_64_bit(&ran)
}

fn no_64_bit_mode_bochs(lab: &Lab<'_>) -> Result<()> {
    no_64_bit(&lab.bochs("run", "atom_n270").run()?)
}

fn no_64_bit(ran: &Ran) -> Result<()> {
    ran.ended_with("bad-input", exit::BAD_INPUT)?;
    let said = ran.console.contains("this CPU has no 64-bit mode");
    ensure!(said, "the console says: {}", ran.console);
    Ok(())
}

/// A CPU that never answers is reported, and the machine goes on without it.
fn absent_ap(lab: &Lab<'_>) -> Result<()> {
    let ran = lab
        .rig("run")
        .guest("idle-timer")
        .guest("ipi-pair")
        .word("test.absent-ap=2")
        // Counting instructions, the wait for the answer costs many times its length.
        .word("ap-timeout-ms=20")
        .run()?;
    ran.ok()?
        .passed("idle-timer")?
        .passed("ipi-pair")?
        .complains("cpu", &["2"])?;
    let boot = ran.channel().boot().context("no `boot`")?;
    ensure!(boot.cpus == 3 && boot.cpus_failed == [2], "{boot:?}");
    Ok(())
}

/// CPUs that the MADT lists as not enabled are named, and not waited for.
fn disabled_cpus(lab: &Lab<'_>) -> Result<()> {
    let ran = lab
        .rig("run")
        .cpus(2)
        .disabled_cpus(2)
        .guest("idle-timer")
        .run()?;
    ran.ok()?
        .passed("idle-timer")?
        .complains("firmware", &["not started"])?;
    let boot = ran.channel().boot().context("no `boot`")?;
    ensure!(boot.cpus == 2 && boot.cpus_failed.is_empty(), "{boot:?}");
    Ok(())
}

/// An exception or a panic of the hypervisor stops the machine with a backtrace that has names.
fn crash(lab: &Lab<'_>, kind: &str) -> Result<()> {
    let ran = lab
        .rig("run")
        .guest("idle-timer")
        .word(&format!("test.crash={kind}"))
        .run()?;
    ran.ended_with("panic", exit::PANIC)?;
    // A panic says where it was; an exception shows the registers.
    let said = if kind == "panic" {
        "panic on cpu0 at "
    } else {
        "rip"
    };
    ensure!(ran.console.contains(said), "`{said}` is not on the console");
    ensure!(
        ran.console.contains("lull::init::"),
        "no names in the backtrace on the console"
    );
    Ok(())
}
