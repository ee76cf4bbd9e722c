//! `--guest NAME[,vcpus=..,mem=..,weight=..,pin=..,cmdline=..]`: one line of the boot bundle's guest list.

use std::{fmt, str::FromStr};

use anyhow::{Result, anyhow, bail};

/// The options of a guest, in the order of the guest list's documentation.
const OPTIONS: [&str; 6] = ["kernel", "vcpus", "mem", "weight", "pin", "cmdline"];

/// One guest to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestArg {
    /// Its name, which is also its kernel's unless `kernel=` says otherwise.
    pub name: String,
    /// Options and values as given.
    options: Vec<(String, String)>,
}

impl GuestArg {
    /// The kernel that it boots.
    pub fn kernel(&self) -> &str {
        self.get("kernel").unwrap_or(&self.name)
    }

    /// Adds `key=value` unless the user has said something about `key`.
    pub fn or_default(&mut self, key: &str, value: impl fmt::Display) {
        if self.get(key).is_none() {
            self.options.push((key.to_owned(), value.to_string()));
        }
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.options
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    }
}

impl FromStr for GuestArg {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, mut rest) = text.split_once(',').unwrap_or((text, ""));
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || "/=\"#".contains(c)) {
            bail!(
                "`{name}` is not the name of a guest (expected NAME[,option=value]..., for example `idle-timer,vcpus=1`)"
            );
        }
        let mut guest = Self {
            name: name.to_owned(),
            options: Vec::new(),
        };
        while !rest.is_empty() {
            // A kernel's command line may hold commas: it takes all that is left.
            let (word, more) = if rest.starts_with("cmdline=") {
                (rest, "")
            } else {
                rest.split_once(',').unwrap_or((rest, ""))
            };
            rest = more;
            let (key, value) = word.split_once('=').ok_or_else(|| {
                anyhow!(
                    "`{word}` of guest {name} has no value (expected {})",
                    known()
                )
            })?;
            if !OPTIONS.contains(&key) {
                bail!("guest {name} has no option `{key}` (expected {})", known());
            }
            if guest.get(key).is_some() {
                bail!("option `{key}` of guest {name} is given twice");
            }
            let value = value
                .strip_prefix('"')
                .and_then(|v| v.strip_suffix('"'))
                .unwrap_or(value);
            if value.contains(['"', '\n']) {
                bail!(
                    "option `{key}` of guest {name} holds a quote or a line end, which the guest list cannot carry"
                );
            }
            guest.options.push((key.to_owned(), value.to_owned()));
        }
        Ok(guest)
    }
}

fn known() -> String {
    OPTIONS.map(|option| format!("{option}=")).join(", ")
}

impl fmt::Display for GuestArg {
    /// As a line of the guest list.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for (key, value) in &self.options {
            if key == "cmdline" {
                write!(f, " {key}=\"{value}\"")?;
            } else {
                write!(f, " {key}={value}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> String {
        text.parse::<GuestArg>().unwrap().to_string()
    }

    fn error(text: &str) -> String {
        text.parse::<GuestArg>().unwrap_err().to_string()
    }

    #[test]
    fn a_line_of_the_guest_list() {
        assert_eq!(line("busy"), "busy");
        assert_eq!(
            line("busy,weight=512,pin=0-1,mem=32M"),
            "busy weight=512 pin=0-1 mem=32M"
        );
        assert_eq!(
            line("a,cmdline=duty=30 x=1,2"),
            "a cmdline=\"duty=30 x=1,2\""
        );
        assert_eq!(
            line("a,vcpus=2,cmdline=\"duty=30\""),
            "a vcpus=2 cmdline=\"duty=30\""
        );
    }

    #[test]
    fn a_default_does_not_override() {
        let mut guest: GuestArg = "ipi-pair,vcpus=4".parse().unwrap();
        guest.or_default("vcpus", 2);
        guest.or_default("weight", 7);
        assert_eq!(guest.to_string(), "ipi-pair vcpus=4 weight=7");
        let other: GuestArg = "second,kernel=busy".parse().unwrap();
        assert_eq!((guest.kernel(), other.kernel()), ("ipi-pair", "busy"));
    }

    #[test]
    fn errors_name_the_word_and_what_is_expected() {
        assert_eq!(
            error("busy,wieght=1"),
            "guest busy has no option `wieght` (expected kernel=, vcpus=, mem=, weight=, pin=, cmdline=)"
        );
        assert!(error("busy,pin").starts_with("`pin` of guest busy has no value"));
        assert!(error(",pin=1").contains("is not the name of a guest"));
        assert!(error("a/b").contains("is not the name of a guest"));
        assert_eq!(
            error("busy,mem=1M,mem=2M"),
            "option `mem` of guest busy is given twice"
        );
        assert!(error("busy,cmdline=a\"b").contains("quote"));
    }
}
