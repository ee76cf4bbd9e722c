//! `--guest NAME[,vcpus=..,mem=..,weight=..,pin=..,cmdline=..]`: one line of the boot bundle's guest list.
//!
//! The image's own parser reads it, so that what is accepted here is accepted there.

use std::{fmt, str::FromStr};

use anyhow::{Result, anyhow};
use lull_core::guests_txt::GuestConfig;

use crate::build::Built;

/// One guest to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestArg {
    /// As given.
    spec: String,
    config: GuestConfig,
}

impl GuestArg {
    /// The kernel that it boots.
    pub fn kernel(&self) -> &str {
        &self.config.kernel
    }

    /// Adds `option=value` unless the user has said something about `option`.
    pub fn or_default(&mut self, option: &str, value: &str) {
        // An option that is given twice is refused, and what is refused changes nothing.
        if let Ok(completed) = format!("{},{option}={value}", self.spec).parse() {
            *self = completed;
        }
    }
}

impl FromStr for GuestArg {
    type Err = anyhow::Error;

    fn from_str(spec: &str) -> Result<Self> {
        let config = GuestConfig::from_commas(spec).map_err(|problems| {
            let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
            anyhow!("{}", texts.join("; "))
        })?;
        Ok(Self {
            spec: spec.to_owned(),
            config,
        })
    }
}

impl fmt::Display for GuestArg {
    /// As a line of the guest list.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}

/// The guests where none are named.
const DEFAULT_GUESTS: [&str; 2] = ["idle-timer", "ipi-pair"];

/// The guests asked for, or the default ones, with what their kernels want where the user says nothing.
///
/// # Errors
/// If a kernel is not there.
pub fn complete(asked: &[GuestArg], built: &Built) -> Result<Vec<GuestArg>> {
    let mut guests = asked.to_vec();
    if guests.is_empty() {
        guests = DEFAULT_GUESTS
            .iter()
            .map(|name| name.parse())
            .collect::<Result<_>>()?;
    }
    for guest in &mut guests {
        built.guest(guest.kernel())?.complete(guest);
    }
    Ok(guests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_guest_list() {
        let line = |text: &str| text.parse::<GuestArg>().unwrap().to_string();
        assert_eq!(line("busy"), "busy");
        assert_eq!(
            line("busy,weight=512,pin=0-1,mem=64M"),
            "busy mem=64M weight=512 pin=0-1"
        );
        assert_eq!(
            line("a,cmdline=\"duty=30 x=1,2\",pin=1"),
            "a pin=1 cmdline=\"duty=30 x=1,2\""
        );
    }

    #[test]
    fn a_default_does_not_override() {
        let mut guest: GuestArg = "ipi-pair,vcpus=1".parse().unwrap();
        guest.or_default("vcpus", "2");
        guest.or_default("weight", "7");
        guest.or_default("cmdline", "\"rounds=5 x\"");
        assert_eq!(
            guest.to_string(),
            "ipi-pair weight=7 cmdline=\"rounds=5 x\""
        );
        let other: GuestArg = "second,kernel=busy".parse().unwrap();
        assert_eq!((guest.kernel(), other.kernel()), ("ipi-pair", "busy"));
    }

    #[test]
    fn errors_name_the_word_and_what_is_expected() {
        let why = "busy,wieght=1,pin"
            .parse::<GuestArg>()
            .unwrap_err()
            .to_string();
        assert!(why.contains("wieght=1") && why.contains("weight="), "{why}");
        assert!(why.contains("`pin`"), "all that is wrong: {why}");
        let why = ",pin=1".parse::<GuestArg>().unwrap_err().to_string();
        assert!(why.contains("expected"), "{why}");
    }
}
