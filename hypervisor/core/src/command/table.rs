//! The table of all commands: name, form, meaning, and how each is read.

use super::{Command, read};
use crate::options::Problem;
use alloc::format;
use alloc::string::String;
use core::fmt;

/// One command.
pub struct CommandSpec {
    /// Its name.
    pub name: &'static str,
    /// What may stand behind the name, one line for each form.
    pub forms: &'static [&'static str],
    /// What it does.
    pub help: &'static str,
    read: fn(&Self, &[&str]) -> Result<Command, Problem>,
}

impl CommandSpec {
    pub(super) fn read(&self, words: &[&str]) -> Result<Command, Problem> {
        (self.read)(self, words)
    }

    /// How it is written, all forms.
    pub fn usage(&self) -> String {
        let forms = self.forms.iter().map(|form| {
            if form.is_empty() {
                String::from(self.name)
            } else {
                format!("{} {form}", self.name)
            }
        });
        forms
            .reduce(|all, form| all + " | " + &form)
            .unwrap_or_default()
    }
}

impl PartialEq for CommandSpec {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for CommandSpec {}

impl fmt::Debug for CommandSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// All commands, in the order in which they are explained.
pub static COMMANDS: [CommandSpec; 12] = [
    CommandSpec {
        name: "help",
        forms: &["[COMMAND]"],
        help: "all commands, or one",
        read: read::help,
    },
    CommandSpec {
        name: "show",
        forms: &["[cpu=CPUS]"],
        help: "governor, limits and states of CPUs",
        read: read::show,
    },
    CommandSpec {
        name: "cstate",
        forms: &[
            "on|off NAME|INDEX [cpu=CPUS]",
            "max N[,SUB]|unlimited [cpu=CPUS]",
        ],
        help: "lets a state be chosen, or not; limits the depth, as max_cstate= does",
        read: read::cstate,
    },
    CommandSpec {
        name: "governor",
        forms: &["NAME [cpu=CPUS]"],
        help: "changes who chooses the C-state; it begins with nothing learned",
        read: read::governor,
    },
    CommandSpec {
        name: "latency",
        forms: &[
            "MICROSECONDS|none [cpu=CPUS]",
            "MICROSECONDS|none guest=NAME|dN [vcpu=N]",
        ],
        help: "limits the exit latency of CPUs, or of those that a guest's vCPUs last ran on",
        read: read::latency,
    },
    CommandSpec {
        name: "offline",
        forms: &["CPUS"],
        help: "takes CPUs out of the scheduler; they sleep as deep as they can",
        read: read::offline,
    },
    CommandSpec {
        name: "online",
        forms: &["CPUS"],
        help: "brings them back",
        read: read::online,
    },
    CommandSpec {
        name: "weight",
        forms: &["N guest=NAME|dN [vcpu=N]"],
        help: "changes the share of a guest's vCPUs",
        read: read::weight,
    },
    CommandSpec {
        name: "cap",
        forms: &["PERCENT|none guest=NAME|dN"],
        help: "limits what all vCPUs of a guest have together, in percent of one CPU",
        read: read::cap,
    },
    CommandSpec {
        name: "pin",
        forms: &["CPUS guest=NAME|dN [vcpu=N]"],
        help: "changes where a guest's vCPUs may run",
        read: read::pin,
    },
    CommandSpec {
        name: "soft",
        forms: &["CPUS guest=NAME|dN [vcpu=N]"],
        help: "changes where a guest's vCPUs prefer to run",
        read: read::soft,
    },
    CommandSpec {
        name: "halt-poll",
        forms: &["MICROSECONDS guest=NAME|dN [vcpu=N]"],
        help: "limits how long CPUs look for a kick before they block a guest's vCPUs; 0: not at all",
        read: read::halt_poll,
    },
];

pub(super) fn known_names() -> String {
    let mut names = String::from("one of ");
    for (index, command) in COMMANDS.iter().enumerate() {
        if index > 0 {
            names.push_str(", ");
        }
        names.push_str(command.name);
    }
    names
}
