//! What is to be said about the whole choice: which source, which errata, what was ignored.

use super::edits::EditFault;
use super::reason::Dropped;
use crate::cstate::acpi::CstFault;
use crate::cstate::errata::Errata;
use crate::cstate::models::{Identity, Model};
use alloc::string::String;
use core::fmt;

/// Why `_CST` gives no states here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoCst {
    /// There is none, or nobody could evaluate it.
    Absent,
    /// The `acpi_cst=off` option.
    ByOption,
    /// Nothing in it made sense.
    Empty,
}

impl fmt::Display for NoCst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoCst::Absent => "there is no _CST",
            NoCst::ByOption => "acpi_cst=off",
            NoCst::Empty => "_CST lists nothing that can be used",
        })
    }
}

/// One line about the whole choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The states come from the model's table.
    Table {
        /// The model.
        model: &'static Model,
        /// The table, which may be another one than the model's first.
        table: &'static crate::cstate::tables::IdleTable,
    },
    /// Which of several tables was taken, for this many packages.
    Sockets(u32),
    /// The model has a record, and no table.
    NoTable(&'static Model),
    /// No table is known for this CPU. A sibling's is not taken.
    UnknownModel(Identity),
    /// The table is not used, for this reason.
    TableUnused(TableUnused),
    /// The states come from `_CST`.
    CstStates,
    /// `_CST` says which states of the table are on.
    CstSwitches,
    /// `_CST` lists states that are not MWAIT: it cannot switch those of the table.
    CstNotComparable,
    /// There are no states from `_CST`.
    NoCst(NoCst),
    /// An entry of `_CST`, counted from 1, was skipped; 0: all of it was repaired.
    CstFault(usize, CstFault),
    /// The states come from the FADT and P_BLK.
    PBlk,
    /// The states are Zen's own.
    Zen,
    /// Neither a table nor a `_CST`: C1 is all there is.
    OnlyC1,
    /// The CPU has errata that matter.
    Errata(Errata),
    /// The TSC stops in a state that is used: it cannot be a clock by itself.
    TscUnstable,
    /// The HPET stops in the deepest states.
    HpetStops,
    /// The deepest package state that the firmware allows.
    PackageLimit {
        /// MSR 0xE2 bits 3:0.
        code: u8,
        /// What the code means on this model.
        name: &'static str,
    },
    /// The hardware turns requests for shallow states into deeper ones (MSR 0xE2 bit 16).
    AutoConversion,
    /// MSR 0xE2 cannot be read: the table's worst-case figures stay.
    PackageLimitUnknown,
    /// MSR 0x1FC cannot be read: whether C1 is C1E is not known.
    PromotionUnknown,
    /// An edit of `mwait-idle.table=` was refused. The others stand.
    EditRefused {
        /// The state's name.
        name: String,
        /// Why.
        why: EditFault,
    },
    /// `states_off=` names a state that is not there.
    NothingToSwitchOff(String),
    /// `idle_latency_factor=` means nothing here: no state has its figures from the firmware.
    NoFactor,
    /// `preferred-c1e=` means nothing here: this CPU has C1 and C1E side by side, or only one.
    NoChoiceOfC1e,
    /// The options left no sleep: HLT is used.
    NothingLeft,
}

/// Why a table that exists is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TableUnused {
    /// The `mwait-idle=off` option.
    ByOption,
    /// Something that every MWAIT state needs is not there.
    Needs(Dropped),
    /// CPUID leaf 5 reports no sub-states at all.
    NoSubstates,
}

impl fmt::Display for TableUnused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableUnused::ByOption => f.write_str("mwait-idle=off"),
            TableUnused::Needs(why) => why.fmt(f),
            TableUnused::NoSubstates => f.write_str("CPUID leaf 5 reports no sub-states"),
        }
    }
}

impl Note {
    /// If it says that something on the command line came to nothing: which option, and what would be right.
    pub const fn ignored_option(&self) -> Option<(&'static str, &'static str)> {
        Some(match self {
            Note::EditRefused { .. } => (
                "mwait-idle.table",
                "a state of the table, with figures between its neighbours'",
            ),
            Note::NothingToSwitchOff(_) => {
                ("states_off", "states that this CPU has: key C lists them")
            }
            Note::NoChoiceOfC1e => ("preferred-c1e", "a CPU that has either C1 or C1E"),
            Note::NoFactor => ("idle_latency_factor", "a CPU with states of _CST or P_BLK"),
            Note::NothingLeft => ("states_off", "a sleep that stays on"),
            _ => return None,
        })
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::Table { model, table } => write!(
                f,
                "{} has table {} ({}; {})",
                model.name, table.name, table.cpus, table.source
            ),
            Note::Sockets(packages) => write!(f, "the table is the one for {packages} packages"),
            Note::NoTable(model) => {
                write!(f, "{} has no table: its states come from _CST", model.name)
            }
            Note::UnknownModel(id) => {
                write!(f, "no table is known for {id}, and no sibling's is taken")
            }
            Note::TableUnused(why) => write!(f, "the table is not used: {why}"),
            Note::CstStates => f.write_str("the states come from _CST"),
            Note::CstSwitches => f.write_str("_CST says which of the table's states are on"),
            Note::CstNotComparable => {
                f.write_str("_CST lists states other than MWAIT, and switches none of the table's")
            }
            Note::NoCst(why) => write!(f, "no states from the firmware: {why}"),
            Note::CstFault(0, why) => write!(f, "_CST: {why}"),
            Note::CstFault(entry, why) => write!(f, "_CST entry {entry} is skipped: {why}"),
            Note::PBlk => f.write_str("the states come from the FADT and P_BLK"),
            Note::Zen => f.write_str("the states are Zen's own: C1 by MWAIT, C2 by HLT"),
            Note::OnlyC1 => f.write_str("no table that can be used, and no usable _CST: C1 only"),
            Note::Errata(errata) => write!(f, "errata: {errata}"),
            Note::TscUnstable => {
                f.write_str("the TSC stops in a state that is used: it is no clock by itself")
            }
            Note::HpetStops => f.write_str("the HPET stops in the deepest states"),
            Note::PackageLimit { code, name } => {
                write!(f, "the package goes no deeper than {name} (MSR 0xe2 has code {code})")
            }
            Note::AutoConversion => f.write_str(
                "the hardware may turn requests for shallow states into deeper ones (MSR 0xe2 bit 16)",
            ),
            Note::PackageLimitUnknown => {
                f.write_str("MSR 0xe2 is not known: the worst-case figures stay")
            }
            Note::PromotionUnknown => {
                f.write_str("MSR 0x1fc is not known: C1 may be C1E, or C1E be C1")
            }
            Note::EditRefused { name, why } => {
                write!(f, "mwait-idle.table=: the edit of {name} is refused: {why}")
            }
            Note::NothingToSwitchOff(name) => {
                write!(f, "states_off=: there is no state {name} here")
            }
            Note::NoChoiceOfC1e => {
                f.write_str("preferred-c1e= is ignored: nothing is to be chosen on this CPU")
            }
            Note::NoFactor => f.write_str(
                "idle_latency_factor= is ignored: no state's figures come from the firmware",
            ),
            Note::NothingLeft => f.write_str("the options left no sleep: HLT is used"),
        }
    }
}
