//! Where a CPU's states come from: its table, `_CST`, Zen's own pair, P_BLK, or nowhere.
//!
//! One source gives the states, in that order of preference. On models that say so, `_CST` only switches the states of the
//! table. C1 is not a source's business: [`select`](super::select) sees to it that there is one.

use super::candidate::Candidate;
use super::edits::EditFault;
use super::facts::Query;
use super::fixups;
use super::judge;
use super::note::{NoCst, Note, TableUnused};
use super::reason::{Dropped, Kept, Off, StateNote};
use crate::cstate::acpi::{AcpiType, Cst, CstEntry, CstMethod};
use crate::cstate::errata::Errata;
use crate::cstate::models::{Model, Quirks, Vendor};
use crate::cstate::tables::IdleTable;
use crate::cstate::{CState, CStateFlags, EntryMethod, MwaitHint};
use crate::platform::IrqGate;
use crate::units::Micros;
use alloc::vec::Vec;

/// The states of a source, and what the choice must know about it.
pub(super) struct Source {
    /// The states, shallow to deep.
    pub states: Vec<Candidate>,
    /// Which of them are off at first: the position in `states`.
    pub off: Vec<(usize, Off)>,
    /// The model, if its MWAIT states are used: its MSRs are to be written.
    pub model: Option<&'static Model>,
    /// `_CST` is used, so the firmware must be told that.
    pub takes_cst: bool,
}

impl Source {
    const fn new(states: Vec<Candidate>) -> Self {
        Self {
            states,
            off: Vec::new(),
            model: None,
            takes_cst: false,
        }
    }
}

/// Finds the states of this CPU.
pub(super) fn find(query: &Query<'_>, errata: Errata, notes: &mut Vec<Note>) -> Source {
    let id = &query.cpu.identity;
    let model = id.model_record();
    let gate = judge::mwait_at_all(query, errata);
    let cst = query.cst();
    if let Some(cst) = cst {
        notes.extend(
            cst.faults
                .iter()
                .map(|(entry, why)| Note::CstFault(*entry, *why)),
        );
    }

    if let Some(model) = model
        && let Some(table) = model.table
    {
        let unused = if query.options.mwait_idle {
            gate.err()
        } else {
            Some(TableUnused::ByOption)
        };
        match unused {
            None => return of_table(query, model, table, cst, notes),
            Some(why) => notes.push(Note::TableUnused(why)),
        }
    } else if let Some(model) = model {
        notes.push(Note::NoTable(model));
    } else if !id.zen() {
        notes.push(Note::UnknownModel(*id));
    }
    for edit in &query.options.edits {
        notes.push(Note::EditRefused {
            name: edit.name.as_str().into(),
            why: EditFault::NoTable,
        });
    }

    if let Some(cst) = cst.filter(|cst| !cst.entries.is_empty()) {
        notes.push(Note::CstStates);
        let mut source = of_cst(query, cst, errata);
        source.model = model.filter(|_| gate.is_ok());
        return source;
    }
    notes.push(Note::NoCst(match cst {
        Some(_) => NoCst::Empty,
        None if query.firmware.cst.is_some() => NoCst::ByOption,
        None => NoCst::Absent,
    }));
    if id.zen() && gate.is_ok() {
        notes.push(Note::Zen);
        return Source::new(zen());
    }
    let states = of_p_blk(query);
    notes.push(if states.is_empty() {
        Note::OnlyC1
    } else {
        Note::PBlk
    });
    let mut source = Source::new(states);
    source.model = model.filter(|_| gate.is_ok());
    source
}

fn of_table(
    query: &Query<'_>,
    model: &'static Model,
    table: &'static IdleTable,
    cst: Option<&Cst>,
    notes: &mut Vec<Note>,
) -> Source {
    let table = fixups::table_of(model, table, query, notes);
    notes.push(Note::Table { model, table });
    let mut states: Vec<Candidate> = table
        .states
        .iter()
        .map(|state| Candidate::of_table(table.name, state))
        .collect();
    fixups::apply(model, query, &mut states, notes);
    super::edits::apply(&query.options.edits, &mut states, notes);

    let mut source = Source::new(states);
    source.model = Some(model);
    if !model.quirks.contains(Quirks::CST_SWITCHES) {
        return source;
    }
    match cst {
        Some(cst) if cst.all_mwait(deepest(query)) => {
            notes.push(Note::CstSwitches);
            source.takes_cst = true;
            for (at, one) in source.states.iter_mut().enumerate() {
                if lists(cst, one) {
                    one.kept = Kept::TableAndCst(table.name);
                } else if one.state.flags.contains(CStateFlags::ALWAYS_ENABLE) {
                    one.kept = Kept::TableAlways(table.name);
                } else {
                    source.off.push((at, Off::NotInCst));
                }
            }
        }
        Some(cst) if !cst.entries.is_empty() => notes.push(Note::CstNotComparable),
        _ => {}
    }
    source
}

