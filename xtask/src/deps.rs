//! Checks what a build and a run need, and installs what is missing, saying each step.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::unistd::geteuid;

use crate::{
    process,
    qemu::Version,
    workspace::{self, BARE_METAL},
};

/// The emulator.
pub const QEMU: &str = "qemu-system-x86_64";
/// Debian's and Ubuntu's package of it.
const QEMU_PACKAGE: &str = "qemu-system-x86";
/// The compiler of ACPI tables.
pub const IASL: &str = "iasl";
/// Debian's and Ubuntu's package of it.
const IASL_PACKAGE: &str = "acpica-tools";

/// `cargo xtask doctor`.
///
/// # Errors
/// If something is missing that cannot be installed; the error says what to type.
pub fn doctor() -> Result<()> {
    bare_metal_target()?;
    qemu()?;
    lint_tools()?;
    match iasl() {
        Ok(()) => eprintln!("xtask: {IASL}: here"),
        Err(why) => eprintln!("xtask: {why:#}; nothing but the tests of `acpi/` needs it"),
    }
    eprintln!("xtask: all that Lull needs is here");
    Ok(())
}

/// Makes sure that the compiler can build for bare metal.
///
/// # Errors
/// If it cannot and `rustup` cannot help.
pub fn bare_metal_target() -> Result<()> {
    if has_target_library()? {
        eprintln!("xtask: Rust target {BARE_METAL}: here");
        return Ok(());
    }
    eprintln!("xtask: Rust target {BARE_METAL}: missing; running `rustup target add {BARE_METAL}`");
    let mut rustup = Command::new("rustup");
    rustup
        .args(["target", "add", BARE_METAL])
        .current_dir(workspace::root());
    if let Err(why) = process::run(&mut rustup) {
        bail!(
            "the Rust target {BARE_METAL} is missing and could not be added: {why:#}\n\
             Install it with `rustup target add {BARE_METAL}` in this folder, or, if your Rust does not come \
             from rustup, install your distribution's package of that target"
        );
    }
    if has_target_library()? {
        Ok(())
    } else {
        bail!(
            "`rustup target add {BARE_METAL}` succeeded, yet the compiler in use does not find the target: \
             is it the compiler of rustup (`rustup which rustc`)?"
        )
    }
}

/// Whether the standard library (here: `core` and `alloc`) of the target is installed for the compiler in use.
fn has_target_library() -> Result<bool> {
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc
        .current_dir(workspace::root())
        .args(["--print", "target-libdir", "--target", BARE_METAL]);
    let output = rustc.output().with_context(|| {
        "cannot run `rustc`: install Rust from https://rustup.rs (rust-toolchain.toml names the version)".to_owned()
    })?;
    let dir = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let found = dir.read_dir().is_ok_and(|files| {
        files
            .flatten()
            .any(|file| file.file_name().to_string_lossy().starts_with("libcore-"))
    });
    Ok(output.status.success() && found)
}

/// Makes sure that rustfmt and clippy are there.
///
/// # Errors
/// If one is missing and `rustup` cannot help.
pub fn lint_tools() -> Result<()> {
    for (subcommand, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        let here = || {
            let output = workspace::cargo().args([subcommand, "--version"]).output();
            output.is_ok_and(|output| output.status.success())
        };
        if here() {
            eprintln!("xtask: {component}: here");
            continue;
        }
        eprintln!("xtask: {component}: missing; running `rustup component add {component}`");
        let mut rustup = Command::new("rustup");
        rustup
            .args(["component", "add", component])
            .current_dir(workspace::root());
        process::run(&mut rustup).with_context(|| {
            format!("{component} is missing; install it with `rustup component add {component}`")
        })?;
        ensure!(
            here(),
            "{component} is installed, yet `cargo {subcommand}` does not find it"
        );
    }
    Ok(())
}

/// Makes sure that QEMU is there.
///
/// # Errors
/// If it is missing and cannot be installed.
pub fn qemu() -> Result<Version> {
    if !in_path(QEMU) {
        install(QEMU, &[QEMU_PACKAGE], &by_hand())?;
    }
    let version = Version::of(QEMU)?;
    if version < Version::OLDEST {
        bail!(
            "{QEMU} {version} is too old: Lull needs {} or newer",
            Version::OLDEST
        );
    }
    eprintln!("xtask: {QEMU} {version}: here");
    Ok(version)
}

/// Makes sure that the compiler of ACPI tables is there.
///
/// # Errors
/// If it is missing and cannot be installed.
pub fn iasl() -> Result<()> {
    // Tests ask for it side by side: one of them installs it.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    if in_path(IASL) {
        return Ok(());
    }
    let by_hand = format!(
        "install it with `sudo apt-get install {IASL_PACKAGE}` (Debian, Ubuntu), `sudo dnf install acpica-tools` \
         (Fedora) or `sudo pacman -S acpica` (Arch), and try again"
    );
    install(IASL, &[IASL_PACKAGE], &by_hand)
}

