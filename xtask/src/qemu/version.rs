//! Which QEMU this is: a few of its habits changed over time.

use std::{fmt, process::Command};

use anyhow::{Context, Result, anyhow};

/// `major.minor` of a QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
}

impl Version {
    /// The oldest that must do: Debian 12's.
    pub const OLDEST: Self = Self { major: 7, minor: 2 };

    /// Asks `program`.
    ///
    /// # Errors
    /// If it cannot be run or says something else.
    pub fn of(program: &str) -> Result<Self> {
        let output = Command::new(program)
            .arg("--version")
            .output()
            .with_context(|| format!("cannot run `{program}`"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        Self::parse(&text).ok_or_else(|| {
            anyhow!(
                "`{program} --version` said {:?}",
                text.lines().next().unwrap_or("")
            )
        })
    }

    /// From the first line of `--version`: `QEMU emulator version 7.2.22 (Debian ...)`.
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text
            .split_once("version ")?
            .1
            .split(|c: char| !c.is_ascii_digit());
        Some(Self {
            major: numbers.next()?.parse().ok()?,
            minor: numbers.next()?.parse().ok()?,
        })
    }

    /// From 8 on, TCG offers x2APIC.
    pub fn tcg_has_x2apic(self) -> bool {
        self.major >= 8
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_ordered() {
        let debian = Version::parse(
            "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\nCopyright",
        )
        .unwrap();
        assert_eq!(debian, Version { major: 7, minor: 2 });
        assert!(Version::parse("QEMU emulator version 10.0.2").unwrap() > debian);
        assert!(Version { major: 6, minor: 9 } < Version::OLDEST);
        assert_eq!(Version::parse("something else"), None);
    }
}
