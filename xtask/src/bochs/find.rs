//! Which Bochs: the host's own if it will do, else Debian's, unpacked for us alone.

use std::{
    fmt,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::Result;

use super::private;
use crate::deps::in_path;

/// The name of the program itself in Debian's packages; `bochs` is a script around it.
const PROGRAMS: [&str; 2] = ["bochs-bin", "bochs"];

/// A release that there is a use for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Release {
    /// 3.0 or newer: MONITOR and MWAIT work.
    Current,
    /// 2.7: MONITOR forgets stores when another CPU uses it. Wanted for just that.
    Broken,
}

impl Release {
    /// The suite of Debian that has it.
    pub const fn suite(self) -> &'static str {
        match self {
            Self::Current => "trixie",
            Self::Broken => "bookworm",
        }
    }

    /// Whether a Bochs of this version is one.
    fn includes(self, version: (u32, u32)) -> bool {
        match self {
            Self::Current => version >= (3, 0),
            Self::Broken => version == (2, 7),
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Current => "Bochs 3.0 or newer",
            Self::Broken => "Bochs 2.7",
        })
    }
}

/// A Bochs that can be started.
#[derive(Clone, Debug)]
pub struct Bochs {
    program: PathBuf,
    first: Vec<String>,
    env: Vec<(&'static str, PathBuf)>,
}

/// The names behind the headline, up to the first empty line.
fn models_in(text: &str) -> Vec<String> {
    let mut lines = text.lines().map(str::trim);
    if !lines.any(|line| line.starts_with("Supported CPU models")) {
        return Vec::new();
    }
    let names = lines.skip_while(|line| line.is_empty());
    names
        .take_while(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}

impl Bochs {
    /// The CPU models that it knows; none if it does not tell.
    pub fn models(&self) -> Vec<String> {
        models_in(&self.help(&["cpu"]).unwrap_or_default())
    }

    /// The host's own.
    pub fn of_host() -> Self {
        let program = PROGRAMS.into_iter().find(|program| in_path(program));
        Self {
            program: program.unwrap_or("bochs").into(),
            first: Vec::new(),
            env: Vec::new(),
        }
    }

    /// One that brings its own libraries: its loader, the loader's arguments, and the environment.
    pub(super) fn private(
        program: PathBuf,
        first: Vec<String>,
        env: Vec<(&'static str, PathBuf)>,
    ) -> Self {
        Self {
            program,
            first,
            env,
        }
    }

    /// A command that starts it, to be completed.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.first).envs(self.env.iter().cloned());
        command
    }

    /// What it says when asked for help about `topic`.
    fn help(&self, topic: &[&str]) -> Option<String> {
        let mut command = self.command();
        command
            .arg("--help")
            .args(topic)
            .env("TERM", "vt100")
            .stdin(Stdio::null());
        let output = command.output().ok()?;
        Some(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    }

    /// Its version.
    pub fn version(&self) -> Option<(u32, u32)> {
        parse_version(&self.help(&[])?)
    }

    /// Whether it can do without a window.
    fn is_headless(&self) -> bool {
        self.help(&["features"]).is_some_and(|text| {
            text.split(|c: char| !c.is_alphanumeric())
                .any(|w| w == "term")
        })
    }
}

/// From the banner: `Bochs x86 Emulator 3.0`.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text
        .split_once("Bochs x86 Emulator ")?
        .1
        .split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// That Bochs is not to be had here: a reason to skip a test, not a fault of Lull's.
#[derive(Debug)]
pub struct Unavailable(pub Release, pub anyhow::Error);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not to be had here: {:#}", self.0, self.1)
    }
}

impl std::error::Error for Unavailable {}

/// Finds or gets this release.
///
/// # Errors
/// If the host has none and Debian's cannot be fetched.
pub fn find(release: Release) -> Result<Bochs, Unavailable> {
    if PROGRAMS.into_iter().any(in_path) {
        let own = Bochs::of_host();
        if let Some(version @ (major, minor)) = own.version()
            && release.includes(version)
            && (release == Release::Broken || own.is_headless())
        {
            eprintln!("xtask: Bochs {major}.{minor}: here");
            return Ok(own);
        }
    }
    private::get(release).map_err(|why| Unavailable(release, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_those_of_the_list() {
        let text = "p\nSupported CPU models:\n\ni386\nryzen\n\n0000i[SIM   ] quit_sim\n====\n";
        assert_eq!(models_in(text), ["i386", "ryzen"]);
        assert!(models_in("no list").is_empty());
    }

    #[test]
    fn versions_are_read_from_the_banner() {
        let banner =
            "====\n     Bochs x86 Emulator 2.7\n   Built from SVN snapshot on August  1, 2021\n";
        let version = parse_version(banner).unwrap();
        assert_eq!(version, (2, 7));
        assert!(Release::Broken.includes(version) && !Release::Current.includes(version));
        assert!(Release::Current.includes((3, 1)) && !Release::Broken.includes((3, 1)));
        assert_eq!(parse_version("no such thing"), None);
    }
}
