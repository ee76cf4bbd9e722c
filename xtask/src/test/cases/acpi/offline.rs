//! `cargo xtask cstates --acpi`: what it says of a table is what Lull says on a machine with that table.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{compile, rig, said, sound};
use crate::{
    channel::AcpiCst,
    process,
    test::case::{Case, Lab},
};

pub fn cases() -> Vec<Case> {
    vec![
        Case::icount("acpi/offline-equals-qemu", equals_qemu),
        Case::icount("acpi/offline-is-caged", caged),
        Case::icount("acpi/offline-bad-files", bad_files),
    ]
}

struct Answer {
    success: bool,
    json: Option<serde_json::Value>,
    stderr: String,
}

impl Answer {
    fn json(&self) -> Result<&serde_json::Value> {
        self.json
            .as_ref()
            .with_context(|| format!("no JSON; stderr: {}", self.stderr))
    }

    fn acpi_cst(&self) -> Result<AcpiCst> {
        let record = self.json()?["acpi_cst"].clone();
        serde_json::from_value(record).context("no `acpi_cst` in the answer")
    }

    fn complains(&self, name: &str, why: &str) -> Result<()> {
        let problems = self.json()?["problems"].clone();
        let found = problems.as_array().into_iter().flatten().any(|problem| {
            problem["name"] == name
                && problem["why"]
                    .as_str()
                    .is_some_and(|said| said.contains(why))
        });
        ensure!(found, "no problem of {name} says `{why}`: {problems}");
        Ok(())
    }
}

/// Asks about tables of `hypervisor/tests/acpi`, on a client CPU without a table of its own.
fn ask(lab: &Lab<'_>, tables: &[&str], words: &[&str]) -> Result<Answer> {
    let xtask = std::env::current_exe().context("xtask does not find itself")?;
    let mut command = Command::new(xtask);
    command
        .args(["cstates", "--model", "0x8c", "--json"])
        .args(words);
    for table in tables {
        let path = match table.strip_prefix('=') {
            Some(path) => path.into(),
            None => compile(lab, table)?,
        };
        command.arg("--acpi").arg(path);
    }
    let streams = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let (output, in_time) = process::output_of(streams, Vec::new(), Duration::from_secs(300))?;
    ensure!(in_time, "`cstates --acpi` hangs");
    Ok(Answer {
        success: output.status.success(),
        json: serde_json::from_slice(&output.stdout).ok(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// The same groups of processors with the same states, both when MWAIT is offered to the firmware and when it is not.
fn equals_qemu(lab: &Lab<'_>) -> Result<()> {
    const STYLES: [&str; 3] = ["laptop", "osc", "osc-refused"];
    for (tables, force) in [
        (&STYLES[..], false),
        (&STYLES, true),
        (&["amd", "broken"], false),
        (&["amd", "panic"], false),
    ] {
        let label = format!("{}-{force}", tables.join("-"));
        let mut machine = rig(lab, &label, tables)?;
        let mut words = vec!["--mwait", "never-sleeps"];
        if force {
            machine = machine.word("force-mwait");
            words.extend(["--cmdline", "force-mwait"]);
        }
        let ran = sound(machine)?;
        let files: Vec<&str> = ["cpus"].iter().chain(tables).copied().collect();
        let answer = ask(lab, &files, &words)?;
        let (there, here) = (said(&ran)?, answer.acpi_cst()?);
        ensure!(
            *there == here,
            "{label}: QEMU says {there:?}, the files {here:?}"
        );
        let complaints = ran.channel().problems().filter(|p| p.place == "firmware");
        for problem in complaints {
            answer.complains(&problem.name, &problem.why)?;
        }
        ensure!(
            answer.success != tables.contains(&"panic"),
            "{label}: {}",
            answer.stderr
        );
    }
    Ok(())
}

/// Whatever the code does to itself, there is an answer, a named reason and an exit code.
fn caged(lab: &Lab<'_>) -> Result<()> {
    for (table, place, why) in [
        ("panic", r"\_PR_.CPU0._PDC", "panic: "),
        ("loop", r"\_PR_.CPU0._CST", "not ready within 2000 ms"),
        ("glutton", r"\_PR_.CPU0._CST", "used up its 262144 KiB"),
        ("nesting", r"\_PR_.CPU0._CST", "overflowed its stack"),
    ] {
        let answer = ask(lab, &[table], &[])?;
        answer.complains(place, why)?;
        ensure!(
            !answer.success && answer.stderr.contains(why),
            "{table}: expected a failure that says `{why}`: {}",
            answer.stderr
        );
        let states = answer.json()?["states"].as_array().map_or(0, Vec::len);
        ensure!(states >= 2, "{table}: no states in {:?}", answer.json);
    }
    Ok(())
}

/// Files that are none, are damaged or are incomplete are named.
fn bad_files(lab: &Lab<'_>) -> Result<()> {
    let intel = compile(lab, "intel")?;
    let whole = std::fs::read(&intel)?;
    let write = |name: &str, bytes: &[u8]| -> Result<String> {
        let path = lab.dir.join(name);
        std::fs::write(&path, bytes)?;
        Ok(format!("={}", path.display()))
    };
    let text = write("text.aml", b"not a table")?;
    let source = write("source.asl", b"DefinitionBlock")?;
    for (file, why) in [
        (text.as_str(), "is no ACPI table that counts here"),
        (&source, "is a source: compile it first"),
        ("=/nonexistent", "cannot read /nonexistent"),
    ] {
        let answer = ask(lab, &[file], &[])?;
        ensure!(
            !answer.success && answer.json.is_none() && answer.stderr.contains(why),
            "{file}: expected `{why}`: {}",
            answer.stderr
        );
    }
    let mut wrong = whole.clone();
    if let Some(byte) = wrong.last_mut() {
        *byte ^= 1;
    }
    let cut = whole.get(..whole.len() / 2).unwrap_or_default();
    for (name, bytes, why) in [
        ("wrong.aml", wrong.as_slice(), "wrong checksum"),
        ("cut.aml", cut, "are not all memory"),
    ] {
        let answer = ask(lab, &[&write(name, bytes)?], &[])?;
        answer.complains("SSDT", why)?;
        ensure!(
            answer.acpi_cst()?.state == "none",
            "{name}: {:?}",
            answer.json
        );
    }
    // A table that refers to the DSDT's processors, without the DSDT.
    let answer = ask(lab, &["amd"], &[])?;
    answer.complains("SSDT 1", r"there is no \_SB_.CPUS")?;
    let assumed = answer.json()?["assumed"].to_string();
    ensure!(assumed.contains("no DSDT"), "{assumed}");
    Ok(())
}
