//! Bootable images: Lull and its bundle behind GRUB, which loads them by Multiboot2; and `cargo xtask iso`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result};
use clap::Args;

use crate::{
    build::{self, Bundle},
    deps,
    guest_arg::{self, GuestArg},
    process,
    workspace::{self, shown},
};

/// Options of `iso`.
#[derive(Args)]
#[command(after_help = "\
Example:
  cargo xtask iso --guest idle-timer --cmdline keep

The image is a hybrid: it boots from a CD, and from a USB stick that it has been copied to byte for byte.")]
pub struct IsoArgs {
    /// A guest, as for `run`; may be repeated. Default: idle-timer and ipi-pair
    #[arg(long = "guest", value_name = "GUEST")]
    guests: Vec<GuestArg>,
    /// Words for Lull's command line, for example "keep loglvl=debug"
    #[arg(long, value_name = "WORDS", default_value = "keep")]
    cmdline: String,
    /// Where to write it. Default: lull.iso in the target folder
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// `cargo xtask iso`.
///
/// # Errors
/// If something is missing, or cannot be built or written.
pub fn command(args: &IsoArgs) -> Result<()> {
    deps::bare_metal_target()?;
    deps::iso_tools()?;
    let built = build::build(true)?;
    let dir = workspace::output_dir("iso")?;
    let bundle = dir.join("bundle.cpio");
    Bundle::of_guests(&guest_arg::complete(&args.guests, &built)?, &built)?.write(&bundle)?;
    let output = match &args.output {
        Some(path) => path.clone(),
        None => workspace::output_dir("")?.join("lull.iso"),
    };
    let iso = Iso {
        image: &built.image,
        bundle: Some(&bundle),
        cmdline: &args.cmdline,
        purpose: Purpose::Anywhere,
    };
    iso.write(&dir.join("tree"), &output)?;
    println!("iso     {}", shown(&output));
    Ok(())
}

/// What an image is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// An emulator with a BIOS: small, made quickly, boots at once.
    Emulator,
    /// Any PC: all that the installed GRUB can do, with a moment to stop.
    Anywhere,
}

/// An image to be made.
pub struct Iso<'a> {
    pub image: &'a Path,
    pub bundle: Option<&'a Path>,
    /// Lull's command line.
    pub cmdline: &'a str,
    pub purpose: Purpose,
}

impl Iso<'_> {
    /// Makes the image; `tree` is a folder for its files, which is made anew.
    ///
    /// # Errors
    /// If a file cannot be written, or GRUB's tools fail.
    pub fn write(&self, tree: &Path, output: &Path) -> Result<()> {
        let boot = tree.join("boot");
        if tree.exists() {
            fs::remove_dir_all(tree)?;
        }
        let what = || format!("cannot fill the folder {}", tree.display());
        fs::create_dir_all(boot.join("grub")).with_context(what)?;
        fs::copy(self.image, boot.join("lull.elf")).with_context(what)?;
        if let Some(bundle) = self.bundle {
            fs::copy(bundle, boot.join("bundle.cpio")).with_context(what)?;
        }
        fs::write(boot.join("grub/grub.cfg"), self.config()).with_context(what)?;
        let mut command = self.command(tree, output);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // It tells its progress on the error stream.
        command.stderr(Stdio::piped());
        let done = process::output(&mut command)?;
        anyhow::ensure!(
            done.status.success(),
            "`{}` failed ({}):\n{}",
            process::line(&command),
            done.status,
            String::from_utf8_lossy(&done.stderr)
        );
        Ok(())
    }

    fn command(&self, tree: &Path, output: &Path) -> Command {
        let mut command = Command::new("grub-mkrescue");
        if self.purpose == Purpose::Emulator {
            command.args([
                "--install-modules=multiboot2 normal iso9660 biosdisk",
                "--fonts=",
                "--locales=",
                "--themes=",
            ]);
        }
        command.arg("-o").arg(output).arg(tree);
        command
    }

    /// GRUB's configuration.
    fn config(&self) -> String {
        let mut line = "multiboot2 /boot/lull.elf".to_owned();
        for word in self.cmdline.split_whitespace() {
            line.push_str(&format!(" '{}'", word.replace('\'', r"'\''")));
        }
        let module = match self.bundle {
            Some(_) => "  module2 /boot/bundle.cpio bundle\n",
            None => "",
        };
        let timeout = match self.purpose {
            Purpose::Emulator => 0,
            Purpose::Anywhere => 3,
        };
        format!("set timeout={timeout}\nmenuentry Lull {{\n  {line}\n{module}  boot\n}}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_menu_loads_image_and_bundle_and_quotes_words() {
        let iso = Iso {
            image: Path::new("lull.elf"),
            bundle: Some(Path::new("b")),
            cmdline: "for=1  loglvl=debug it's $x;y",
            purpose: Purpose::Emulator,
        };
        assert_eq!(
            iso.config(),
            "set timeout=0\nmenuentry Lull {\n  \
             multiboot2 /boot/lull.elf 'for=1' 'loglvl=debug' 'it'\\''s' '$x;y'\n  \
             module2 /boot/bundle.cpio bundle\n  boot\n}\n"
        );
        let plain = Iso {
            bundle: None,
            cmdline: "",
            purpose: Purpose::Anywhere,
            ..iso
        };
        assert_eq!(
            plain.config(),
            "set timeout=3\nmenuentry Lull {\n  multiboot2 /boot/lull.elf\n  boot\n}\n"
        );
        let line = process::line(&plain.command(Path::new("tree"), Path::new("o.iso")));
        assert_eq!(line, "grub-mkrescue -o o.iso tree");
    }
}