/// The deepest class that `max_cstate=` leaves.
fn deepest(query: &Query<'_>) -> Option<u8> {
    query.options.max_cstate.map(|limit| limit.class)
}

/// Does `_CST` list this state of a table? By its hint, or by its class alone where the table says so.
fn lists(cst: &Cst, one: &Candidate) -> bool {
    let Some(mine) = one.hint() else { return false };
    let partial = one.state.flags.contains(CStateFlags::PARTIAL_HINT_MATCH);
    cst.entries.iter().any(|entry| match entry.method {
        CstMethod::Mwait { hint, .. } if partial => hint.class() == mine.class(),
        CstMethod::Mwait { hint, .. } => hint == mine,
        _ => false,
    })
}

/// Names by position: of states that are all MWAIT on Intel, and of all others.
const MWAIT_NAMES: [&str; 7] = [
    "C1_ACPI", "C2_ACPI", "C3_ACPI", "C4_ACPI", "C5_ACPI", "C6_ACPI", "C7_ACPI",
];
const PLAIN_NAMES: [&str; 8] = ["C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8"];

fn of_cst(query: &Query<'_>, cst: &Cst, errata: Errata) -> Source {
    let intel_mwait = query.cpu.identity.vendor == Vendor::Intel
        && cst.all_mwait(deepest(query))
        && judge::mwait_at_all(query, errata).is_ok();
    let (names, origin) = if intel_mwait {
        (&MWAIT_NAMES[..], Origin::IntelMwait)
    } else {
        // Where the list has no C1, Lull's own comes before it.
        let first = cst.entries.first();
        let own = first.is_some_and(|entry| entry.acpi_type != AcpiType::C1);
        (
            PLAIN_NAMES.get(usize::from(own)..).unwrap_or(&[]),
            Origin::Cst,
        )
    };
    let states = cst
        .entries
        .iter()
        .zip(names)
        .map(|(entry, &name)| of_entry(query, entry, name, origin, errata))
        .collect();
    let mut source = Source::new(states);
    source.takes_cst = true;
    source
}

/// Which of the firmware's lists an entry is of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// An Intel `_CST` of MWAIT states only: hardware does what C3 needs.
    IntelMwait,
    /// Any other `_CST`.
    Cst,
    /// P_BLK.
    PBlk,
}

fn of_entry(
    query: &Query<'_>,
    entry: &CstEntry,
    name: &'static str,
    origin: Origin,
    errata: Errata,
) -> Candidate {
    let c1 = entry.acpi_type == AcpiType::C1;
    let intel_mwait = origin == Origin::IntelMwait;
    // `_CST` has no residency. Intel's MWAIT states get what intel_idle gives them, all others what the ACPI drivers do.
    let factor = match query.options.latency_factor {
        Some(factor) => u64::from(factor),
        None if intel_mwait && c1 => 1,
        None if intel_mwait => 3,
        None => 2,
    };
    let mut state = CState {
        name,
        method: EntryMethod::Halt,
        flags: CStateFlags::empty(),
        exit_latency: entry.latency,
        target_residency: Micros::new(entry.latency.get().saturating_mul(factor)),
    };
    let mut class = u32::from(entry.acpi_type.number());
    let mut instead = None;
    match entry.method {
        CstMethod::Mwait { hint, .. } => {
            state.method = EntryMethod::Mwait {
                hint,
                gate: IrqGate::Masked,
            };
            // C1 may be had by HLT, where MWAIT does not do.
            match judge::mwait_state(query, hint, errata) {
                Err(why) if c1 => {
                    state.method = EntryMethod::Halt;
                    instead = Some(why);
                }
                _ => class = hint.class(),
            }
        }
        CstMethod::Halt => {}
        CstMethod::Io(port) => {
            state.method = EntryMethod::IoRead(port);
            // Only Intel's chipsets stop the CPU late, and no outer hypervisor does.
            if query.cpu.identity.vendor == Vendor::Intel && !query.cpu.hypervisor {
                state.flags |= CStateFlags::READ_PM_TIMER;
            }
        }
    }
    if entry.acpi_type == AcpiType::C3 && intel_mwait {
        state.flags |= CStateFlags::TLB_FLUSHED;
    }
    let kept = match origin {
        Origin::PBlk => Kept::PBlk,
        Origin::IntelMwait | Origin::Cst => Kept::Cst,
    };
    let mut one = Candidate::new(state, class, kept);
    one.acpi = Some(entry.acpi_type);
    if let Some(why) = instead {
        one.notes.push(StateNote::HaltInstead(why));
    }
    if entry.acpi_type == AcpiType::C3 && !intel_mwait {
        acpi_c3(query, entry.method, origin == Origin::Cst, &mut one);
    }
    one
}

