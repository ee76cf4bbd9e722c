//! Where things are: the workspace, its target folder, and the cargo that runs us.

use std::{
    env,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// The target triple of the image and of the guest kernels.
pub const BARE_METAL: &str = "x86_64-unknown-none";

/// The top folder of the workspace.
pub fn root() -> PathBuf {
    // Cargo sets the variable for what it runs; the built-in value serves an xtask that is started by hand.
    let manifest = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest
        .parent()
        .map_or_else(|| manifest.clone(), Path::to_path_buf)
}

/// The target folder of cargo: `CARGO_TARGET_DIR` if it is set, else `target` in the workspace.
pub fn target_dir() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(dir) if !dir.is_empty() => env::current_dir().unwrap_or_default().join(dir),
        _ => root().join("target"),
    }
}

/// Our own folder in the target folder, made if it is not there.
///
/// # Errors
/// If the folder cannot be made.
pub fn output_dir(sub: &str) -> Result<PathBuf> {
    let dir = target_dir().join("lull").join(sub);
    std::fs::create_dir_all(&dir)
        .with_context(|| format!("cannot make the folder {}", dir.display()))?;
    Ok(dir)
}

/// The largest file that a user may name.
pub const LARGEST_FILE: u64 = 64 << 20;

/// All of a file that a user named.
///
/// # Errors
/// It cannot be read, or is larger than [`LARGEST_FILE`], as are devices that never end.
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    let cannot = || format!("cannot read {}", path.display());
    let file = File::open(path).with_context(cannot)?;
    let mut bytes = Vec::new();
    let read = file.take(LARGEST_FILE + 1).read_to_end(&mut bytes);
    read.with_context(cannot)?;
    ensure!(
        bytes.len() as u64 <= LARGEST_FILE,
        "{} is larger than {} MiB",
        path.display(),
        LARGEST_FILE >> 20
    );
    Ok(bytes)
}

/// `path` as people want to read it: relative to where they are, if it is below.
pub fn shown(path: &Path) -> String {
    let here = env::current_dir().unwrap_or_default();
    path.strip_prefix(&here)
        .unwrap_or(path)
        .display()
        .to_string()
}

/// A `cargo` command at the top of the workspace.
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    // Set by the `cargo run` that started us; cargo would take them for a change of the environment.
    for name in [
        "CARGO_MANIFEST_DIR",
        "CARGO_MANIFEST_PATH",
        "CARGO_PKG_NAME",
        "CARGO_PKG_VERSION",
    ] {
        command.env_remove(name);
    }
    command
}
