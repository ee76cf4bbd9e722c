//! `cargo xtask lint`: formatting, clippy on the host and on bare metal, rustdoc. No warning is let through.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{
    deps, process,
    workspace::{self, BARE_METAL},
};

/// One check.
pub struct Check {
    /// Its name in lists.
    pub name: &'static str,
    args: &'static [&'static str],
    env: Option<(&'static str, &'static str)>,
}

/// All checks.
pub const CHECKS: [Check; 7] = [
    Check {
        name: "fmt",
        args: &["fmt", "--all", "--check"],
        env: None,
    },
    Check {
        name: "clippy-host",
        args: &[
            "clippy",
            "--quiet",
            "--all-targets",
            "--",
            "--deny",
            "warnings",
        ],
        env: None,
    },
    Check {
        // What of the image and of the guests' runtime is tested on the host.
        name: "clippy-host-image",
        args: &[
            "clippy",
            "--quiet",
            "--package",
            "lull",
            "--package",
            "guest-tests",
            "--lib",
            "--tests",
            "--",
            "--deny",
            "warnings",
        ],
        env: None,
    },
    Check {
        name: "clippy-counted",
        args: &[
            "clippy",
            "--quiet",
            "--package",
            "lull-core",
            "--package",
            "lull-sim",
            "--features",
            "count-accesses",
            "--all-targets",
            "--",
            "--deny",
            "warnings",
        ],
        env: None,
    },
    Check {
        name: "clippy-bare-metal",
        args: &[
            "clippy",
            "--quiet",
            "--release",
            "--target",
            BARE_METAL,
            "--package",
            "lull",
            "--package",
            "guest-tests",
            "--lib",
            "--bins",
            "--",
            "--deny",
            "warnings",
        ],
        env: None,
    },
    Check {
        name: "doc-host",
        args: &["doc", "--quiet", "--no-deps"],
        env: Some(("RUSTDOCFLAGS", "--deny warnings")),
    },
    Check {
        name: "doc-bare-metal",
        args: &[
            "doc",
            "--quiet",
            "--no-deps",
            "--target",
            BARE_METAL,
            "--package",
            "lull",
            "--package",
            "guest-tests",
        ],
        env: Some(("RUSTDOCFLAGS", "--deny warnings")),
    },
];

impl Check {
    /// The command that checks.
    pub fn command(&self) -> Command {
        let mut cargo = workspace::cargo();
        cargo.args(self.args);
        if let Some((name, value)) = self.env {
            cargo.env(name, value);
        }
        cargo
    }
}

/// `cargo xtask lint`.
///
/// # Errors
/// If a check finds something: all are run first.
pub fn command() -> Result<()> {
    deps::bare_metal_target()?;
    deps::lint_tools()?;
    let mut failed = Vec::new();
    for check in &CHECKS {
        eprintln!("xtask: {}", check.name);
        if let Err(why) = process::run(&mut check.command()) {
            eprintln!("xtask: {why:#}");
            failed.push(check.name);
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        bail!("these checks failed: {}", failed.join(", "))
    }
}
