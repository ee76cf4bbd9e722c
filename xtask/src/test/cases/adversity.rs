//! What guests seldom do: the same verdict bare and on Lull; and nothing of one guest is seen by another.

use std::{collections::BTreeSet, fs, time::Duration};

use anyhow::{Result, ensure};

use crate::{
    test::{case::Case, case::Lab},
    workspace,
};

pub fn cases() -> Vec<Case> {
    vec![
        Case::icount("adversity/departures-are-documented", departures),
        Case::icount("adversity/halt-with-interrupts-off", dead_halt),
        Case::icount("adversity/cmpxchg16b-on-the-apic-page", wide_access),
        Case::icount("adversity/xapic", |lab| {
            let guest = "adversity,cmdline=\"apic=x\"";
            lab.rig("run")
                .guest(guest)
                .limit(180)
                .run()?
                .ok()?
                .passed("adversity")?;
            Ok(())
        }),
        Case::bochs("adversity/bochs-vmx", |lab| {
            let rig = lab.bochs("run", "corei7_skylake_x").cpus(1);
            let ran = rig.guest("adversity,cmdline=\"below=bochs\"")?.run()?;
            ran.passed("adversity")?;
            Ok(())
        }),
        Case::icount("adversity/marks-on-one-cpu", |lab| marks(lab, 1)),
        Case::real_time("adversity/marks-on-two-cpus", |lab| marks(lab, 2)),
    ]
}

/// Each check that departs from the manuals on bare QEMU stands in the book's table, by the beginning of its name.
fn departures(lab: &Lab<'_>) -> Result<()> {
    let kernel = lab.context.built.guest("adversity")?;
    let ran = lab
        .rig("bare")
        .kernel(kernel.path.clone())
        .cpus(1)
        .mem("128M")
        .limit(180)
        .run()?;
    let said = fs::read_to_string(lab.dir.join("bare.channel.jsonl"))?;
    ensure!(
        said.lines().any(|line| line == "PASS"),
        "no PASS ({}):\n{said}",
        ran.ended.how()
    );
    let book = fs::read_to_string(workspace::root().join("docs/src/guests.md"))?;
    let listed: BTreeSet<&str> = book
        .split_once("## Where emulators depart")
        .map_or("", |(_, section)| section)
        .split('`')
        .filter_map(|word| word.strip_suffix('*').or(Some(word)))
        .filter(|word| !word.is_empty())
        .collect();
    for line in said
        .lines()
        .filter_map(|line| line.strip_prefix("departs "))
    {
        let name = line.split_once(':').map_or(line, |(name, _)| name);
        let short = name.strip_prefix("reserved.").unwrap_or(name);
        let known = listed.iter().any(|word| {
            name.starts_with(word)
                || short.starts_with(word)
                || word
                    .strip_prefix('*')
                    .is_some_and(|end| name.ends_with(end))
        });
        ensure!(known, "the book does not name this departure: {line}");
    }
    Ok(())
}

/// HLT with interrupts off, on the only vCPU: the guest is ended, and the report says why.
fn dead_halt(lab: &Lab<'_>) -> Result<()> {
    let guest = "adversity,cmdline=\"test=virt end=halt\"";
    let ran = lab.rig("run").guest(guest).run()?;
    let end = ran.ok()?.passed("adversity")?.end_of("adversity")?;
    let reason = end.reason.as_deref().unwrap_or_default();
    ensure!(
        reason.contains("halted with interrupts off"),
        "the report says {reason:?}"
    );
    Ok(())
}

/// LOCK CMPXCHG16B on the page of the APIC: the guest is ended by name, and another one runs on.
fn wide_access(lab: &Lab<'_>) -> Result<()> {
    let ran = lab
        .rig("run")
        .guest("adversity,cmdline=\"test=virt end=cx16 apic=x\"")
        .guest("idle-timer")
        .run()?;
    let end = ran
        .ok()?
        .passed("adversity")?
        .passed("idle-timer")?
        .end_of("adversity")?;
    let reason = end.reason.as_deref().unwrap_or_default().to_lowercase();
    ensure!(reason.contains("cmpxchg16b"), "the report says {reason:?}");
    Ok(())
}

/// Guests that fill all with marks, and guests that look for them, preempt each other.
fn marks(lab: &Lab<'_>, cpus: u32) -> Result<()> {
    let guests = [
        "fill,kernel=marks,cmdline=\"role=fill for-ms=300\"",
        "look,kernel=marks,cmdline=\"role=look for-ms=300\"",
        "again,kernel=marks,cmdline=\"role=fill for-ms=100\"",
    ];
    let rig = guests
        .iter()
        .fold(lab.rig("run"), |rig, guest| rig.guest(guest));
    let ran = rig
        .cpus(cpus)
        .limit(Duration::from_secs(120).as_secs())
        .run()?;
    ran.ok()?.passed("fill")?.passed("look")?.passed("again")?;
    Ok(())
}
