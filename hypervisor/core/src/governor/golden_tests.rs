//! The decisions that the original governors took, against the ones taken here.
//!
//! `tests/golden/` holds inputs (idle traces) and what the original code decided for them, row by row. A row is one idle
//! period; a poll that runs into its limit makes it several decisions. `LULL_GOLDEN=DIR` checks another directory of the
//! same shape as well.

use super::StateSet;
use super::haltpoll::HaltPoll;
use super::ladder::Ladder;
use super::menu::Menu;
use super::menu_xen::MenuXen;
use super::moment::{Decision, Moment, NO_LATENCY_LIMIT, Stay, Tick};
use super::teo::Teo;
use crate::cstate::{CState, CStateFlags, CStateTable, EntryMethod};
use crate::units::{Micros, Nanos};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// One idle period of a trace. Times in ns.
#[derive(Clone, Copy)]
struct Row {
    idle: i64,
    timer: i64,
    cause: char,
    busy: i64,
}

fn read_trace(path: &Path) -> Vec<Row> {
    let text = fs::read_to_string(path).unwrap();
    let rows = text.lines().skip(1).map(|line| {
        let mut fields = line.split('\t');
        let mut number = || fields.next().unwrap().parse().unwrap();
        let (idle, timer) = (number(), number());
        let cause = fields.next().unwrap().chars().next().unwrap();
        let busy = fields.next().unwrap().parse().unwrap();
        Row {
            idle,
            timer,
            cause,
            busy,
        }
    });
    rows.collect()
}

/// Exit latency and target residency of each state in us, POLL not among them.
fn table(name: &str) -> CStateTable {
    let figures: &[(u64, u64)] = match name {
        "skx" => &[(2, 2), (10, 20), (133, 600)],
        "skl" => &[
            (2, 2),
            (10, 20),
            (70, 100),
            (85, 200),
            (124, 800),
            (200, 800),
            (480, 5000),
            (890, 5000),
        ],
        "acpi" => &[(1, 2), (18, 36), (350, 700)],
        "hp" => &[(1, 1)],
        other => panic!("no table {other}"),
    };
    let states = figures.iter().map(|&(latency, residency)| CState {
        name: "C",
        method: EntryMethod::Halt,
        flags: CStateFlags::empty(),
        exit_latency: Micros::new(latency),
        target_residency: Micros::new(residency),
    });
    let all: Vec<_> = [CState::POLL].into_iter().chain(states).collect();
    CStateTable::new(&all).unwrap()
}