/// What a C3 of the ACPI drivers needs: bus masters looked at, arbitration off, or the caches written back.
fn acpi_c3(query: &Query<'_>, method: CstMethod, from_cst: bool, one: &mut Candidate) {
    let id = &query.cpu.identity;
    let fadt = query.firmware.fadt.unwrap_or_default();
    let zen = id.vendor == Vendor::Hygon || (id.vendor == Vendor::Amd && id.family >= 0x17);
    let coherent = query.topology.cpus <= 1
        || zen
        || matches!(id.vendor, Vendor::Intel | Vendor::Zhaoxin | Vendor::Centaur)
        || (id.vendor == Vendor::Amd && id.family == 0x15);
    // From Merom on, and on Zen, nobody needs arbitration disabled.
    let never_arbitrates = zen
        || id.vendor == Vendor::Zhaoxin
        || (id.vendor == Vendor::Intel && (id.family > 15 || (id.family == 6 && id.model >= 0x0F)));
    let arbitrates = fadt.pm2_control && !never_arbitrates;

    if !coherent {
        if fadt.wbinvd() {
            one.state.flags |= CStateFlags::FLUSH_CACHES;
            one.notes.push(StateNote::CachesWrittenBack);
        } else {
            one.refused = Some(Dropped::C3NeedsWbinvd);
        }
        return;
    }
    if !arbitrates && !from_cst {
        one.refused = Some(Dropped::C3NeedsCst);
        return;
    }
    let skips_bus_masters = id.vendor == Vendor::Intel
        && matches!(
            method,
            CstMethod::Mwait {
                check_bus_master: false,
                ..
            }
        );
    if !skips_bus_masters {
        one.state.flags |= CStateFlags::CHECK_BUS_MASTER;
        one.notes.push(StateNote::LooksAtBusMasters);
    }
    if arbitrates {
        one.state.flags |= CStateFlags::DISABLE_ARBITRATION;
        one.notes.push(StateNote::KeepsBusMastersOff);
    }
}

/// Zen without a `_CST`: HLT may go to CC6, and only MWAIT is a true C1. The figures are those that Xen 4.22 has.
fn zen() -> Vec<Candidate> {
    let c1 = CState {
        name: "C1",
        method: EntryMethod::Mwait {
            hint: MwaitHint::C1,
            gate: IrqGate::Masked,
        },
        flags: CStateFlags::empty(),
        exit_latency: Micros::new(1),
        target_residency: Micros::new(2),
    };
    let c2 = CState {
        name: "C2",
        method: EntryMethod::Halt,
        exit_latency: judge::ZEN_CC6_EXIT,
        target_residency: Micros::new(800),
        ..c1
    };
    [(c1, 1), (c2, 2)]
        .into_iter()
        .map(|(state, class)| Candidate::new(state, class, Kept::Zen))
        .collect()
}

/// P_BLK's two states, where the FADT gives them a latency. Only without `_CST`.
fn of_p_blk(query: &Query<'_>) -> Vec<Candidate> {
    let (Some(fadt), Some(block)) = (query.firmware.fadt, query.firmware.p_blk) else {
        return Vec::new();
    };
    if fadt.hardware_reduced() || block == 0 {
        return Vec::new();
    }
    let levels = [
        ("C2", AcpiType::C2, block.checked_add(4), fadt.lvl2()),
        ("C3", AcpiType::C3, block.checked_add(5), fadt.lvl3()),
    ];
    let mut states = Vec::new();
    for (name, acpi_type, port, latency) in levels {
        let (Some(port), Some(latency)) = (port, latency) else {
            continue;
        };
        let entry = CstEntry {
            method: CstMethod::Io(port),
            acpi_type,
            latency,
        };
        let mut one = of_entry(query, &entry, name, Origin::PBlk, Errata::empty());
        if query.topology.cpus > 1 && !fadt.lvl2_multiprocessor() {
            one.refused = Some(Dropped::PBlkSingleCpu);
        }
        states.push(one);
    }
    states
}
