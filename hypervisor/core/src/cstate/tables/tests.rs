//! The const data against the published figures, kept as tables of text.

use super::*;
use crate::cstate::models::{MODELS, Quirks};
use std::collections::BTreeMap;
use std::string::{String, ToString};
use std::vec::Vec;

const LINUX_TSV: &str = include_str!("../vectors/linux.tsv");
const XEN_TSV: &str = include_str!("../vectors/xen.tsv");

/// The rows of a table of text, its header left out.
pub(crate) fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().skip(1).map(|line| line.split('\t').collect())
}

pub(crate) fn hex(text: &str) -> u64 {
    u64::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap()
}

/// The flags of a row, by the names that the file uses.
fn flags(text: &str) -> CStateFlags {
    text.split(',')
        .map(|name| match name {
            "-" => CStateFlags::empty(),
            "IRQ_ENABLE" => CStateFlags::IRQ_ENABLE,
            "TLB_FLUSHED" => CStateFlags::TLB_FLUSHED,
            "ALWAYS_ENABLE" => CStateFlags::ALWAYS_ENABLE,
            "UNUSABLE" | "DISABLED" => CStateFlags::UNUSABLE,
            "IBRS" => CStateFlags::CLEAR_SPEC_CTRL,
            "INIT_XSTATE" => CStateFlags::INIT_XSTATE,
            "PARTIAL_HINT_MATCH" => CStateFlags::PARTIAL_HINT_MATCH,
            other => panic!("{other}"),
        })
        .fold(CStateFlags::empty(), |all, flag| all | flag)
}

fn file(text: &str) -> BTreeMap<String, Vec<TableState>> {
    let mut tables: BTreeMap<String, Vec<TableState>> = BTreeMap::new();
    for row in rows(text) {
        let name: &'static str = row[1].to_string().leak();
        tables
            .entry(row[0].to_string())
            .or_default()
            .push(TableState {
                name,
                hint: MwaitHint::new(hex(row[2]) as u32),
                flags: flags(row[3]),
                exit_latency: Micros::new(row[4].parse().unwrap()),
                target_residency: Micros::new(row[5].parse().unwrap()),
            });
    }
    tables
}

#[test]
fn all_thirty_tables_are_as_linux_has_them() {
    let published = file(LINUX_TSV);
    assert_eq!(published.len(), 30);
    assert_eq!(published.values().map(Vec::len).sum::<usize>(), 132);
    let names: Vec<&str> = TABLES.iter().map(|table| table.name).collect();
    let mut sorted = names.clone();
    sorted.sort();
    assert!(sorted.iter().eq(published.keys()), "{sorted:?}");
    for table in TABLES {
        assert_eq!(table.states, published[table.name], "{}", table.name);
    }
}

#[test]
fn xen_has_the_same_figures_where_it_has_the_table() {
    /// Flags that Xen does not have.
    const LINUX_ONLY: CStateFlags = CStateFlags::ALWAYS_ENABLE
        .union(CStateFlags::INIT_XSTATE)
        .union(CStateFlags::PARTIAL_HINT_MATCH);
    let published = file(XEN_TSV);
    for table in TABLES {
        let Some(states) = published.get(table.name) else {
            assert!(["knl", "ptl"].contains(&table.name), "{}", table.name);
            assert_eq!(table.source, LINUX);
            continue;
        };
        assert_eq!(table.source, LINUX_XEN);
        let mine: Vec<TableState> = table
            .states
            .iter()
            .map(|state| TableState {
                flags: state.flags - LINUX_ONLY,
                ..*state
            })
            .collect();
        assert_eq!(&mine, states, "{}", table.name);
    }
    assert_eq!(published.len(), 28);
}

