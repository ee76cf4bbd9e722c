//! Copies the sources of the released `acpi` crate, and makes the corrections in `corrections/` to the copy.
//!
//! A correction says why, which file it is for, what it replaces and by what. What it replaces must be there exactly once:
//! with another release this build fails rather than do half of it.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

type Result<T> = std::result::Result<T, String>;

const PACKAGE: &str = "acpi-7.0.0-pre1";

fn main() -> Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=corrections");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("no OUT_DIR")?);
    let copy = out.join("acpi");
    let _nothing_yet = fs::remove_dir_all(&copy);
    let sources = released()?;
    copy_tree(&sources, &copy)?;
    let home = env::var("CARGO_MANIFEST_DIR").map_err(|why| why.to_string())?;
    for path in files(&Path::new(&home).join("corrections"))? {
        correct(&copy, &path).map_err(|why| format!("{}: {why}", path.display()))?;
    }
    let root = copy.join("lib.rs");
    // A path in an attribute must be a literal: the module is declared where the path is known.
    let module = format!(
        "#[path = {root:?}]\n#[allow(warnings, clippy::all, clippy::pedantic, clippy::nursery, clippy::restriction, rustdoc::all)]\npub mod released;\n"
    );
    write(&out.join("module.rs"), module.as_bytes())
}

fn shown(path: &Path, why: impl ToString) -> String {
    format!("{}: {}", path.display(), why.to_string())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|why| shown(path, why))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).map_err(|why| shown(path, why))
}

/// What is in a folder, by name.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).map_err(|why| shown(folder, why))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).map_err(|why| shown(to, why))?;
    for path in files(from)? {
        let target = to.join(path.file_name().ok_or("a path without a name")?);
        if path.is_dir() {
            copy_tree(&path, &target)?;
        } else {
            // Its own tests need crates that are not here; they were made before it was released.
            let source = read(&path)?
                .replace("cfg(test)", "cfg(any())")
                .replace("cfg_attr(test,", "cfg_attr(any(),");
            write(&target, source.as_bytes())?;
        }
    }
    Ok(())
}

/// Where Cargo has put the sources: in its own cache, or where `cargo vendor` has.
fn released() -> Result<PathBuf> {
    let cargo_home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let user_home = env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
    let caches = cargo_home
        .or(user_home)
        .and_then(|home| files(&home.join("registry/src")).ok());
    let cached = caches
        .into_iter()
        .flatten()
        .map(|cache| cache.join(PACKAGE).join("src"));
    let found = cached
        .into_iter()
        .find(|sources| sources.join("lib.rs").is_file());
    match found {
        Some(sources) => Ok(sources),
        None => by_metadata(),
    }
}

fn by_metadata() -> Result<PathBuf> {
    let cargo = env::var_os("CARGO").ok_or("no CARGO")?;
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--format-version",
            "1",
            "--offline",
            "--filter-platform",
        ])
        .arg(env::var("HOST").map_err(|why| why.to_string())?)
        .output()
        .map_err(|why| format!("cargo metadata: {why}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let manifests = text.split('"').filter(|word| word.ends_with("/Cargo.toml"));
    manifests
        .map(|manifest| Path::new(manifest).with_file_name("src"))
        .find(|sources| {
            let folder = sources.parent().and_then(Path::file_name);
            folder.is_some_and(|name| name == PACKAGE || name == "acpi")
                && sources.join("aml/mod.rs").is_file()
        })
        .ok_or_else(|| format!("Cargo does not tell where the sources of {PACKAGE} are"))
}

/// Makes one correction.
fn correct(copy: &Path, correction: &Path) -> Result<()> {
    let text = read(correction)?;
    let mut target = None;
    let mut rest = text.as_str();
    let mut changes = 0;
    while let Some((line, behind)) = rest.split_once('\n') {
        rest = behind;
        if let Some(name) = line.strip_prefix("file: ") {
            target = Some(copy.join(name.trim()));
        } else if line == "<<<<<<<" {
            let (old, behind) = rest.split_once("=======\n").ok_or("no =======")?;
            let (new, behind) = behind.split_once(">>>>>>>\n").ok_or("no >>>>>>>")?;
            rest = behind;
            let path = target.as_ref().ok_or("no `file:` before a change")?;
            let source = read(path)?;
            let times = source.matches(old).count();
            if times != 1 {
                return Err(format!(
                    "found {times} times in {}, expected once:\n{old}",
                    path.display()
                ));
            }
            write(path, source.replacen(old, new, 1).as_bytes())?;
            changes += 1;
        }
    }
    if changes == 0 {
        return Err("it changes nothing".to_owned());
    }
    Ok(())
}
