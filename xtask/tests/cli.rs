//! The command line as a user meets it: the real program, in surroundings that lack something.
#![expect(
    clippy::expect_used,
    reason = "a test that cannot set up its surroundings has failed"
)]

use std::{
    env,
    ffi::OsStr,
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Output},
};

/// Where the compiler and its tools are: they are not what is missing.
fn toolchain() -> PathBuf {
    let cargo = PathBuf::from(env::var_os("CARGO").expect("cargo runs the tests"));
    cargo.parent().expect("cargo is in a folder").to_owned()
}

/// The program, which finds only what is in `path`.
fn xtask(path: impl AsRef<OsStr>, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(args)
        .env("PATH", path)
        .env("RUSTC", toolchain().join("rustc"))
        .output()
        .expect("xtask is built")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A folder with a QEMU that says it is of `version`.
fn with_qemu(version: &str) -> PathBuf {
    let dir = env::temp_dir().join(format!("lull-cli-{version}-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("a folder");
    let qemu = dir.join("qemu-system-x86_64");
    fs::write(
        &qemu,
        format!("#!/bin/sh\necho QEMU emulator version {version}\n"),
    )
    .expect("a file");
    fs::set_permissions(&qemu, fs::Permissions::from_mode(0o755)).expect("a program");
    dir
}

#[test]
fn a_missing_emulator_is_named_with_what_to_do() {
    let output = xtask("/nowhere", &["doctor"]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("qemu-system-x86_64 is missing"), "{said}");
    assert!(
        said.contains("sudo apt-get install qemu-system-x86"),
        "{said}"
    );
}

#[test]
fn a_missing_compiler_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .arg("doctor")
        .env("PATH", "/nowhere")
        .env_remove("RUSTC")
        .output()
        .expect("xtask is built");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("cannot run `rustc`"),
        "{}",
        said(&output)
    );
}

#[test]
fn an_old_emulator_is_refused_and_a_newer_one_taken() {
    let (old, newer) = (with_qemu("6.2.0"), with_qemu("10.0.2"));
    let output = xtask(&old, &["doctor"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("6.2 is too old: Lull needs 7.2 or newer"),
        "{}",
        said(&output)
    );
    let path = env::join_paths([newer.clone(), toolchain()]).expect("plain folders");
    let output = xtask(path, &["doctor"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(
        said(&output).contains("qemu-system-x86_64 10.0: here"),
        "{}",
        said(&output)
    );
    for dir in [old, newer] {
        fs::remove_dir_all(dir).expect("our own folder");
    }
}

#[test]
fn wrong_arguments_are_named() {
    for (args, part) in [
        (&["run", "--cpus", "300"][..], "300 is not in 1..=255"),
        (
            &["run", "--guest", "busy,weight=0"][..],
            "weight=N from 1 to 65535",
        ),
        (
            &["test", "--filter", "no-such-case"][..],
            "`cargo xtask test --list` lists them",
        ),
        (
            &["sim", "--cpus", "5000"][..],
            "5000 CPUs: expected 1 to 4096",
        ),
        (
            &["sim", "--load", "fly*3"][..],
            "`fly` is none of idle, batch,",
        ),
        (
            &["sim", "--break", "all"][..],
            "`all` is none of drop-ipi, ignore-store,",
        ),
        (
            &["sim", "--governor", "best"][..],
            "governor `best` is none of lull, menu",
        ),
        (&["sim", "--seconds", "-1"][..], "unexpected argument '-1'"),
        (&["fly"][..], "unrecognized subcommand 'fly'"),
    ] {
        let output = xtask("/nowhere", args);
        assert!(!output.status.success());
        assert!(said(&output).contains(part), "{args:?}: {}", said(&output));
    }
}

#[test]
fn help_explains_every_option_of_run() {
    let output = xtask("/nowhere", &["run", "--help"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for option in [
        "--cpus",
        "--mem",
        "--guest",
        "--for",
        "--cmdline",
        "--accel",
        "--cpu ",
        "--icount",
        "--keep",
        "--gdb",
        "--json",
        "--quiet",
    ] {
        assert!(text.contains(option), "{option} is missing in:\n{text}");
    }
}

#[test]
fn a_broken_machine_fails_with_a_command_that_fails_again() {
    let broken = [
        "sim",
        "--explore",
        "--seeds",
        "20",
        "--break",
        "forget-tickle",
    ];
    let said_first = said(&xtask("/nowhere", &broken));
    let replay = said_first
        .lines()
        .find_map(|line| line.strip_prefix("replay: cargo xtask "));
    let replay: Vec<&str> = replay.expect("a command").split(' ').collect();
    let output = xtask("/nowhere", &replay);
    assert_eq!(output.status.code(), Some(1));
    let said = said(&output);
    assert_eq!(said.lines().next(), said_first.lines().next());
    assert!(said.contains("work-conserving at "), "{said}");
}
