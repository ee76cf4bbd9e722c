//! What the rows of `bench wake` share: the image, built when the first of them asks; the emulators; the settings of the switches.

use std::{
    cell::OnceCell,
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use crate::{
    bochs,
    build::{self, Built, Bundle},
    deps,
    emulated::{Emulated, On},
    guest_arg::{self, GuestArg},
    qemu::Accel,
    session::Ended,
    workspace,
};

/// The model that Bochs is for these rows: its MWAIT sleeps, and its states are those of Skylake-X (C1, C1E, C6).
pub const BOCHS_MODEL: &str = "corei7_skylake_x";

/// The switches: a name, and the words for Lull.
pub const VARIANTS: [(&str, &str); 6] = [
    ("all on", ""),
    ("ipiless off", "wake.ipiless=off"),
    ("notify off", "wake.notify=off"),
    ("both off", "wake.ipiless=off wake.notify=off"),
    ("fence none", "ipi.fence=none wake.ipiless=off"),
    ("fence full", "ipi.fence=full wake.ipiless=off"),
];

/// All settings that `--variants` takes: these, and those that only some row has.
pub const VARIANT_NAMES: [&str; 8] = [
    "all on",
    "ipiless off",
    "notify off",
    "both off",
    "early off",
    "fence none",
    "fence full",
    "all off",
];

/// One run of `bench wake`.
pub struct Bench {
    /// Few rounds: what is counted is right, what is timed is not.
    pub quick: bool,
    /// CPUs in QEMU.
    pub cpus: u32,
    /// CPUs in Bochs.
    pub bochs_cpus: u32,
    /// The image to boot, and no other; there are no guests then.
    pub image: Option<PathBuf>,
    /// Where curves are plotted.
    pub svg: Option<PathBuf>,
    only: Option<String>,
    /// All, if empty.
    variants: Vec<String>,
    built: OnceCell<(Built, PathBuf)>,
}

/// An emulator, by the name that tables and files call it.
#[derive(Clone)]
pub struct Emulator {
    pub name: &'static str,
    pub cpus: u32,
    on: On,
}

impl Emulator {
    /// The same, of another size.
    pub fn with(&self, cpus: u32) -> Self {
        Self {
            cpus,
            ..self.clone()
        }
    }
}

/// One boot of the image without guests.
pub struct Boot<'a> {
    pub emulator: &'a Emulator,
    /// Names its files.
    pub label: String,
    /// Words for Lull.
    pub words: String,
}

impl Bench {
    pub fn new(
        quick: bool,
        cpus: u32,
        bochs_cpus: u32,
        only: Option<String>,
        variants: Vec<String>,
    ) -> Self {
        Self {
            quick,
            cpus,
            bochs_cpus,
            image: None,
            svg: None,
            only,
            variants,
            built: OnceCell::new(),
        }
    }

    /// Is this emulator wanted?
    pub fn wants(&self, emulator: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == emulator)
    }

    /// The settings of the switches that are wanted, from `among`.
    pub fn variants<'a>(
        &self,
        among: &'a [(&'static str, &'a str)],
    ) -> Vec<(&'static str, &'a str)> {
        let wanted = |name: &str| {
            self.variants.is_empty() || self.variants.iter().any(|wanted| wanted == name)
        };
        among
            .iter()
            .copied()
            .filter(|(name, _)| wanted(name))
            .collect()
    }

    /// The image and the guests, and the folder for logs.
    ///
    /// # Errors
    /// They cannot be built.
    pub fn built(&self) -> Result<&(Built, PathBuf)> {
        if self.built.get().is_none() {
            let built = match &self.image {
                Some(image) => Built {
                    image: image.clone(),
                    guests: BTreeMap::new(),
                },
                None => {
                    deps::bare_metal_target()?;
                    build::build(true)?
                }
            };
            let built = (built, workspace::output_dir("bench-wake")?);
            // Empty until now.
            let _ = self.built.set(built);
        }
        self.built.get().context("the image was not built")
    }

    /// QEMU, where a tick is an instruction; `None` where it is not wanted.
    ///
    /// # Errors
    /// There is none.
    pub fn qemu(&self) -> Result<Option<Emulator>> {
        if !self.wants("qemu") {
            return Ok(None);
        }
        Ok(Some(Emulator {
            name: "qemu",
            cpus: self.cpus,
            on: On::Qemu {
                version: deps::qemu()?,
                accel: Accel::Icount,
            },
        }))
    }

    /// Bochs, where MWAIT sleeps; `None` where it is not wanted.
    ///
    /// # Errors
    /// There is none.
    pub fn bochs(&self) -> Result<Option<Emulator>> {
        if !self.wants("bochs") {
            return Ok(None);
        }
        deps::iso_tools()?;
        Ok(Some(Emulator {
            name: "bochs",
            cpus: self.bochs_cpus,
            on: On::Bochs {
                bochs: bochs::find(bochs::Release::Current)?,
                model: BOCHS_MODEL.to_owned(),
            },
        }))
    }

    /// Boots the image and lets it come to its end.
    ///
    /// # Errors
    /// It did not end well.
    pub fn boot(&self, boot: &Boot<'_>) -> Result<Ended> {
        self.run(boot, None)
    }

    /// The same with these guests, which all must pass.
    ///
    /// # Errors
    /// As [`Self::boot`]; or a guest is unknown, or did not pass.
    pub fn boot_guests(&self, boot: &Boot<'_>, guests: &[GuestArg]) -> Result<Ended> {
        let (built, dir) = self.built()?;
        let bundle = dir.join("guests.cpio");
        let guests = guest_arg::complete(guests, built)?;
        Bundle::of_guests(&guests, built)?.write(&bundle)?;
        let ended = self.run(boot, Some(&bundle))?;
        let passed = ended.channel.guests().filter(|guest| guest.passed());
        let passed = passed.count();
        ensure!(
            passed == guests.len(),
            "{}: {passed} of {} guests passed",
            boot.label,
            guests.len()
        );
        Ok(ended)
    }

    fn run(&self, boot: &Boot<'_>, bundle: Option<&Path>) -> Result<Ended> {
        let (built, dir) = self.built()?;
        Emulated {
            on: boot.emulator.on.clone(),
            image: &built.image,
            bundle,
            dir,
            label: format!(
                "{}-{}",
                boot.emulator.name,
                boot.label.replace([' ', '='], "-")
            ),
            cpus: boot.emulator.cpus,
            words: boot.words.clone(),
            limit: Duration::from_secs(600),
        }
        .run()
    }
}