/// What makes a bootable ISO image, and Debian's and Ubuntu's packages of it.
const ISO_TOOLS: [(&str, &[&str]); 3] = [
    ("grub-mkrescue", &["grub-common", "grub-pc-bin"]),
    ("xorriso", &["xorriso"]),
    ("mformat", &["mtools"]),
];
/// GRUB for PCs with a BIOS: a part of it, since the programs above do without.
const GRUB_PC: &str = "/usr/lib/grub/i386-pc/multiboot2.mod";

/// Makes sure that ISO images can be made.
///
/// # Errors
/// If something is missing and cannot be installed.
pub fn iso_tools() -> Result<()> {
    let all: Vec<&str> = ISO_TOOLS
        .iter()
        .flat_map(|(_, packages)| packages.iter().copied())
        .collect();
    let by_hand = format!(
        "install it with `sudo apt-get install {}` (Debian, Ubuntu), and try again",
        all.join(" ")
    );
    for (program, packages) in ISO_TOOLS {
        if !in_path(program) {
            install(program, packages, &by_hand)?;
        }
    }
    // Other distributions have it elsewhere: there grub-mkrescue itself complains.
    if in_path("apt-get") && !Path::new(GRUB_PC).is_file() {
        install(GRUB_PC, &["grub-pc-bin"], &by_hand)?;
    }
    eprintln!("xtask: grub-mkrescue, xorriso, mtools: here");
    Ok(())
}

/// Installs `packages`, which hold `what`: a program, or a file by its whole path.
fn install(what: &str, packages: &[&str], by_hand: &str) -> Result<()> {
    let installer = Installer::find(in_path("apt-get"), geteuid().is_root(), sudo_works)
        .map_err(|why| anyhow!("{what} is missing, and {why}: {by_hand}"))?;
    let names = packages.join(" ");
    eprintln!("xtask: {what}: missing; installing {names}");
    let args = ["install", "--yes", "--no-install-recommends"];
    for args in [&["update"][..], &[&args[..], packages].concat()[..]] {
        let mut command = installer.apt_get(args);
        eprintln!("xtask: running `{}`", process::line(&command));
        process::run(&mut command)
            .with_context(|| format!("{what} is missing and could not be installed; {by_hand}"))?;
    }
    ensure!(
        in_path(what) || Path::new(what).is_file(),
        "{names} is installed, yet {what} is not there"
    );
    Ok(())
}

fn by_hand() -> String {
    format!(
        "install it with `sudo apt-get install {QEMU_PACKAGE}` (Debian, Ubuntu), `sudo dnf install qemu-system-x86` \
         (Fedora) or `sudo pacman -S qemu-system-x86` (Arch), and try again"
    )
}

/// How a package may be installed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Installer {
    Root,
    Sudo,
}

impl Installer {
    /// Why not, if it may not.
    fn find(apt_get: bool, root: bool, sudo: impl FnOnce() -> bool) -> Result<Self, &'static str> {
        match (apt_get, root) {
            (false, _) => Err("there is no apt-get to install it with"),
            (true, true) => Ok(Self::Root),
            (true, false) if sudo() => Ok(Self::Sudo),
            (true, false) => Err(
                "there is no permission to install it (we are not root, and `sudo` wants a password)",
            ),
        }
    }

    fn apt_get(self, args: &[&str]) -> Command {
        let mut command = match self {
            Self::Root => Command::new("apt-get"),
            Self::Sudo => {
                let mut sudo = Command::new("sudo");
                sudo.args(["-n", "apt-get"]);
                sudo
            }
        };
        command.args(args).env("DEBIAN_FRONTEND", "noninteractive");
        command
    }
}

/// Whether `sudo` asks for no password.
fn sudo_works() -> bool {
    Command::new("sudo")
        .args(["-n", "true"])
        .output()
        .is_ok_and(|done| done.status.success())
}

/// Whether `program` is in PATH.
pub fn in_path(program: &str) -> bool {
    is_in(program, env::var_os("PATH"))
}

fn is_in(program: &str, path: Option<OsString>) -> bool {
    path.is_some_and(|path| env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_for_in_path() {
        assert!(is_in("sh", Some("/nowhere:/bin".into())));
        assert!(!is_in("sh", Some("/nowhere".into())));
        assert!(!is_in("sh", None));
    }

    #[test]
    fn installing_is_not_interactive() {
        let command = Installer::Sudo.apt_get(&["install", "--yes", "x"]);
        assert_eq!(process::line(&command), "sudo -n apt-get install --yes x");
        assert_eq!(
            process::line(&Installer::Root.apt_get(&["update"])),
            "apt-get update"
        );
    }

    #[test]
    fn without_permission_it_is_said_what_to_do() {
        assert_eq!(Installer::find(true, true, || false), Ok(Installer::Root));
        assert_eq!(Installer::find(true, false, || true), Ok(Installer::Sudo));
        let why = Installer::find(true, false, || false).unwrap_err();
        assert!(why.contains("no permission"), "{why}");
        let why = Installer::find(false, true, || true).unwrap_err();
        assert!(why.contains("no apt-get"), "{why}");
        assert!(by_hand().contains("`sudo apt-get install qemu-system-x86`"));
    }
}
