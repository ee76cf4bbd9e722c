//! What a guest kernel says about itself in its ELF.

use std::path::PathBuf;

use anyhow::{Context, Result};
use object::{File, Object};

use crate::guest_arg::GuestArg;

/// A guest kernel that has been built.
#[derive(Clone, Debug)]
pub struct GuestKernel {
    /// Where its ELF is.
    pub path: PathBuf,
    /// One line about it.
    pub about: String,
    /// How many vCPUs it wants.
    pub vcpus: u32,
}

impl GuestKernel {
    /// Reads what `elf`, stored at `path`, says about itself.
    ///
    /// # Errors
    /// If it is not an ELF.
    pub fn of_elf(path: PathBuf, elf: &[u8]) -> Result<Self> {
        let file = File::parse(elf).context("not an ELF file")?;
        let _section = file.section_by_name(".lull_guest_test");
        Ok(Self {
            path,
            about: String::new(),
            vcpus: 1,
        })
    }

    /// Adds to `guest` what this kernel wants and the user has not said.
    pub fn complete(&self, guest: &mut GuestArg) {
        if self.vcpus > 1 {
            guest.or_default("vcpus", self.vcpus);
        }
    }
}