#[test]
fn every_table_fits_beside_poll_and_is_used_by_a_model() {
    let mut used: Vec<&str> = MODELS
        .iter()
        .filter_map(|model| Some(model.table?.name))
        .collect();
    let by_sockets = MODELS
        .iter()
        .any(|model| model.quirks.contains(Quirks::BY_SOCKETS));
    if by_sockets {
        used.extend(["ivt_4s", "ivt_8s"]);
    }
    for table in TABLES {
        assert!(
            table.states.len() < crate::cstate::MAX_STATES,
            "{}",
            table.name
        );
        assert!(used.contains(&table.name), "{}", table.name);
        assert_eq!(IdleTable::find(table.name), Some(table));
    }
    assert_eq!(IdleTable::find("c6"), None);
}

#[test]
fn early_interrupts_are_for_c1_of_skx_and_icx_alone_and_never_with_what_excludes_them() {
    let mut early = Vec::new();
    for table in TABLES {
        for state in table.states {
            if state.flags.contains(CStateFlags::IRQ_ENABLE) {
                early.push((table.name, state.name));
                let excluded = CStateFlags::CLEAR_SPEC_CTRL | CStateFlags::INIT_XSTATE;
                assert!(!state.flags.intersects(excluded));
            }
        }
    }
    early.sort();
    // Sapphire Rapids has it in neither project.
    assert_eq!(early, [("icx", "C1"), ("skx", "C1")]);
}

#[test]
fn figures_that_are_easily_got_wrong() {
    let find = |table: &str, name: &str| {
        let table = IdleTable::find(table).unwrap();
        let state = table.states.iter().find(|state| state.name == name);
        state
            .copied()
            .map(|s| (s.hint.eax(), s.exit_latency.get(), s.target_residency.get()))
    };
    // C1E is 10 us; one early table had C1's figure there.
    assert_eq!(find("nehalem", "C1E"), Some((0x01, 10, 20)));
    // The 99.99th percentile, not the median (128/384).
    assert_eq!(find("icx", "C6"), Some((0x20, 170, 600)));
    // The name never tells the hint.
    assert_eq!(find("knl", "C6").unwrap().0, 0x10);
    assert_eq!(find("atom", "C1E").unwrap().0, 0x00);
    assert_eq!(find("avn", "C6").unwrap().0, 0x51);
    assert_eq!(find("byt", "C6N").unwrap().0, 0x58);
    assert_eq!(find("byt", "C6S").unwrap().0, 0x52);
    assert_eq!(find("hsw", "C7s").unwrap().0, 0x32);
    assert_eq!(find("skl", "C7s").unwrap().0, 0x33);
    assert_eq!(find("bxt", "C7s").unwrap().0, 0x31);
    assert_eq!(find("srf", "C6S").unwrap().0, 0x22);
    assert_eq!(find("ptl", "C6S").unwrap().0, 0x21);
    // Granite Rapids-D differs from its big brother in figures alone.
    assert_eq!(find("gnrd", "C6"), Some((0x20, 220, 650)));
    assert_eq!(find("gnrd", "C6P"), Some((0x21, 240, 750)));
    assert_eq!(find("gnr", "C6P"), Some((0x21, 210, 1000)));
    // Meteor Lake has no C1 at all.
    assert_eq!(find("mtl_l", "C1"), None);
    // Oddities stay: a table is not monotonic.
    assert_eq!(find("byt", "C6N"), Some((0x58, 300, 275)));
    assert_eq!(find("snb", "C7").unwrap().2, find("snb", "C6").unwrap().2);
}

#[test]
fn a_substate_is_ignored_where_the_table_says_so_and_nowhere_by_analogy() {
    let partial: Vec<(&str, &str)> = TABLES
        .iter()
        .flat_map(|table| table.states.iter().map(|state| (table.name, state)))
        .filter(|(_, state)| state.flags.contains(CStateFlags::PARTIAL_HINT_MATCH))
        .map(|(table, state)| (table, state.name))
        .collect();
    let mut sorted = partial.clone();
    sorted.sort();
    assert_eq!(
        sorted,
        [
            ("gnr", "C6"),
            ("gnr", "C6P"),
            ("gnrd", "C6"),
            ("gnrd", "C6P"),
            ("srf", "C6S"),
            ("srf", "C6SP")
        ]
    );
}
