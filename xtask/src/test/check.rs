//! What is asked of a run that has ended.

use anyhow::{Context, Result, bail, ensure};

use super::rig::Ran;
use crate::{
    channel::{Channel, Counters, CpuCounters, Cstates, GuestEvent, State},
    qemu::exit,
};

/// The share of the time that may be missing or too much: 0.1 %.
const ACCOUNTING: f64 = 0.001;

impl Ran {
    pub fn channel(&self) -> &Channel {
        &self.ended.channel
    }

    /// It ended by itself with this status and exit code.
    pub fn ended_with(&self, status: &str, code: i32) -> Result<&Self> {
        let found = self.channel().end().map(|end| end.status.as_str());
        ensure!(
            found == Some(status) && self.ended.code() == Some(code),
            "expected the end `{status}` with exit code {code}, found {found:?} ({}); {}",
            self.ended.how(),
            self.complaints()
        );
        self.channel_is_sound()
    }

    /// It ended well, and the time of every CPU adds up in every reading.
    pub fn ok(&self) -> Result<&Self> {
        self.ended_with("ok", exit::OK)?;
        ensure!(
            self.channel().boot().is_some(),
            "the machine channel has no `boot`"
        );
        self.adds_up()
    }

    /// Every line of the machine channel is a message.
    fn channel_is_sound(&self) -> Result<&Self> {
        if let Some(fault) = self.channel().faults.first() {
            bail!("the machine channel is damaged: {fault}");
        }
        Ok(self)
    }

    fn complaints(&self) -> String {
        let problems: Vec<String> = self
            .channel()
            .problems()
            .map(|p| format!("{} {}: {}", p.place, p.name, p.why))
            .collect();
        let guests: Vec<String> = self
            .channel()
            .guests()
            .filter(|guest| guest.event == "end" && !guest.passed())
            .map(|guest| {
                format!(
                    "{} said {:?}, {:?}",
                    guest.name, guest.verdict, guest.reason
                )
            })
            .collect();
        format!("problems {problems:?}, guests {guests:?}")
    }

    /// The end of the guest `name`, which must be there.
    pub fn end_of(&self, name: &str) -> Result<&GuestEvent> {
        self.channel()
            .guests()
            .find(|guest| guest.event == "end" && guest.name == name)
            .with_context(|| format!("guest {name} did not end; {}", self.complaints()))
    }

    /// The guest `name` said PASS.
    pub fn passed(&self, name: &str) -> Result<&Self> {
        let end = self.end_of(name)?;
        ensure!(
            end.passed(),
            "guest {name}: verdict {:?}, reason {:?}, how {:?}",
            end.verdict,
            end.reason,
            end.how
        );
        Ok(self)
    }

    /// A complaint that has all of these texts in its place, name, reason or expectation.
    pub fn complains(&self, place: &str, texts: &[&str]) -> Result<&Self> {
        let found = self.channel().problems().any(|problem| {
            let whole = format!(
                "{} {} {}",
                problem.name,
                problem.why,
                problem.expected.as_deref().unwrap_or("")
            );
            problem.place == place
                && texts
                    .iter()
                    .all(|text| whole.to_lowercase().contains(&text.to_lowercase()))
        });
        ensure!(
            found,
            "no complaint about {place} with {texts:?}; {}",
            self.complaints()
        );
        Ok(self)
    }

    /// The last reading of the counters.
    pub fn last_reading(&self) -> Result<&Cstates> {
        self.channel()
            .cstates()
            .next_back()
            .context("the machine channel has no `cstates`")
    }

    /// For every CPU in every reading: C0 + residency + interrupts = elapsed, and guests + hypervisor = C0.
    pub fn adds_up(&self) -> Result<&Self> {
        self.last_reading()?;
        for reading in self.channel().cstates() {
            ensure!(
                !reading.cpus.is_empty(),
                "reading {} has no CPU",
                reading.seq
            );
            for cpu in &reading.cpus {
                // A key may be pressed before a CPU has begun.
                if cpu.counters.elapsed == 0 && reading.reason != "end" {
                    continue;
                }
                adds_up(&cpu.counters)
                    .with_context(|| format!("reading {}, CPU {}", reading.seq, cpu.cpu))?;
            }
        }
        Ok(self)
    }