/// The states that the modes with disabled states leave out.
fn disabled(table_name: &str) -> &'static [usize] {
    match table_name {
        "skx" => &[0],
        "skl" => &[2, 5],
        "acpi" => &[0, 1, 3],
        other => panic!("no disabled states for {other}"),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Limit {
    None,
    Fixed,
    Changing,
}

impl Limit {
    fn at(self, row: usize) -> i64 {
        match (self, row / 50 % 4) {
            (Limit::None, _) | (Limit::Changing, 0) => NO_LATENCY_LIMIT,
            (Limit::Fixed, _) | (Limit::Changing, 1) => 50_000,
            (Limit::Changing, 2) => 5_000,
            (Limit::Changing, _) => 0,
        }
    }
}

/// The Linux governors, behind one face.
enum Linux {
    Menu(Menu),
    Teo(Teo),
    Ladder(Ladder),
    HaltPoll(HaltPoll),
}

impl Linux {
    fn new(name: &str, tick: Tick) -> Self {
        match name {
            "menu71" => Linux::Menu(Menu::new(tick)),
            "teo71" => Linux::Teo(Teo::new(tick)),
            "ladder" => Linux::Ladder(Ladder::default()),
            "haltpoll" => Linux::HaltPoll(HaltPoll::default()),
            other => panic!("no governor {other}"),
        }
    }

    fn decide(&mut self, moment: &Moment<'_>) -> Decision {
        match self {
            Linux::Menu(menu) => menu.decide(moment).0,
            Linux::Teo(teo) => teo.decide(moment),
            Linux::Ladder(ladder) => ladder.decide(moment),
            Linux::HaltPoll(haltpoll) => haltpoll.decide(moment),
        }
    }

    fn learn(&mut self, stay: Stay) {
        match self {
            Linux::Menu(menu) => menu.learn(stay),
            Linux::Teo(teo) => teo.learn(stay),
            Linux::Ladder(ladder) => ladder.learn(stay),
            Linux::HaltPoll(haltpoll) => haltpoll.learn(stay),
        }
    }

    fn refused(&mut self) {
        match self {
            Linux::Menu(menu) => menu.refused(),
            Linux::Ladder(ladder) => ladder.refused(),
            Linux::Teo(_) | Linux::HaltPoll(_) => {}
        }
    }

    fn poll_limit(&mut self, moment: &Moment<'_>) -> Nanos {
        let limit = match self {
            Linux::Menu(menu) => &mut menu.poll_limit,
            Linux::Teo(teo) => &mut teo.poll_limit,
            Linux::Ladder(ladder) => &mut ladder.poll_limit,
            Linux::HaltPoll(haltpoll) => &mut haltpoll.poll_limit,
        };
        limit.get(moment.table, moment.disabled)
    }
}

/// One string of decisions a row: a digit is the state, a letter the state with "keep the tick".
fn replay_linux(
    mode: &str,
    name: &str,
    table_name: &str,
    rows: &[Row],
    limit: Limit,
) -> Vec<String> {
    let table = table(table_name);
    let tick = if mode == "nostop" {
        Tick::Running
    } else {
        Tick::Stopped
    };
    let mut off = StateSet::NONE;
    if mode == "dis" {
        for &state in disabled(table_name) {
            off = off.with(table.id(state).unwrap(), true);
        }
    }
    let mut governor = Linux::new(name, tick);
    let mut now = 0;
    let mut decisions = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let (wake, timer) = (now + row.idle, now + row.timer);
        let mut taken = String::new();
        let mut time = now;
        loop {
            let moment = Moment {
                table: &table,
                disabled: off,
                latency_limit: limit.at(index),
                sleep_length: timer - time,
                next_event: timer - time,
                tick,
            };
            let decision = governor.decide(&moment);
            let first = if decision.stop_tick { b'0' } else { b'a' };
            taken.push((first + decision.state as u8) as char);
            if row.idle == 0 {
                governor.refused();
                break;
            }
            let mut stay = Stay {
                state: decision.state,
                residency: 0,
                poll_timed_out: false,
                got_tick: false,
            };
            if moment.polls(decision.state) {
                let longest = governor.poll_limit(&moment).get() as i64;
                stay.poll_timed_out = wake - time > longest;
                stay.residency = (wake - time).min(longest);
                time += stay.residency;
            } else {
                let latency = moment.latency(decision.state);
                let slept = wake - time;
                let latency = if mode == "res0" { 0 } else { latency };
                stay.residency = slept + latency;
                time = wake + latency;
            }
            governor.learn(stay);
            if time >= wake {
                break;
            }
        }
        decisions.push(taken);
        now = time + row.busy;
    }
    decisions
}

fn replay_xen(mode: &str, table_name: &str, rows: &[Row]) -> Vec<String> {
    let table = table(table_name);
    let mut governor = MenuXen::default();
    let mut now = 0;
    let mut decisions = Vec::new();
    for row in rows {
        let (state, _) = governor.decide(&table, |_| true, Some(row.timer), now as u64);
        decisions.push(state.to_string());
        let id = table.id(state).unwrap();
        let latency = match mode {
            "res0" => 0,
            _ => table.state(id).exit_latency.to_nanos().get() as i64,
        };
        if row.idle > 0 {
            governor.learn(Nanos::new((row.idle + latency) as u64));
            now += row.idle + latency;
        }
        // An aborted entry has its interrupt too.
        governor.count_interrupts(match row.cause {
            'R' => 2,
            'N' => 0,
            _ => 1,
        });
        now += row.busy;
    }
    decisions
}

