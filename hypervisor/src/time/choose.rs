//! Which of several claims about the TSC's rate to believe.
//!
//! Pure. CPUID is exact where it is honest, and honest is what agrees with a clock: a claim that differs from what was
//! measured by more than 1 % is not believed (there are machines whose leaves 15h and 16h speak of another CPU).
use super::measure::Bounds;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use lull_core::units::TickRate;

/// Where the rate of the TSC comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TscSource {
    /// Option `tsc-hz`.
    Option,
    /// CPUID leaf 15h (and 16h for the crystal): Intel SDM vol. 3, 20.7.3.
    Cpuid,
    /// CPUID leaf 4000_0010h of an outer hypervisor, in kHz.
    Hypervisor,
    /// Measured by the HPET.
    Hpet,
    /// Measured by the ACPI PM timer.
    PmTimer,
    /// Measured by channel 2 of the 8254.
    Pit,
    /// Nothing could tell: 1 GHz is assumed.
    Assumed,
}

impl TscSource {
    /// The word for it on the machine channel.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Option => "option",
            Self::Cpuid => "cpuid",
            Self::Hypervisor => "hypervisor",
            Self::Hpet => "hpet",
            Self::PmTimer => "pm-timer",
            Self::Pit => "pit",
            Self::Assumed => "assumed",
        }
    }
}

impl fmt::Display for TscSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What can be said about the rate before measuring.
#[derive(Clone, Copy, Debug, Default)]
pub struct Claims {
    /// Option `tsc-hz`.
    pub option: Option<u64>,
    /// CPUID leaves 15h and 16h, in Hz.
    pub cpuid: Option<u64>,
    /// The timing leaf of an outer hypervisor, in Hz.
    pub hypervisor: Option<u64>,
}

/// The choice, and what was wrong with the other claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Rate to use.
    pub rate: TickRate,
    /// Where it is from.
    pub source: TscSource,
    /// One line for each disagreement.
    pub problems: Vec<String>,
}

pub(super) const TOLERANCE_PERCENT: u64 = 1;
/// Used when nothing tells the rate.
pub(super) const ASSUMED: TickRate = match TickRate::from_hz(1_000_000_000) {
    Some(rate) => rate,
    None => unreachable!(),
};

/// Chooses. `measured` is in order of trust. The option wins over everything, with a warning if it is off.
pub fn choose(claims: Claims, measured: &[(TscSource, Bounds)]) -> Choice {
    let mut problems = Vec::new();
    let contradicts = |hz: u64, b: Bounds| b.contradicts(hz, TOLERANCE_PERCENT);

    // A measurement that another one supports, else the most trusted one.
    let best = measured
        .iter()
        .enumerate()
        .find(|(i, (_, b))| {
            measured
                .iter()
                .enumerate()
                .any(|(j, (_, o))| j != *i && !contradicts(b.roundest(), *o))
        })
        .map(|(_, m)| *m)
        .or_else(|| measured.first().copied());
    if let Some((source, bounds)) = best {
        for (other, theirs) in measured {
            if *other != source && contradicts(bounds.roundest(), *theirs) {
                problems.push(format!(
                    "{source} measures {} Hz, but {other} {} Hz: using {source}",
                    bounds.roundest(),
                    theirs.roundest()
                ));
            }
        }
    }

    let mut chosen = None;
    for (source, claim) in [
        (TscSource::Option, claims.option),
        (TscSource::Cpuid, claims.cpuid),
        (TscSource::Hypervisor, claims.hypervisor),
    ] {
        let Some(rate) = claim.and_then(TickRate::from_hz) else {
            continue;
        };
        let doubt = best.filter(|(_, b)| contradicts(rate.hz(), *b));
        if let Some((by, bounds)) = doubt {
            let verdict = if source == TscSource::Option {
                "using the option"
            } else {
                "using what was measured"
            };
            problems.push(format!(
                "{source} says {} Hz, but {by} measures {} Hz: {verdict}",
                rate.hz(),
                bounds.roundest()
            ));
        }
        if chosen.is_none() && (doubt.is_none() || source == TscSource::Option) {
            chosen = Some((rate, source));
        }
    }
    let (rate, source) = chosen
        .or_else(|| best.and_then(|(source, bounds)| Some((TickRate::from_hz(bounds.roundest())?, source))))
        .unwrap_or_else(|| {
            problems.push(format!(
                "no CPUID leaf, HPET, PM timer or PIT tells the TSC's rate: assuming {ASSUMED}, all times may be wrong"
            ));
            (ASSUMED, TscSource::Assumed)
        });
    Choice {
        rate,
        source,
        problems,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(hz: u64) -> Bounds {
        Bounds {
            min: hz - hz / 100_000,
            max: hz + hz / 100_000,
        }
    }

    #[test]
    fn an_honest_cpuid_wins_over_measuring() {
        let c = choose(
            Claims {
                cpuid: Some(2_112_000_123),
                ..Claims::default()
            },
            &[(TscSource::Hpet, around(2_112_000_000))],
        );
        assert_eq!(
            (c.rate.hz(), c.source, c.problems.len()),
            (2_112_000_123, TscSource::Cpuid, 0)
        );
    }

    #[test]
    fn a_false_cpuid_is_named_and_not_used() {
        let c = choose(
            Claims {
                cpuid: Some(3_500_000_000),
                ..Claims::default()
            },
            &[
                (TscSource::Hpet, around(10_000_000)),
                (TscSource::PmTimer, around(10_000_010)),
            ],
        );
        assert_eq!((c.rate.hz(), c.source), (10_000_000, TscSource::Hpet));
        assert_eq!(
            c.problems,
            ["cpuid says 3500000000 Hz, but hpet measures 10000000 Hz: using what was measured"]
        );
    }

    #[test]
    fn the_option_is_obeyed_with_a_warning() {
        let c = choose(
            Claims {
                option: Some(5),
                cpuid: Some(1_000_000_000),
                hypervisor: None,
            },
            &[(TscSource::Pit, around(1_000_000_000))],
        );
        assert_eq!(
            (c.rate.hz(), c.source, c.problems.len()),
            (5, TscSource::Option, 1)
        );
    }

    #[test]
    fn two_clocks_outvote_one() {
        let c = choose(
            Claims::default(),
            &[
                (TscSource::Hpet, around(1_300_000_000)),
                (TscSource::PmTimer, around(1_000_000_000)),
                (TscSource::Pit, around(1_000_000_000)),
            ],
        );
        assert_eq!((c.rate.hz(), c.source), (1_000_000_000, TscSource::PmTimer));
        assert_eq!(c.problems.len(), 1);
    }

    #[test]
    fn without_any_clock_it_assumes_and_says_so() {
        let c = choose(
            Claims {
                cpuid: Some(0),
                ..Claims::default()
            },
            &[],
        );
        assert_eq!((c.source, c.problems.len()), (TscSource::Assumed, 1));
        let c = choose(
            Claims {
                hypervisor: Some(2_000_000_000),
                ..Claims::default()
            },
            &[],
        );
        assert_eq!(
            (c.rate.hz(), c.source),
            (2_000_000_000, TscSource::Hypervisor)
        );
    }
}
