//! Cases without a machine: unit tests, model checks, lints. What cargo says is in `output.txt`.
//!
//! Firmware tables that QEMU cannot be made to offer (a MADT with disabled or duplicate CPUs) are tested here too:
//! by unit tests of the image's `acpi` module.

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use crate::{lint, model, process, test::case::Case, workspace};

/// How long cargo may take for one case, on a machine where nothing is compiled yet.
const LIMIT: Duration = Duration::from_secs(480);

/// Unit tests that are a case of their own: its name, the package, and which of its tests.
const GROUPS: [(&str, &str, &[&str]); 9] = [
    (
        "cstates/tables",
        "lull-core",
        &[
            "cstate::tables::",
            "cstate::models::",
            "cstate::limits::",
            "cstate::tests::",
        ],
    ),
    (
        "cstates/conformance",
        "lull-core",
        &["cstate::select::tests::conformance::"],
    ),
    ("cstates/rules", "lull-core", &["cstate::select::tests::"]),
    ("cstates/firmware-lists", "lull-core", &["cstate::acpi::"]),
    ("cstates/explained", "xtask", &["cstates::"]),
    ("cstates/residency", "lull-core", &["residency::"]),
    (
        "governors/golden",
        "lull-core",
        &["governor::golden_tests::"],
    ),
    ("governors/units", "lull-core", &["governor::"]),
    ("idle/steps", "lull-core", &["idle::"]),
];

/// Which of its tests a larger group leaves to a smaller one.
const APART: [&str; 2] = ["conformance::", "golden_tests::"];

/// Unit tests of one package, by the beginnings of their names. That there is none is a failure.
fn group(dir: &Path, package: &str, tests: &[&str]) -> Result<()> {
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--package", package]);
    // A package without a library has its tests in the program.
    cargo.arg(if package == "xtask" {
        "--bins"
    } else {
        "--lib"
    });
    cargo.args(["--", "--show-output"]).args(tests);
    let whole = |apart: &&&str| !tests.iter().any(|test| test.contains(**apart));
    for apart in APART.iter().filter(whole) {
        cargo.args(["--skip", *apart]);
    }
    run(&mut cargo, dir)?;
    let said = fs::read_to_string(dir.join("output.txt"))?;
    ensure!(
        passed(&said) > 0,
        "no test of {package} has a name with {}",
        tests.join(" or ")
    );
    Ok(())
}

/// How many tests cargo says have passed.
fn passed(said: &str) -> usize {
    let counts = said.lines().filter_map(|line| {
        let (_, rest) = line.split_once("test result: ok. ")?;
        rest.split_once(" passed")?.0.parse::<usize>().ok()
    });
    counts.sum()
}

pub fn cases() -> Vec<Case> {
    let groups = GROUPS
        .into_iter()
        .map(|(name, package, tests)| Case::host(name, move |dir| group(dir, package, tests)));
    let mut cases: Vec<Case> = groups.collect();
    cases.extend([
        Case::host("host/core-and-xtask", |dir| {
            let mut cargo = workspace::cargo();
            cargo.args(["test", "--quiet", "--no-fail-fast", "--"]);
            for (_, _, tests) in GROUPS {
                for test in tests {
                    cargo.args(["--skip", test]);
                }
            }
            run(&mut cargo, dir)
        }),
        cargo(
            "host/image",
            &["test", "--quiet", "--package", "lull", "--lib"],
        ),
        cargo(
            "host/guest-runtime",
            &["test", "--quiet", "--package", "guest-tests", "--lib"],
        ),
        cargo(
            "host/sim-counted",
            &[
                "test",
                "--quiet",
                "--package",
                "lull-sim",
                "--features",
                "count-accesses",
                "growth",
            ],
        ),
        Case::host("host/fuzz", fuzz),
        Case::host("host/model", |dir| {
            let mut cargo = model::cargo("loom_[!m]*");
            run(cargo.arg("--quiet"), dir)
        }),
        Case::host("host/model-wake", |dir| {
            let mut cargo = model::cargo("loom_model");
            run(cargo.args(["--quiet", "--", "--all"]), dir)
        }),
    ]);
    cases.extend(lint::CHECKS.iter().map(|check| {
        Case::host(format!("lint/{}", check.name), |dir| {
            run(&mut check.command(), dir)
        })
    }));
    cases
}

/// The fuzz targets, each with how long it runs where there is a fuzzer.
const FUZZ_TARGETS: [&str; 4] = ["options", "guests", "commands", "edits"];
const FUZZ_SECONDS: u32 = 5;
/// Texts for each target where there is none.
const MUTATIONS: &str = "30000";

/// What people type, mutated: by cargo-fuzz where it and a nightly compiler are, else by the same checks on fixed seeds.
fn fuzz(dir: &Path) -> Result<()> {
    let nightly = || {
        let mut cargo = Command::new("cargo");
        cargo
            .args(["+nightly", "fuzz"])
            .current_dir(workspace::root());
        // Of the compiler that runs this.
        cargo.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
        cargo
    };
    let mut version = nightly();
    version
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let here = version.status().is_ok_and(|status| status.success());
    if !here {
        let mut cargo = workspace::cargo();
        cargo.args(["test", "--quiet", "--package", "lull-core"]);
        cargo
            .args(["--test", "mutations"])
            .env("LULL_MUTATIONS", MUTATIONS);
        return run(&mut cargo, dir);
    }
    for target in FUZZ_TARGETS {
        let mut cargo = nightly();
        cargo.args(["run", "--fuzz-dir", "hypervisor/core/fuzz", target, "--"]);
        cargo.arg(format!("-max_total_time={FUZZ_SECONDS}"));
        cargo.arg(format!("-artifact_prefix={}/", dir.display()));
        run(&mut cargo, dir).with_context(|| format!("fuzz target {target}"))?;
    }
    Ok(())
}

fn cargo(name: &'static str, args: &'static [&'static str]) -> Case {
    Case::host(name, move |dir| run(workspace::cargo().args(args), dir))
}

/// Runs `command`; a failure shows the end of what it said.
fn run(command: &mut Command, dir: &Path) -> Result<()> {
    let path = dir.join("output.txt");
    let out = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    command.stdout(out.try_clone()?).stderr(out);
    process::run_within(command, Some(LIMIT))
        .with_context(|| tail(&fs::read_to_string(&path).unwrap_or_default()))
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines
        .iter()
        .skip(lines.len().saturating_sub(40))
        .fold(String::new(), |all, line| all + line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_passed_are_counted_over_all_programs() {
        let said = "running 2 tests\ntest result: ok. 2 passed; 0 failed; 0 ignored\n\n\
                    test result: ok. 3 passed; 0 failed\n";
        assert_eq!((passed(said), passed("error: no such package")), (5, 0));
    }

    #[test]
    fn the_end_of_the_output_is_shown() {
        let text: String = (0..100).map(|n| format!("line {n}\n")).collect();
        let end = tail(&text);
        assert!(
            end.starts_with("line 60\n") && end.ends_with("line 99\n"),
            "{end}"
        );
        assert_eq!(tail("one"), "one\n");
    }
}
