//! One run of the image, in QEMU or in Bochs, for `bench wake` and `soak`.

use std::{fs, path::Path, process::Stdio, time::Duration};

use anyhow::{Result, bail, ensure};

use crate::{
    bochs::{self, Bochs},
    channel::Message,
    iso::{Iso, Purpose},
    qemu::{Accel, Console, Cpu, Machine, Version, exit},
    session::{Ended, Session},
};

/// Which emulator, and what it needs.
#[derive(Clone)]
pub enum On {
    Qemu { version: Version, accel: Accel },
    Bochs { bochs: Bochs, model: String },
}

/// One run.
pub struct Emulated<'a> {
    pub on: On,
    pub image: &'a Path,
    /// The guests, if there are any.
    pub bundle: Option<&'a Path>,
    pub dir: &'a Path,
    /// Names its files.
    pub label: String,
    pub cpus: u32,
    /// Words for Lull, without `exit-port`.
    pub words: String,
    pub limit: Duration,
}

impl Emulated<'_> {
    fn file(&self, kind: &str) -> std::path::PathBuf {
        self.dir.join(format!("{}.{kind}", self.label))
    }

    /// Words for Lull, with those that every run has.
    fn cmdline(&self, exit_port: &str) -> String {
        let guests = if self.bundle.is_none() {
            "no-guests "
        } else {
            ""
        };
        format!("exit-port={exit_port} {guests}{}", self.words)
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// It did not end by itself with status `ok`: the message has the end of its console.
    pub fn run(&self) -> Result<Ended> {
        let console = self.file("console.txt");
        let ended = match &self.on {
            On::Qemu { version, accel } => {
                let machine = Machine {
                    version: *version,
                    board: crate::qemu::BOARD,
                    accel: *accel,
                    cpu: Cpu::Default,
                    cpus: self.cpus,
                    disabled_cpus: 0,
                    mem: "256M".to_owned(),
                    kernel: self.image.to_owned(),
                    bundle: self.bundle.map(Path::to_owned),
                    cmdline: self.cmdline("0xf4"),
                    console: Console::File(console.clone()),
                    debugcon: self.file("channel.jsonl"),
                    acpi_tables: Vec::new(),
                    globals: Vec::new(),
                    gdb: false,
                };
                let session = Session::start(&machine, None, |command| {
                    command.stdout(Stdio::null());
                })?;
                session.finish(Some(self.limit))?
            }
            On::Bochs { bochs, model } => {
                let iso = self.file("iso");
                Iso {
                    image: self.image,
                    bundle: self.bundle,
                    cmdline: &self.cmdline("bochs"),
                    purpose: Purpose::Emulator,
                }
                .write(&self.file("tree"), &iso)?;
                let machine = bochs::Machine {
                    bochs: bochs.clone(),
                    model: model.clone(),
                    cpus: self.cpus,
                    mem_mib: 256,
                    iso,
                    dir: self.dir.to_owned(),
                    label: self.label.clone(),
                    msrs: Vec::new(),
                };
                Session::start_bochs(&machine, &console, false, None)?.finish(Some(self.limit))?
            }
        };
        let said = fs::read_to_string(&console).unwrap_or_default();
        let lines: Vec<&str> = said.lines().collect();
        let last = lines[lines.len().saturating_sub(12)..].join("\n");
        ensure!(
            ended.code() == Some(exit::OK),
            "{}: {}\n{last}",
            self.label,
            ended.how()
        );
        Ok(ended)
    }
}

/// What a run measured under this name.
pub fn measured(ended: &Ended, name: &str) -> Option<u64> {
    measures(ended)
        .find(|(measured, _)| *measured == name)
        .map(|(_, value)| value)
}

/// All that a run measured, in its order.
pub fn measures(ended: &Ended) -> impl Iterator<Item = (&str, u64)> {
    ended
        .channel
        .messages
        .iter()
        .filter_map(|message| match message {
            Message::Measure(measure) => Some((measure.name.as_str(), measure.value)),
            _ => None,
        })
}

/// As [`measured`], where it must be there.
///
/// # Errors
/// It is not.
pub fn required(ended: &Ended, name: &str) -> Result<u64> {
    match measured(ended, name) {
        Some(value) => Ok(value),
        None => bail!("the run has not measured {name}"),
    }
}
