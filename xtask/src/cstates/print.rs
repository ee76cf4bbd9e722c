//! Answers as text and as JSON.

use super::Question;
use super::firmware::Said;
use anyhow::Result;
use lull_core::cstate::models::{MODELS, Model, Vendor};
use lull_core::cstate::select::{Considered, MsrWrite, Scope, Selected, Verdict, When};
use lull_core::cstate::{CStateFlags, EntryMethod};
use lull_core::idle::MonitorTrust;
use serde::Serialize;
use std::fmt::Write;

/// What a reader of the JSON finds.
#[derive(Serialize)]
struct Answer {
    v: u32,
    cpu: Cpu,
    assumed: Vec<String>,
    /// What the firmware's code said, as on the machine channel, and what is wrong with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    acpi_cst: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<Wrong>,
    notes: Vec<String>,
    states: Vec<State>,
    msr_writes: Vec<Msr>,
    safe: String,
    park: String,
    stores_wake: bool,
    flush_before_monitor: bool,
    take_cst: Option<u8>,
    hpet_stops: bool,
    tsc_unstable: bool,
}

#[derive(Serialize)]
struct Wrong {
    name: String,
    why: String,
    expected: String,
}

#[derive(Serialize)]
struct Cpu {
    vendor: String,
    family: u16,
    model: u8,
    stepping: u8,
    name: Option<&'static str>,
}

#[derive(Serialize)]
struct State {
    name: &'static str,
    method: String,
    class: u32,
    exit_latency_us: u64,
    target_residency_us: u64,
    flags: Vec<String>,
    verdict: &'static str,
    why: String,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct Msr {
    msr: u32,
    clear: u64,
    set: u64,
    scope: &'static str,
    when: &'static str,
    after_days: Option<u32>,
    why: String,
}

#[derive(Serialize)]
struct Listed {
    family: u16,
    model: u8,
    name: &'static str,
    table: Option<&'static str>,
    source: Option<&'static str>,
    states: Vec<&'static str>,
    quirks: Vec<String>,
}

fn names(flags: impl Iterator<Item = &'static str>) -> Vec<String> {
    flags
        .map(|name| name.to_ascii_lowercase().replace('_', "-"))
        .collect()
}

fn flag_names(flags: CStateFlags) -> Vec<String> {
    names(flags.iter_names().map(|(name, _)| name))
}

fn lines<T: ToString>(items: &[T]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

const fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Used(_) => "used",
        Verdict::Off(_) => "off",
        Verdict::Dropped(_) => "dropped",
    }
}

fn why(verdict: Verdict) -> String {
    match verdict {
        Verdict::Used(why) => why.to_string(),
        Verdict::Off(why) => why.to_string(),
        Verdict::Dropped(why) => why.to_string(),
    }
}

fn state(one: &Considered) -> State {
    State {
        name: one.state.name,
        method: one.state.method.to_string(),
        class: one.class,
        exit_latency_us: one.state.exit_latency.get(),
        target_residency_us: one.state.target_residency.get(),
        flags: flag_names(one.state.flags),
        verdict: word(one.verdict),
        why: why(one.verdict),
        notes: lines(&one.notes),
    }
}

fn msr(write: &MsrWrite) -> Msr {
    let (when, after_days) = match write.when {
        When::Start => ("start", None),
        When::StartAndAcpiEnable => ("start-and-acpi-enable", None),
        When::AfterDays(days) => ("after-days", Some(days)),
    };
    Msr {
        msr: write.msr,
        clear: write.clear,
        set: write.set,
        scope: match write.scope {
            Scope::EveryCpu => "every-cpu",
            Scope::BootCpu => "boot-cpu",
        },
        when,
        after_days,
        why: write.why.to_string(),
    }
}

/// One answer as JSON.
///
/// # Errors
/// Never, in practice: all of it can be written as JSON.
pub fn json(question: &Question, said: Option<&Said>, selected: &Selected) -> Result<String> {
    let id = question.cpu.identity;
    let asked = question.problems.iter().map(|problem| Wrong {
        name: problem.word.clone(),
        why: problem.why.clone(),
        expected: problem.expected.clone(),
    });
    let problems = said.iter().flat_map(|said| said.problems());
    let problems = problems.map(|problem| Wrong {
        name: problem.name.clone(),
        why: problem.why.clone(),
        expected: problem.expected.clone(),
    });
    let answer = Answer {
        v: 1,
        cpu: Cpu {
            vendor: id.vendor.to_string(),
            family: id.family,
            model: id.model,
            stepping: id.stepping,
            name: id.model_record().map(|model| model.name),
        },
        assumed: question.assumed.clone(),
        acpi_cst: said.map(Said::json).transpose()?,
        problems: asked.chain(problems).collect(),
        notes: lines(&selected.notes),
        states: selected.considered.iter().map(state).collect(),
        msr_writes: selected.msr_writes.iter().map(msr).collect(),
        safe: selected.safe().method.to_string(),
        park: selected.parking.method.to_string(),
        stores_wake: stores_wake(selected),
        flush_before_monitor: selected.flush_before_monitor,
        take_cst: selected.take_cst,
        hpet_stops: selected.hpet_stops,
        tsc_unstable: selected.tsc_unstable,
    };
    Ok(serde_json::to_string_pretty(&answer)? + "\n")
}

