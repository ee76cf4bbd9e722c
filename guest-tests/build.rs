//! Links every guest kernel as a static PVH image at 1 MiB; the library on the host is left alone.

use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=link.ld");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("none") {
        return;
    }
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    println!(
        "cargo:rustc-link-arg-bins=-T{}",
        here.join("link.ld").display()
    );
    // The addresses are fixed: there is nobody who would apply relocations.
    println!("cargo:rustc-link-arg-bins=--no-pie");
    println!("cargo:rustc-link-arg-bins=-zmax-page-size=4096");
}
