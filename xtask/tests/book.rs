//! The book says what the code does, where a machine can tell.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use lull_core::cstate::{
    errata::Errata,
    models::{Identity, MODELS, Quirks, Vendor},
};
use lull_core::options::OPTIONS;

fn book() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/src")
}

fn page(name: &str) -> String {
    fs::read_to_string(book().join(name)).unwrap()
}

#[test]
fn the_command_line_page_has_a_row_for_each_option_and_no_other() {
    let page = page("command-line.md");
    let rows: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("| `"))
        .collect();
    let expected: Vec<String> = OPTIONS
        .iter()
        .map(|option| {
            let cell = |text: &str| text.replace('|', "\\|");
            format!("| `{}` | {} |", cell(&option.form()), cell(option.help))
        })
        .collect();
    assert_eq!(rows, expected);
}

/// The rows of the page on C-states that begin with this name, and the models in it, `06_55` and so on.
fn models_in_row(page: &str, name: &str) -> Vec<(u16, u8)> {
    let row = page
        .lines()
        .find(|line| line.starts_with(&format!("| `{name}` |")))
        .unwrap_or_else(|| panic!("no row for {name}"));
    let models = row.split('|').nth(2).unwrap().split_whitespace();
    let number = |text| u16::from_str_radix(text, 16).unwrap();
    models
        .filter_map(|model| model.split_once('_'))
        .map(|(family, model)| (number(family), number(model) as u8))
        .collect()
}

#[test]
fn the_page_on_cstates_has_every_quirk_and_erratum_with_its_models_and_no_other() {
    let page = page("cstates.md");
    let mut rows = page.lines().filter(|line| line.starts_with("| `")).count();
    for (name, quirk) in Quirks::all().iter_names() {
        let models: Vec<(u16, u8)> = MODELS
            .iter()
            .filter(|model| model.quirks.contains(quirk))
            .map(|model| (model.family, model.model))
            .collect();
        assert!(!models.is_empty(), "nobody has {name}");
        assert_eq!(models_in_row(&page, name), models, "{name}");
        rows -= 1;
    }
    for (name, erratum) in Errata::all().iter_names() {
        let has = |model: &u8| {
            Errata::of(&Identity {
                vendor: Vendor::Intel,
                family: 6,
                model: *model,
                stepping: 0,
            })
            .contains(erratum)
        };
        let models: Vec<(u16, u8)> = (0..=0xFF).filter(has).map(|model| (6, model)).collect();
        assert_eq!(models_in_row(&page, name), models, "{name}");
        rows -= 1;
    }
    assert_eq!(rows, 0, "a row is about nothing that there is");
}

/// All that is Rust below the folder.
fn sources(folder: &Path, all: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn each_test_on_the_page_of_rules_is_there() {
    let mut code = String::new();
    for folder in ["../hypervisor/core/src", "../hypervisor/src", "src"] {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder);
        sources(&folder, &mut code);
    }
    let list = std::process::Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["test", "--list"])
        .output()
        .unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let cases: Vec<&str> = list.lines().collect();
    let page = page("rules.md");
    let mut rules = 0;
    for row in page.lines().filter(|line| line.starts_with("| ")).skip(1) {
        let held_by = row.split(" | ").nth(1).unwrap();
        if held_by.starts_with("held by") {
            continue;
        }
        let names: Vec<&str> = held_by.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "nothing holds {row}");
        for name in names {
            let there = if name.contains('/') {
                cases.contains(&name)
            } else {
                let function = format!("fn {name}(");
                let mut places = code.match_indices(&function);
                places.any(|(at, _)| code[..at].trim_end().ends_with("#[test]"))
            };
            assert!(there, "there is no test {name}: {row}");
        }
        rules += 1;
    }
    assert!(rules > 60, "only {rules} rules were found on the page");
}

#[test]
fn every_page_is_in_the_summary_and_every_link_of_the_book_leads_somewhere() {
    let summary = page("SUMMARY.md");
    for entry in fs::read_dir(book()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.ends_with(".md") || name == "SUMMARY.md" {
            continue;
        }
        assert!(
            summary.contains(&format!("({name})")),
            "{name} is not in the summary"
        );
    }
    for entry in fs::read_dir(book()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        for link in page(&name).split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap();
            if target.ends_with(".md") {
                assert!(
                    book().join(target).exists(),
                    "{name} links to {target}, which is not there"
                );
            }
        }
    }
}

#[test]
fn the_simulator_page_names_every_option_kind_fault_and_break() {
    use lull_sim::machine::{faults, load::Kind, states::Entry, violation::Rule};
    let page = page("simulator.md");
    let help = std::process::Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["sim", "--help"])
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let options = help.lines().filter_map(|line| {
        let option = line.trim_start().strip_prefix("--")?;
        option.split([' ', '\n']).next()
    });
    let mut count = 0;
    for option in options {
        count += 1;
        assert!(
            page.contains(&format!("--{option}")),
            "--{option} is not on the page"
        );
    }
    assert!(count > 15, "{help}");
    let names = Kind::ALL.map(Kind::name).into_iter();
    let names = names.chain(faults::Fault::ALL.iter().map(|fault| fault.name()));
    let names = names.chain(faults::Broken::ALL.iter().map(|broken| broken.name()));
    for name in names
        .chain(Entry::ALL.map(Entry::name))
        .chain(Rule::ALL.map(Rule::name))
    {
        assert!(
            page.contains(&format!("`{name}`")),
            "`{name}` is not on the page"
        );
    }
}
