//! `cargo xtask build`: the image, the guest kernels, the boot bundle.

mod bundle;
mod guests;
mod symbols;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Deserialize;

pub use bundle::Bundle;
pub use guests::{GoodEnd, GuestKernel};

use crate::{
    deps, process,
    workspace::{self, BARE_METAL, shown},
};

/// The package and binary of the image.
const IMAGE: &str = "lull";
/// The package of the guest kernels.
const GUESTS: &str = "guest-tests";

/// Options of `build`.
#[derive(Args)]
pub struct BuildArgs {
    /// Build without optimisation
    #[arg(long)]
    debug: bool,
}

/// What has been built.
pub struct Built {
    /// The bootable image, with its symbols in it.
    pub image: PathBuf,
    /// The guest kernels by name.
    pub guests: BTreeMap<String, GuestKernel>,
}

impl Built {
    /// The kernel `name`.
    ///
    /// # Errors
    /// If there is none: the error lists those that are there.
    pub fn guest(&self, name: &str) -> Result<&GuestKernel> {
        self.guests.get(name).with_context(|| {
            let names: Vec<&str> = self.guests.keys().map(String::as_str).collect();
            format!(
                "there is no guest kernel `{name}` (expected one of: {})",
                names.join(", ")
            )
        })
    }
}

/// `cargo xtask build`.
///
/// # Errors
/// If something is missing or does not build.
pub fn command(args: &BuildArgs) -> Result<()> {
    deps::bare_metal_target()?;
    let built = build(!args.debug)?;
    let all: Vec<_> = built
        .guests
        .keys()
        .map(|name| name.parse())
        .collect::<Result<_>>()?;
    let bundle = workspace::output_dir("")?.join("bundle.cpio");
    Bundle::of_guests(&all, &built)?.write(&bundle)?;
    println!("image   {}", shown(&built.image));
    for (name, guest) in &built.guests {
        println!("guest   {} ({name}: {})", shown(&guest.path), guest.about);
    }
    println!("bundle  {}", shown(&bundle));
    Ok(())
}

/// Builds image and guests, and puts the results into our output folder.
///
/// # Errors
/// If the compiler fails (it has said why) or its results are not what they should be.
pub fn build(release: bool) -> Result<Built> {
    eprintln!(
        "xtask: building the image and the guest kernels ({BARE_METAL}, {})",
        if release { "release" } else { "debug" }
    );
    let mut executables = compile(release)?;
    let dir = workspace::output_dir("")?;
    let from = executables
        .remove(IMAGE)
        .with_context(|| format!("the build made no binary `{IMAGE}`"))?;
    let image = dir.join("lull.elf");
    let elf = fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
    write_if_changed(&image, &symbols::with_symbols(elf)?)?;
    let guest_dir = workspace::output_dir("guests")?;
    let mut guests = BTreeMap::new();
    for (name, from) in executables {
        let to = guest_dir.join(&name);
        let elf = fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
        write_if_changed(&to, &elf)?;
        let kernel =
            GuestKernel::of_elf(to, &elf).with_context(|| format!("guest kernel {name}"))?;
        guests.insert(name, kernel);
    }
    Ok(Built { image, guests })
}

/// Runs cargo; gives the executables by name.
fn compile(release: bool) -> Result<BTreeMap<String, PathBuf>> {
    /// The one kind of cargo's messages that we need.
    #[derive(Deserialize)]
    struct Artifact {
        reason: String,
        #[serde(default)]
        executable: Option<PathBuf>,
        #[serde(default)]
        target: Target,
    }
    #[derive(Default, Deserialize)]
    struct Target {
        name: String,
    }

    let mut cargo = workspace::cargo();
    cargo.args([
        "build",
        "--target",
        BARE_METAL,
        "--package",
        IMAGE,
        "--package",
        GUESTS,
        "--bins",
    ]);
    cargo.args(["--quiet", "--message-format", "json-render-diagnostics"]);
    if release {
        cargo.arg("--release");
    }
    cargo.stdout(Stdio::piped());
    let output = process::output(&mut cargo)?;
    if !output.status.success() {
        bail!("`{}` failed ({})", process::line(&cargo), output.status);
    }
    let mut executables = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(artifact) = serde_json::from_str::<Artifact>(line) else {
            continue;
        };
        if let (true, Some(path)) = (artifact.reason == "compiler-artifact", artifact.executable) {
            executables.insert(artifact.target.name, path);
        }
    }
    Ok(executables)
}

/// Leaves an equal file alone, so that two runs at the same time do not take it from under each other.
fn write_if_changed(path: &Path, content: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    // By way of another name: whoever has the old file open keeps it.
    let fresh = path.with_extension(format!("{}.new", std::process::id()));
    fs::write(&fresh, content)
        .and_then(|()| fs::rename(&fresh, path))
        .with_context(|| format!("cannot write {}", path.display()))
}
