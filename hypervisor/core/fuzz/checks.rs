//! What must hold for any bytes that are read as something that a person types. A check that fails panics.
//!
//! Used by the fuzz targets, and by the test `mutations`, which needs no fuzzer.

use lull_core::command::{Command, Edit, LineEditor, MAX_LINE};
use lull_core::cstate::MAX_STATES;
use lull_core::cstate::models::{Identity, MODELS, Vendor};
use lull_core::cstate::select::{
    CpuFacts, MAX_EDIT_LATENCY, MAX_EDIT_RESIDENCY, MwaitLeaf, MwaitTest, Query, Selected, select,
};
use lull_core::guests_txt::{GuestConfig, GuestList};
use lull_core::options::{Options, Problem};

/// The hypervisor's command line: never fails, names what is wrong in one line, and leaves options that states can be chosen
/// with.
pub fn options(data: &[u8]) {
    let line = String::from_utf8_lossy(data);
    let (options, problems) = Options::parse(&line);
    problems.iter().for_each(one_line);
    assert!(problems.len() <= line.split_whitespace().count());
    // The model is as arbitrary as the rest.
    let model = data
        .iter()
        .fold(0, |sum: usize, byte| sum + usize::from(*byte))
        % MODELS.len();
    sound(&chosen(model, &options));
}

/// The guest list: a good line says what it was read as, a bad one is named with its number.
pub fn guests(data: &[u8]) {
    let list = GuestList::parse(data);
    let lines = data.split(|byte| *byte == b'\n').count();
    assert!(list.guests.len() <= lines);
    for guest in &list.guests {
        assert_eq!(GuestConfig::from_line(&guest.to_line()).as_ref(), Ok(guest));
    }
    for problem in &list.problems {
        assert!((1..=lines).contains(&problem.line));
        one_line(&problem.problem);
    }
    if let Ok(text) = core::str::from_utf8(data) {
        // The form with commas, which needs no file.
        if let Ok(guest) = GuestConfig::from_commas(text) {
            assert_eq!(GuestConfig::from_line(&guest.to_line()), Ok(guest));
        }
    }
}

/// Commands, byte by byte as they are typed: a line that was read is shown as it would be read again.
pub fn commands(data: &[u8]) {
    let mut editor = LineEditor::new();
    let mut lines = Vec::new();
    for &byte in data {
        if let Edit::Done(line) = editor.take(byte) {
            lines.push(line);
        }
        assert!(editor.line().len() <= MAX_LINE);
    }
    lines.push(String::from_utf8_lossy(data).into_owned());
    for line in lines {
        match Command::parse(&line) {
            Ok(command) => assert_eq!(Command::parse(&command.to_string()), Ok(command)),
            Err(problem) => one_line(&problem),
        }
    }
}

/// `mwait-idle.table=`, for a model that the first byte names: what comes out can be used, and no figure is out of bounds.
pub fn edits(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let text = String::from_utf8_lossy(rest);
    let word: String = text.split_whitespace().collect();
    let (options, problems) = Options::parse(&format!("mwait-idle.table={word}"));
    problems.iter().for_each(one_line);
    let model = usize::from(*first) % MODELS.len();
    let edited = chosen(model, &options);
    let plain = chosen(model, &Options::default());
    sound(&edited);
    assert_eq!(edited.considered.len(), plain.considered.len());
    for (new, old) in edited.considered.iter().zip(&plain.considered) {
        assert_eq!(new.state.name, old.state.name);
        let changed = new.state.exit_latency != old.state.exit_latency
            || new.state.target_residency != old.state.target_residency;
        let asked = options
            .cstates
            .edits
            .iter()
            .any(|edit| edit.name == new.state.name);
        assert!(
            asked || !changed,
            "{} was changed, and nobody asked",
            new.state.name
        );
        if new.state.exit_latency != old.state.exit_latency {
            assert!(new.state.exit_latency <= MAX_EDIT_LATENCY);
        }
        if new.state.target_residency != old.state.target_residency {
            assert!(new.state.target_residency <= MAX_EDIT_RESIDENCY);
        }
    }
}

/// What a model with every sub-state gets.
fn chosen(model: usize, options: &Options) -> Selected {
    let record = &MODELS[model];
    let identity = Identity {
        vendor: Vendor::Intel,
        family: record.family,
        model: record.model,
        stepping: 0,
    };
    let facts = CpuFacts {
        identity,
        monitor: true,
        clflush: true,
        arat: true,
        nonstop_tsc: true,
        mwait: MwaitLeaf::from_registers(64, 64, 3, 0x1111_1111),
        test: MwaitTest::PASSED,
        ..CpuFacts::default()
    };
    select(&Query::new(facts, options.idle, &options.cstates))
}

/// There is always a state to enter, and never more than fit.
fn sound(selected: &Selected) {
    assert!((1..=MAX_STATES).contains(&selected.usable.count()));
    assert!((1..=MAX_STATES).contains(&selected.table.count()));
    for one in &selected.considered {
        assert!(!one.to_string().contains('\n'));
    }
    for note in &selected.notes {
        assert!(!note.to_string().contains('\n'));
    }
}

fn one_line(problem: &Problem) {
    let shown = problem.to_string();
    assert!(!shown.contains(['\n', '\r', '\x1b']), "{shown:?}");
    assert!(!problem.why.is_empty() && !problem.expected.is_empty());
}
