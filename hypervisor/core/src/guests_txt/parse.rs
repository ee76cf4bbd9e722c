//! From words to a guest.

use super::words::{self, Separator, Word};
use super::{
    Cap, GuestConfig, MAX_CMDLINE, MAX_HALT_POLL, MAX_LATENCY, MAX_NAME, MAX_VCPUS, MemSize, Pin,
    RtParams, Weight,
};
use crate::options::{Problem, number};
use crate::units::{CpuId, IMAGE_CPUS, Micros};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

const NAME: &str = "1 to 31 letters, digits, `.`, `_` or `-`, the first a letter or a digit";
const OPTIONS: [(&str, &str); 13] = [
    ("kernel", "kernel=FILE, the name of a file in the bundle"),
    ("vcpus", "vcpus=N from 1 to 64"),
    (
        "mem",
        "mem=SIZE from 2M to 3G in steps of 4K, like 32M, 2052K or 1G",
    ),
    ("weight", "weight=N from 1 to 65535"),
    ("pin", "pin=CPU, pin=LOW-HIGH (0 to 255) or pin=all"),
    ("latency", "latency=MICROSECONDS from 0 to 1000000"),
    ("soft", "soft=CPU, soft=LOW-HIGH (0 to 255) or soft=all"),
    ("cap", "cap=PERCENT of one CPU, from 1 to 6400"),
    ("halt-poll", "halt-poll=MICROSECONDS from 0 to 10000"),
    (
        "period-us",
        "period-us=N from 10 to 3600000000, not below budget-us (10000 if not given)",
    ),
    (
        "budget-us",
        "budget-us=N from 10 up to period-us (4000 if not given)",
    ),
    ("extratime", "extratime=on or extratime=off"),
    (
        "cmdline",
        "cmdline=\"...\", at most 1024 bytes without control characters",
    ),
];

/// Reads one guest; all problems, if there is any.
pub(super) fn guest(line: &str, separator: Separator) -> Result<GuestConfig, Vec<Problem>> {
    let words = words::split(line, separator).map_err(|problem| vec![problem])?;
    let Some((name, options)) = words.split_first() else {
        return Err(vec![Problem::new(line, "no name", NAME)]);
    };
    let mut problems = Vec::new();
    // Go on with a stand-in after a bad name, to find what else is wrong.
    let mut guest = match GuestConfig::new(&name.text) {
        Ok(guest) => guest,
        Err(problem) => {
            problems.push(Problem {
                word: Problem::new(name.raw, "", "").word,
                ..problem
            });
            stand_in()
        }
    };
    let mut seen = [false; OPTIONS.len()];
    let mut reserved = Reserved::default();
    for word in options {
        if let Err(problem) = option(&mut guest, &mut reserved, word, &mut seen) {
            problems.push(problem);
        }
    }
    match reserved.check(&guest) {
        Ok(rt) => guest.rt = rt,
        Err(problem) => problems.push(problem),
    }
    if problems.is_empty() {
        Ok(guest)
    } else {
        Err(problems)
    }
}

/// The parts of a reservation, which are right or wrong together.
#[derive(Default)]
struct Reserved<'a> {
    period: Option<Micros>,
    budget: Option<Micros>,
    /// The word that was read last.
    raw: &'a str,
}

impl Reserved<'_> {
    fn check(&self, guest: &GuestConfig) -> Result<RtParams, Problem> {
        let period = self.period.unwrap_or(RtParams::DEFAULT.period());
        let budget = self.budget.unwrap_or(RtParams::DEFAULT.budget());
        RtParams::new(period, budget, guest.rt.extratime).ok_or_else(|| {
            let (period, budget) = (period.get(), budget.get());
            let why = format!("a budget of {budget} us does not fit into a period of {period} us");
            Problem::new(self.raw, why, "budget-us=N from 10 up to period-us")
        })
    }
}

fn stand_in() -> GuestConfig {
    GuestConfig {
        name: String::new(),
        kernel: String::new(),
        vcpus: 1,
        mem: MemSize::DEFAULT,
        weight: Weight::DEFAULT,
        pin: Pin::All,
        latency: None,
        halt_poll: Micros::ZERO,
        soft: Pin::All,
        cap: None,
        rt: RtParams::DEFAULT,
        cmdline: String::new(),
    }
}

