//! Debian's packages of Bochs and of the libraries that it needs, unpacked in the target folder and started from there:
//! nothing is installed, and no permission is needed.
//!
//! The source is the machine's own: the address that its package manager uses for Debian, with the suite that has the
//! release. `apt-get` checks the signatures with the keys of the installed Debian keyring.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::{Bochs, Release};
use crate::{deps::in_path, process, workspace};

/// Debian's keys, where its keyring package puts them.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// How long a step with the network may take.
const LIMIT: Duration = Duration::from_secs(240);
/// What Bochs consists of.
const PACKAGES: [&str; 14] = [
    "bochs",
    "bochs-term",
    "bochsbios",
    "vgabios",
    "libc6",
    "libstdc++6",
    "libgcc-s1",
    "libltdl7",
    "libncurses6",
    "libncursesw6",
    "libtinfo6",
    "libx11-6",
    "libslirp0",
    "libgpm2",
];
/// Where the libraries of a package may be.
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
/// The dynamic loader in one of these folders.
const LOADER: &str = "ld-linux-x86-64.so.2";

/// Packages whose name changed between the suites.
fn more_packages(release: Release) -> [&'static str; 2] {
    match release {
        Release::Current => ["libasound2t64", "libreadline8t64"],
        Release::Broken => ["libasound2", "libreadline8"],
    }
}

/// Gets the release, or finds it where an earlier run has put it.
///
/// # Errors
/// If this is no Debian, or the packages cannot be fetched or unpacked.
pub fn get(release: Release) -> Result<Bochs> {
    let dir = workspace::output_dir("bochs")?.join(release.suite());
    let root = dir.join("root");
    let done = dir.join("complete");
    if !done.is_file() {
        fetch(release, &dir, &root)?;
        fs::write(&done, "")?;
    }
    let bochs = in_root(&root)?;
    let Some((major, minor)) = bochs.version() else {
        // Whatever is wrong with it, the next run starts anew.
        fs::remove_file(&done)?;
        bail!(
            "Debian's Bochs in {} does not start",
            workspace::shown(&dir)
        );
    };
    eprintln!(
        "xtask: Bochs {major}.{minor}: here (Debian's, in {})",
        workspace::shown(&dir)
    );
    Ok(bochs)
}

fn fetch(release: Release, dir: &Path, root: &Path) -> Result<()> {
    for program in ["apt-get", "dpkg-deb"] {
        ensure!(
            in_path(program),
            "there is no {program} to get Debian's packages with"
        );
    }
    ensure!(
        Path::new(KEYRING).is_file(),
        "the package debian-archive-keyring is not installed"
    );
    let source = debian_source()?;
    let suite = release.suite();
    eprintln!("xtask: {release}: missing; getting the packages of Debian {suite}, for us alone");
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    for sub in ["lists/partial", "archives/partial", "debs", "root"] {
        fs::create_dir_all(dir.join(sub))?;
    }
    let list = dir.join("sources.list");
    fs::write(
        &list,
        format!("deb [signed-by={KEYRING}] {source} {suite} main\n"),
    )?;
    quietly(
        "reading Debian's list of packages",
        &mut apt_get(dir, &["update", "--error-on=any"]),
        dir,
    )?;
    let mut download = apt_get(dir, &["download"]);
    download
        .args(PACKAGES)
        .args(more_packages(release))
        .current_dir(dir.join("debs"));
    quietly("downloading Debian's packages", &mut download, dir)?;
    for deb in fs::read_dir(dir.join("debs"))? {
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("--extract").arg(deb?.path()).arg(root);
        quietly("unpacking Debian's packages", &mut unpack, dir)?;
    }
    for sub in ["lists", "archives", "debs"] {
        fs::remove_dir_all(dir.join(sub))?;
    }
    Ok(())
}

