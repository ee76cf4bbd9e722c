//! From words to a command, one function for each row of the table.

use super::{COMMANDS, Command, CommandSpec, GuestChange, GuestRef, LatencyOf, StateRef, table};
use crate::governor::AnyGovernor;
use crate::guests_txt::{MAX_HALT_POLL, MAX_LATENCY, MAX_NAME, MAX_VCPUS};
use crate::options::{MaxCState, Problem, cpu_list, number};
use crate::sched::{Cap, Weight};
use crate::units::{CpuSet, DomId, Micros};
use alloc::format;
use alloc::string::ToString;

/// The words of a command: those without a `=` in order, and each `name=value` at most once.
struct Words<'a> {
    spec: &'a CommandSpec,
    plain: &'a [&'a str],
    named: &'a [&'a str],
}

impl<'a> Words<'a> {
    /// Splits the words. Named ones come last, each is one of `known`, and none comes twice.
    fn of(spec: &'a CommandSpec, words: &'a [&'a str], known: &[&str]) -> Result<Self, Problem> {
        let at = words
            .iter()
            .position(|word| word.contains('='))
            .unwrap_or(words.len());
        let (plain, named) = words.split_at(at);
        for (index, word) in named.iter().enumerate() {
            let name = name_of(word);
            if !known.contains(&name) {
                return Err(Problem::new(word, "not expected here", spec.usage()));
            }
            if named.iter().take(index).any(|other| name_of(other) == name) {
                let why = format!("`{name}` is given more than once");
                return Err(Problem::new(word, why, "it once"));
            }
        }
        Ok(Self { spec, plain, named })
    }

    /// Exactly so many plain words.
    fn plain<const N: usize>(&self) -> Result<[&'a str; N], Problem> {
        match <[&str; N]>::try_from(self.plain) {
            Ok(words) => Ok(words),
            Err(_) => match self.plain.get(N) {
                Some(surplus) => Err(self.problem(surplus, "not expected here")),
                None => Err(self.problem(self.spec.name, "something is missing behind it")),
            },
        }
    }

    fn named(&self, name: &str) -> Option<(&'a str, &'a str)> {
        let word = self.named.iter().find(|word| name_of(word) == name)?;
        let (_, value) = word.split_once('=')?;
        Some((word, value))
    }

    /// `cpu=`; all CPUs if it is not given.
    fn cpus(&self) -> Result<CpuSet, Problem> {
        match self.named("cpu") {
            None => Ok(CpuSet::ALL),
            Some((word, value)) => cpu_list(value).map_err(|why| {
                Problem::new(
                    word,
                    why,
                    "cpu=all, or numbers from 0 to 255 as in cpu=0,2-5",
                )
            }),
        }
    }

    fn problem(&self, word: &str, why: impl ToString) -> Problem {
        Problem::new(word, why, self.spec.usage())
    }
}

fn name_of(word: &str) -> &str {
    word.split_once('=').map_or(word, |(name, _)| name)
}

pub(super) fn help(spec: &CommandSpec, words: &[&str]) -> Result<Command, Problem> {
    let words = Words::of(spec, words, &[])?;
    if words.plain.is_empty() {
        return Ok(Command::Help(None));
    }
    let [name] = words.plain::<1>()?;
    match COMMANDS.iter().find(|command| command.name == name) {
        Some(command) => Ok(Command::Help(Some(command))),
        None => Err(Problem::new(name, "no such command", table::known_names())),
    }
}

pub(super) fn show(spec: &CommandSpec, words: &[&str]) -> Result<Command, Problem> {
    let words = Words::of(spec, words, &["cpu"])?;
    let [] = words.plain::<0>()?;
    Ok(Command::Show(words.cpus()?))
}

pub(super) fn cstate(spec: &CommandSpec, words: &[&str]) -> Result<Command, Problem> {
    let words = Words::of(spec, words, &["cpu"])?;
    let [verb, what] = words.plain::<2>()?;
    let cpus = words.cpus()?;
    match verb {
        "on" | "off" => Ok(Command::State {
            state: state(what)?,
            on: verb == "on",
            cpus,
        }),
        "max" if what == "unlimited" => Ok(Command::MaxCState { limit: None, cpus }),
        "max" => {
            let limit = MaxCState::parse(what).map_err(|why| {
                Problem::new(what, why, "N or N,SUB, each from 0 to 15, or unlimited")
            })?;
            Ok(Command::MaxCState {
                limit: Some(limit),
                cpus,
            })
        }
        _ => Err(words.problem(verb, "neither on, off nor max")),
    }
}

fn state(text: &str) -> Result<StateRef, Problem> {
    let expected = "the name of a state, or its index from 0 to 15";
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        let index = number(text, 0..=15).map_err(|why| Problem::new(text, why, expected))?;
        return Ok(StateRef::Index(index as u8));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if text.len() > 16 || !text.chars().all(plain) {
        return Err(Problem::new(text, "not the name of a state", expected));
    }
    Ok(StateRef::Name(text.to_string()))
}

pub(super) fn governor(spec: &CommandSpec, words: &[&str]) -> Result<Command, Problem> {
    let words = Words::of(spec, words, &["cpu"])?;
    let [asked] = words.plain::<1>()?;
    let Some(name) = AnyGovernor::NAMES.into_iter().find(|name| *name == asked) else {
        let names = AnyGovernor::NAMES.join(", ");
        return Err(Problem::new(
            asked,
            "no such governor",
            format!("one of {names}"),
        ));
    };
    Ok(Command::Governor {
        name,
        cpus: words.cpus()?,
    })
}

pub(super) fn latency(spec: &CommandSpec, words: &[&str]) -> Result<Command, Problem> {
    let words = Words::of(spec, words, &["cpu", "guest", "vcpu"])?;
    let [asked] = words.plain::<1>()?;
    let limit = match asked {
        "none" => None,
        _ => {
            let micros = number(asked, 0..=MAX_LATENCY.get()).map_err(|why| {
                let expected = format!("microseconds from 0 to {}, or none", MAX_LATENCY.get());
                Problem::new(asked, why, expected)
            })?;
            Some(Micros::new(micros))
        }
    };
    let vcpu = vcpu(&words)?;
    let of = match (words.named("guest"), words.named("cpu")) {
        (Some(_), Some((word, _))) => {
            return Err(words.problem(word, "either CPUs or a guest"));
        }
        (Some((word, value)), None) => LatencyOf::Guest {
            guest: guest(word, value)?,
            vcpu,
        },
        (None, _) => {
            if let Some((word, _)) = words.named("vcpu") {
                return Err(words.problem(word, "without a guest"));
            }
            LatencyOf::Cpus(words.cpus()?)
        }
    };
    Ok(Command::Latency { limit, of })
}

fn vcpu(words: &Words<'_>) -> Result<Option<u32>, Problem> {
    let Some((word, value)) = words.named("vcpu") else {
        return Ok(None);
    };
    let number = number(value, 0..=u64::from(MAX_VCPUS) - 1)
        .map_err(|why| Problem::new(word, why, "vcpu=N from 0 to 63"))?;
    Ok(Some(number as u32))
}

/// One plain word that says what is to change, and whose it is.
fn change(
    spec: &CommandSpec,
    words: &[&str],
    known: &[&str],
    read: impl FnOnce(&str) -> Result<GuestChange, Problem>,
) -> Result<Command, Problem> {
    let words = Words::of(spec, words, known)?;
    let [asked] = words.plain::<1>()?;
    let change = read(asked)?;
    let Some((word, value)) = words.named("guest") else {
        return Err(words.problem(spec.name, "no guest is named"));
    };
    Ok(Command::Guest {
        change,
        guest: guest(word, value)?,
        vcpu: vcpu(&words)?,
    })
}

const ONE_OF_A_GUEST: [&str; 2] = ["guest", "vcpu"];

pub(super) fn weight(spec: &CommandSpec, words: &[&str]) -> Result<Command, Problem> {
    change(spec, words, &ONE_OF_A_GUEST, |asked| {
        let weight = number(asked, 1..=u64::from(u16::MAX))
            .map_err(|why| Problem::new(asked, why, "a weight from 1 to 65535"))?;
        let weight = Weight::new(weight as u16).unwrap_or_default();
        Ok(GuestChange::Weight(weight))
    })
}

pub(super) fn cap(spec: &CommandSpec, words: &[&str]) -> Result<Command, Problem> {
    change(spec, words, &["guest"], |asked| {
        if asked == "none" {
            return Ok(GuestChange::Cap(None));
        }
        let cap = number(asked, 1..=u64::from(Cap::MAX)).map_err(|why| {
            Problem::new(asked, why, "percent of one CPU from 1 to 6400, or none")
        })?;
        Ok(GuestChange::Cap(Cap::new(cap as u16)))
    })
}

pub(super) fn pin(spec: &CommandSpec, words: &[&str]) -> Result<Command, Problem> {
    change(spec, words, &ONE_OF_A_GUEST, |asked| {
        Ok(GuestChange::Pin(cpus_of(asked)?))
    })
}

pub(super) fn soft(spec: &CommandSpec, words: &[&str]) -> Result<Command, Problem> {
    change(spec, words, &ONE_OF_A_GUEST, |asked| {
        Ok(GuestChange::Soft(cpus_of(asked)?))
    })
}

pub(super) fn halt_poll(spec: &CommandSpec, words: &[&str]) -> Result<Command, Problem> {
    change(spec, words, &ONE_OF_A_GUEST, |asked| {
        let most = MAX_HALT_POLL.get();
        let limit = number(asked, 0..=most)
            .map_err(|why| Problem::new(asked, why, format!("microseconds from 0 to {most}")))?;
        Ok(GuestChange::HaltPoll(Micros::new(limit)))
    })
}

pub(super) fn offline(spec: &CommandSpec, words: &[&str]) -> Result<Command, Problem> {
    let [asked] = Words::of(spec, words, &[])?.plain::<1>()?;
    let cpus = cpus_of(asked)?;
    Ok(Command::Online { on: false, cpus })
}

pub(super) fn online(spec: &CommandSpec, words: &[&str]) -> Result<Command, Problem> {
    let [asked] = Words::of(spec, words, &[])?.plain::<1>()?;
    let cpus = cpus_of(asked)?;
    Ok(Command::Online { on: true, cpus })
}

fn cpus_of(asked: &str) -> Result<CpuSet, Problem> {
    cpu_list(asked)
        .map_err(|why| Problem::new(asked, why, "all, or numbers from 0 to 255 as in 0,2-5"))
}

/// `d1` is a number; a guest of that name goes by its number, too.
fn guest(word: &str, text: &str) -> Result<GuestRef, Problem> {
    if let Some(digits) = text.strip_prefix('d')
        && digits.starts_with(|c: char| c.is_ascii_digit())
        && let Ok(number) = number(digits, 0..=u64::from(u16::MAX))
    {
        return Ok(GuestRef::Id(DomId::new(number as u16)));
    }
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if text.is_empty() || text.len() > MAX_NAME || !text.chars().all(good) {
        let why = "not the name of a guest";
        return Err(Problem::new(word, why, "guest=NAME or guest=dN"));
    }
    Ok(GuestRef::Name(text.to_string()))
}