    /// The time that the vCPUs of the guest `name` ran, in ticks.
    pub fn run_ticks(&self, name: &str) -> Result<u64> {
        Ok(self.end_of(name)?.run_ticks.iter().sum())
    }

    /// How often vCPUs of the guest `name` left it by an exit of this kind.
    pub fn exits(&self, name: &str, kind: &str) -> Result<u64> {
        let end = self.end_of(name)?;
        ensure!(!end.exits.is_empty(), "guest {name} ended without exits");
        Ok(end.exits.get(kind).copied().unwrap_or(0))
    }

    /// The figure `figure` of the guest `name`.
    pub fn figure(&self, name: &str, figure: &str) -> Result<f64> {
        let id = self.end_of(name)?.id;
        self.channel()
            .figures()
            .find(|other| other.guest == id && other.name == figure)
            .and_then(|figure| figure.number())
            .with_context(|| format!("guest {name} reported no number `{figure}`"))
    }
}

fn adds_up(counters: &Counters) -> Result<()> {
    ensure!(counters.elapsed > 0, "no time has passed");
    let sum = counters.c0 + counters.residency() + counters.irq();
    ensure!(
        near(sum, counters.elapsed),
        "C0 {} + residency {} + interrupts {} = {sum}, elapsed {}: off by more than 0.1 %",
        counters.c0,
        counters.residency(),
        counters.irq(),
        counters.elapsed
    );
    let awake = counters.guest + counters.hypervisor;
    ensure!(
        near(awake, counters.c0),
        "guests {} + hypervisor {} = {awake}, C0 {}: off by more than 0.1 %",
        counters.guest,
        counters.hypervisor,
        counters.c0
    );
    Ok(())
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a tolerance of 0.1 % needs no exact digits"
)]
fn near(sum: u64, whole: u64) -> bool {
    sum.abs_diff(whole) as f64 <= whole as f64 * ACCOUNTING
}

/// The counters of CPU `index` in `reading`.
pub fn cpu(reading: &Cstates, index: u32) -> Result<&CpuCounters> {
    reading
        .cpus
        .iter()
        .find(|cpu| cpu.cpu == index)
        .with_context(|| format!("no CPU {index} in the reading"))
}

/// The idle state `name` of a CPU.
pub fn state<'a>(counters: &'a Counters, name: &str) -> Result<&'a State> {
    counters
        .states
        .iter()
        .find(|state| state.name == name)
        .with_context(|| format!("no state {name}"))
}

/// `part / whole`.
#[expect(
    clippy::cast_precision_loss,
    reason = "shares are compared to a percent"
)]
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        f64::NAN
    } else {
        part as f64 / whole as f64
    }
}

/// `found` is within `tolerance` of `wanted` (both absolute).
pub fn within(what: &str, found: f64, wanted: f64, tolerance: f64) -> Result<()> {
    ensure!(
        (found - wanted).abs() <= tolerance,
        "{what} is {found:.5}, must be within {tolerance:.5} of {wanted:.5}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(c0: u64, guest: u64, residency: u64) -> Counters {
        let state = crate::channel::State {
            residency,
            irq: 10,
            ..Default::default()
        };
        Counters {
            elapsed: 100_000,
            c0,
            guest,
            hypervisor: 500,
            states: vec![state],
            ..Default::default()
        }
    }

    #[test]
    fn a_tenth_of_a_percent_is_seen() {
        adds_up(&counters(20_000, 19_500, 79_990)).unwrap();
        adds_up(&counters(20_000, 19_500, 79_891)).unwrap();
        assert!(
            adds_up(&counters(20_000, 19_500, 79_880)).is_err(),
            "time is missing"
        );
        assert!(
            adds_up(&counters(20_000, 19_500, 80_200)).is_err(),
            "time is counted twice"
        );
        assert!(
            adds_up(&counters(20_000, 19_400, 79_990)).is_err(),
            "C0 is not guests and hypervisor"
        );
        assert!(
            adds_up(&Counters::default()).is_err(),
            "nothing was measured"
        );
    }

    #[test]
    fn nothing_of_nothing_is_not_near() {
        assert!(within("x", share(0, 0), 0.5, 1.0).is_err());
        within("x", share(1, 2), 0.5, 0.0).unwrap();
    }
}