/// The rows of one section, expanded.
fn expand(section: &str) -> Vec<String> {
    let chars: Vec<char> = section.chars().filter(|c| !c.is_whitespace()).collect();
    let mut at = 0;
    let repeat = |at: &mut usize| -> usize {
        if chars.get(*at) != Some(&'{') {
            return 1;
        }
        let end = *at + chars[*at..].iter().position(|&c| c == '}').unwrap();
        let count: String = chars[*at + 1..end].iter().collect();
        *at = end + 1;
        count.parse().unwrap()
    };
    let mut rows = Vec::new();
    while at < chars.len() {
        let mut row = String::new();
        if chars[at] == '(' {
            at += 1;
            while chars[at] != ')' {
                let decision = chars[at];
                at += 1;
                for _ in 0..repeat(&mut at) {
                    row.push(decision);
                }
            }
        } else {
            row.push(chars[at]);
        }
        at += 1;
        for _ in 0..repeat(&mut at) {
            rows.push(row.clone());
        }
    }
    rows
}

fn sections(text: &str) -> Vec<(Limit, Vec<String>)> {
    let mut found = Vec::new();
    for part in text.split('[').skip(1) {
        let (name, body) = part.split_once(']').unwrap();
        let limit = match name {
            "none" => Limit::None,
            "lat50" => Limit::Fixed,
            "latdyn" => Limit::Changing,
            _ => continue,
        };
        found.push((limit, expand(body)));
    }
    found
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    found.sort();
    found
}

fn stem(path: &Path) -> &str {
    path.file_stem().unwrap().to_str().unwrap()
}

#[derive(Default)]
struct Checked {
    sequences: usize,
    rows: usize,
    decisions: usize,
}

fn check(root: &Path) -> BTreeMap<String, Checked> {
    let mut all: BTreeMap<String, Checked> = BTreeMap::new();
    let mut wrong = String::new();
    for mode in folders(root)
        .iter()
        .filter(|path| path.is_dir() && stem(path) != "traces")
    {
        for governor in folders(mode) {
            for table_dir in folders(&governor) {
                for file in folders(&table_dir) {
                    let trace = root.join("traces").join(stem(&file)).with_extension("tsv");
                    let rows = read_trace(&trace);
                    let (mode, name, table) = (stem(mode), stem(&governor), stem(&table_dir));
                    for (limit, expected) in sections(&fs::read_to_string(&file).unwrap()) {
                        let taken = match name {
                            "xenmenu" => replay_xen(mode, table, &rows),
                            _ => replay_linux(mode, name, table, &rows, limit),
                        };
                        let checked = all.entry(name.to_owned()).or_default();
                        checked.sequences += 1;
                        checked.rows += taken.len();
                        checked.decisions += taken.iter().map(String::len).sum::<usize>();
                        let first = (0..taken.len().max(expected.len()))
                            .find(|&row| taken.get(row) != expected.get(row));
                        if let Some(row) = first {
                            writeln!(
                                wrong,
                                "{}, limit {}: row {row}: {:?} instead of {:?}",
                                file.display(),
                                limit as u8,
                                taken.get(row),
                                expected.get(row)
                            )
                            .unwrap();
                        }
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    all
}

#[test]
fn decisions_equal_the_originals() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let other = std::env::var_os("LULL_GOLDEN").map(PathBuf::from);
    for root in [Some(own), other].into_iter().flatten() {
        let checked = check(&root);
        for (name, checked) in &checked {
            println!(
                "{name}: {} sequences, {} rows, {} decisions",
                checked.sequences, checked.rows, checked.decisions
            );
        }
        let names: Vec<_> = checked.keys().map(String::as_str).collect();
        assert_eq!(names, ["haltpoll", "ladder", "menu71", "teo71", "xenmenu"]);
    }
}