/// Is there a state in which a store wakes? A poll is none: nobody asks whether it ends.
fn stores_wake(selected: &Selected) -> bool {
    let watches = |one: &Considered| {
        one.verdict.is_usable() && matches!(one.state.method, EntryMethod::Mwait { .. })
    };
    selected.monitor == MonitorTrust::SeesStores && selected.considered.iter().any(watches)
}

/// One answer for people: the states in columns, then why.
pub fn text(question: &Question, said: Option<&Said>, selected: &Selected) -> String {
    let id = question.cpu.identity;
    let mut out = String::new();
    match id.model_record() {
        Some(model) => {
            let _ = writeln!(out, "{id} ({})", model.name);
        }
        None => {
            let _ = writeln!(out, "{id}");
        }
    }
    let _ = writeln!(out, "assumed: {}", question.assumed.join("; "));
    for problem in &question.problems {
        let _ = writeln!(out, "problem: {problem}");
    }
    for line in said.iter().flat_map(|said| said.lines()) {
        let _ = writeln!(out, "{line}");
    }
    for note in &selected.notes {
        let _ = writeln!(out, "- {note}");
    }
    let _ = writeln!(
        out,
        "\n{:8} {:8} {:15} {:>10} {:>12}  why",
        "", "state", "entered by", "latency us", "residency us"
    );
    for one in &selected.considered {
        let mut words = vec![why(one.verdict)];
        words.extend(lines(&one.notes));
        let _ = writeln!(
            out,
            "{:8} {:8} {:15} {:>10} {:>12}  {}",
            word(one.verdict),
            one.state.name,
            one.state.method.to_string(),
            one.state.exit_latency.get(),
            one.state.target_residency.get(),
            words.join("; ")
        );
        let flags = flag_names(one.state.flags);
        if one.verdict.is_usable() && !flags.is_empty() {
            let _ = writeln!(out, "{:60}flags: {}", "", flags.join(" "));
        }
    }
    let _ = writeln!(out);
    for write in &selected.msr_writes {
        let _ = writeln!(out, "{write}");
    }
    if let Some(control) = selected.take_cst {
        let _ = writeln!(out, "SMI_CMD: write {control:#x} once, to take _CST over");
    }
    if selected.flush_before_monitor {
        let _ = writeln!(out, "CLFLUSH the wake word before MONITOR");
    }
    let elided = match selected.monitor {
        MonitorTrust::SeesStores if stores_wake(selected) => {
            "a store to the wake word ends MWAIT: no IPI is sent"
        }
        MonitorTrust::SeesStores => {
            "no state that is used watches the wake word: the IPI is always sent"
        }
        MonitorTrust::MissesStores => "stores may not end MWAIT: the IPI is always sent",
    };
    let _ = writeln!(out, "wake: {elided}");
    let _ = writeln!(out, "urgent and in-service: {}", selected.safe().method);
    let park = selected.parking.method;
    let _ = writeln!(out, "offline CPUs: {park}");
    out
}

fn listed(model: &Model) -> Listed {
    Listed {
        family: model.family,
        model: model.model,
        name: model.name,
        table: model.table.map(|table| table.name),
        source: model.table.map(|table| table.source),
        states: model
            .table
            .iter()
            .flat_map(|table| table.states)
            .map(|state| state.name)
            .collect(),
        quirks: names(model.quirks.iter_names().map(|(name, _)| name)),
    }
}

/// All models with a record.
///
/// # Errors
/// Never, in practice: all of it can be written as JSON.
pub fn list(json: bool) -> Result<String> {
    let all: Vec<Listed> = MODELS.iter().map(listed).collect();
    if json {
        return Ok(serde_json::to_string_pretty(&all)? + "\n");
    }
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:6} {:6} {:20} {:8} states; quirks",
        "vendor", "model", "name", "table"
    );
    for one in &all {
        let _ = writeln!(
            out,
            "{:6} {:02X}_{:02X}  {:20} {:8} {}; {}",
            Vendor::Intel.to_string(),
            one.family,
            one.model,
            one.name,
            one.table.unwrap_or("-"),
            if one.states.is_empty() {
                "from _CST only".to_owned()
            } else {
                one.states.join(" ")
            },
            if one.quirks.is_empty() {
                "-".to_owned()
            } else {
                one.quirks.join(" ")
            }
        );
    }
    let _ = writeln!(
        out,
        "AMD families 17h, 19h and 1Ah, Hygon 18h: _CST, else C1 by MWAIT and C2 by HLT\n\
         all others: _CST, else P_BLK, else C1 only"
    );
    Ok(out)
}