/// `apt-get` with a state of its own.
fn apt_get(dir: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.arg("--quiet=2");
    for (name, path) in [
        ("Dir::Etc::SourceList", dir.join("sources.list")),
        ("Dir::Etc::SourceParts", "/dev/null".into()),
        ("Dir::Etc::Preferences", "/dev/null".into()),
        ("Dir::Etc::PreferencesParts", "/dev/null".into()),
        ("Dir::State::Lists", dir.join("lists")),
        ("Dir::Cache::Archives", dir.join("archives")),
        ("Dir::Cache::PkgCache", PathBuf::new()),
        ("Dir::Cache::SrcPkgCache", PathBuf::new()),
    ] {
        command.arg("-o").arg(format!("{name}={}", path.display()));
    }
    for option in [
        "Acquire::Languages=none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
        "Acquire::Retries=1",
        "Acquire::http::Timeout=20",
        "Acquire::https::Timeout=20",
        // Else it warns that another user cannot write to our folder.
        "APT::Sandbox::User=root",
    ] {
        command.args(["-o", option]);
    }
    command.args(words);
    command
}

/// Runs a step. If it fails, the first error that it named is the reason.
fn quietly(what: &str, command: &mut Command, dir: &Path) -> Result<()> {
    let said = dir.join("errors.txt");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&said)?)
        .env("LC_ALL", "C");
    process::run_within(command, Some(LIMIT)).map_err(|why| {
        let said = fs::read_to_string(&said).unwrap_or_default();
        match said.lines().find(|line| line.starts_with("E: ")) {
            Some(first) => anyhow!("{what} failed: {first}"),
            None => why.context(format!("{what} failed")),
        }
    })
}

/// Where this machine gets Debian from.
fn debian_source() -> Result<String> {
    let mut command = Command::new("apt-get");
    command.args([
        "indextargets",
        "--format",
        "$(REPO_URI) $(ORIGIN) $(LABEL)",
        "Created-By: Packages",
    ]);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let output = process::output(&mut command)?;
    choose_source(&String::from_utf8_lossy(&output.stdout))
        .context("the package manager here knows no source of Debian")
}

/// The first address whose publisher is Debian itself; before the first `apt-get update` it is told by its path.
fn choose_source(targets: &str) -> Option<String> {
    let address = |line: &str| line.split_whitespace().next().map(str::to_owned);
    targets
        .lines()
        .find(|line| line.ends_with(" Debian Debian"))
        .and_then(address)
        .or_else(|| {
            targets
                .lines()
                .filter_map(address)
                .find(|uri| uri.trim_end_matches('/').ends_with("/debian"))
        })
}

/// The Bochs that has been unpacked into `root`: started by its own loader, with its own libraries.
fn in_root(root: &Path) -> Result<Bochs> {
    let libraries = LIBRARIES.map(|dir| root.join(dir));
    let loader = libraries
        .iter()
        .map(|dir| dir.join(LOADER))
        .find(|path| path.is_file())
        .context("the packages hold no dynamic loader")?;
    let [usual, old] = &libraries;
    let first = vec![
        "--library-path".to_owned(),
        format!("{}:{}", usual.display(), old.display()),
        root.join("usr/bin/bochs-bin").display().to_string(),
    ];
    Ok(Bochs::private(
        loader,
        first,
        vec![
            ("LTDL_LIBRARY_PATH", usual.join("bochs/plugins")),
            ("BXSHARE", root.join("usr/share/bochs")),
        ],
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_is_the_one_of_debian_itself() {
        let known = "http://a.example/node_20.x/ . .\n\
                     http://b.example/debian-security/ Debian Debian-Security\n\
                     http://c.example/debian/ Debian Debian\n";
        assert_eq!(
            choose_source(known).as_deref(),
            Some("http://c.example/debian/")
        );
        let before_the_first_update =
            "http://b.example/debian-security/  \nhttp://c.example/debian/  \n";
        assert_eq!(
            choose_source(before_the_first_update).as_deref(),
            Some("http://c.example/debian/")
        );
        assert_eq!(
            choose_source("http://d.example/ubuntu/ Ubuntu Ubuntu\n"),
            None
        );
    }

    #[test]
    fn the_package_manager_gets_a_state_of_its_own() {
        let line = process::line(&apt_get(Path::new("x"), &["update"]));
        assert!(line.contains("Dir::State::Lists=x/lists"), "{line}");
        assert!(line.contains("Dir::Etc::SourceParts=/dev/null"), "{line}");
        assert!(line.ends_with(" update"), "{line}");
    }
}