fn option<'a>(
    guest: &mut GuestConfig,
    reserved: &mut Reserved<'a>,
    word: &Word<'a>,
    seen: &mut [bool; OPTIONS.len()],
) -> Result<(), Problem> {
    let (name, value) = match word.text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word.text.as_str(), None),
    };
    let known = OPTIONS
        .iter()
        .zip(seen)
        .find(|((known, _), _)| *known == name);
    let Some(((_, form), seen)) = known else {
        let expected = "kernel=, vcpus=, mem=, weight=, pin=, latency=, soft=, cap=, halt-poll=, period-us=, budget-us=, extratime= or cmdline=";
        return Err(Problem::new(word.raw, "no such option", expected));
    };
    let problem = |why: String| Problem::new(word.raw, why, form);
    if core::mem::replace(seen, true) {
        return Err(Problem::new(
            word.raw,
            format!("`{name}` is given more than once"),
            "it once",
        ));
    }
    let value = value.ok_or_else(|| problem("has no value".to_string()))?;
    match name {
        "kernel" => {
            check_name(value, word.raw).map_err(|_| problem(name_fault(value)))?;
            guest.kernel = value.to_string();
        }
        "vcpus" => {
            guest.vcpus = number(value, 1..=u64::from(MAX_VCPUS)).map_err(problem)? as u32;
        }
        "mem" => guest.mem = mem(value).map_err(problem)?,
        "weight" => {
            let weight = number(value, 1..=u64::from(u16::MAX)).map_err(problem)?;
            guest.weight = Weight::new(weight as u16).unwrap_or_default();
        }
        "pin" => guest.pin = pin(value).map_err(problem)?,
        "latency" => {
            let micros = number(value, 0..=MAX_LATENCY.get()).map_err(problem)?;
            guest.latency = Some(Micros::new(micros));
        }
        "soft" => guest.soft = pin(value).map_err(problem)?,
        "cap" => {
            let cap = number(value, 1..=u64::from(Cap::MAX)).map_err(problem)?;
            guest.cap = Cap::new(cap as u16);
        }
        "halt-poll" => {
            let micros = number(value, 0..=MAX_HALT_POLL.get()).map_err(problem)?;
            guest.halt_poll = Micros::new(micros);
        }
        "period-us" | "budget-us" => {
            let bounds = RtParams::MIN.get()..=RtParams::MAX.get();
            let micros = Some(Micros::new(number(value, bounds).map_err(problem)?));
            reserved.raw = word.raw;
            if name == "period-us" {
                reserved.period = micros;
            } else {
                reserved.budget = micros;
            }
        }
        "extratime" => {
            guest.rt.extratime = match value {
                "on" => true,
                "off" => false,
                _ => return Err(problem("neither on nor off".to_string())),
            };
        }
        _ => {
            if value.len() > MAX_CMDLINE {
                return Err(problem(format!("{} bytes are too many", value.len())));
            }
            if value.chars().any(char::is_control) {
                return Err(problem("has a control character".to_string()));
            }
            guest.cmdline = value.to_string();
        }
    }
    Ok(())
}

/// Checks the form of a guest's or a kernel's name.
pub(super) fn check_name(name: &str, raw: &str) -> Result<(), Problem> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins_well && name.len() <= MAX_NAME && name.chars().all(good) {
        Ok(())
    } else {
        Err(Problem::new(raw, name_fault(name), NAME))
    }
}

fn name_fault(name: &str) -> String {
    if name.is_empty() {
        "no name".to_string()
    } else if name.len() > MAX_NAME {
        format!("a name of {} bytes is too long", name.len())
    } else {
        "not a name".to_string()
    }
}

fn mem(value: &str) -> Result<MemSize, String> {
    let (digits, shift) = match value.char_indices().last() {
        Some((at, 'K' | 'k')) => (&value[..at], 10),
        Some((at, 'M' | 'm')) => (&value[..at], 20),
        Some((at, 'G' | 'g')) => (&value[..at], 30),
        _ => (value, 0),
    };
    let bytes = number(digits, 0..=u64::MAX >> shift)? << shift;
    if bytes > MemSize::MAX.bytes() {
        return Err("too large".to_string());
    }
    if bytes < MemSize::MIN.bytes() {
        return Err("too small".to_string());
    }
    MemSize::from_bytes(bytes).ok_or_else(|| "no whole number of 4K pages".to_string())
}

fn pin(value: &str) -> Result<Pin, String> {
    let cpu = |digits: &str| -> Result<CpuId, String> {
        Ok(CpuId::new(number(digits, 0..=IMAGE_CPUS as u64 - 1)? as u32))
    };
    if value == "all" {
        return Ok(Pin::All);
    }
    match value.split_once('-') {
        None => Ok(Pin::one(cpu(value)?)),
        Some((low, high)) => {
            let (low, high) = (cpu(low)?, cpu(high)?);
            if low > high {
                return Err(format!("{} is above {}", low.get(), high.get()));
            }
            Ok(Pin::Cpus { low, high })
        }
    }
}
