//! One run of a machine: QEMU, its keyboard, and its machine channel.

use std::{
    io::Write,
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use std::path::Path;

use anyhow::{Context, Result};

use crate::{
    channel::{Channel, Message, Tail},
    process::{Job, Scope},
    qemu::{Console, Machine, exit},
};

/// How often the machine channel is read.
const LOOK: Duration = Duration::from_millis(5);

/// A machine that runs.
pub struct Session {
    job: Job,
    tail: Tail,
    started: Instant,
    keyboard: Option<std::process::ChildStdin>,
}

/// A machine that has ended.
pub struct Ended {
    /// How QEMU ended; nothing if its time was over.
    pub status: Option<ExitStatus>,
    /// All that it said.
    pub channel: Channel,
    /// From the start of QEMU to its end.
    pub wall: Duration,
    /// From the start of QEMU to the first guest's start.
    pub first_guest: Option<Duration>,
}

impl Session {
    /// Starts `machine`. Its machine channel is also copied to `copy`. With `streams`, QEMU's own streams are
    /// set on the command first.
    ///
    /// # Errors
    /// If QEMU cannot be started, or a file cannot be made.
    pub fn start(
        machine: &Machine,
        copy: Option<&Path>,
        streams: impl FnOnce(&mut Command),
    ) -> Result<Self> {
        let tail = Tail::new(&machine.debugcon, copy)?;
        let mut command = machine.command();
        streams(&mut command);
        let scope = if machine.console == Console::Terminal {
            Scope::Terminal
        } else {
            Scope::Group
        };
        if matches!(machine.console, Console::File(_)) {
            command.stdin(Stdio::null());
        }
        let started = Instant::now();
        let mut job = Job::start(&mut command, scope)?;
        let keyboard = job.stdin();
        Ok(Self {
            job,
            tail,
            started,
            keyboard,
        })
    }

    /// Presses keys on the debug console, if its input is piped.
    ///
    /// # Errors
    /// If QEMU does not take them.
    pub fn press(&mut self, keys: &str) -> Result<()> {
        let keyboard = self
            .keyboard
            .as_mut()
            .context("this machine has no keyboard")?;
        keyboard
            .write_all(keys.as_bytes())
            .and_then(|()| keyboard.flush())
            .context("QEMU does not take keys")
    }

    /// Whether QEMU has not ended yet.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn runs(&mut self) -> Result<bool> {
        Ok(self.job.poll()?.is_none())
    }

    /// Waits until `found` holds for what has been said; `false` if QEMU ended or `limit` was over before.
    ///
    /// # Errors
    /// If the machine channel cannot be read.
    pub fn wait_for(
        &mut self,
        limit: Duration,
        mut found: impl FnMut(&Channel) -> bool,
    ) -> Result<bool> {
        let started = Instant::now();
        loop {
            let gone = self.job.poll()?.is_some();
            self.tail.read()?;
            if found(&self.tail.channel) {
                return Ok(true);
            }
            if gone || started.elapsed() >= limit {
                return Ok(false);
            }
            thread::sleep(LOOK);
        }
    }

    /// Waits until it ends, or ends it when `limit` is over.
    ///
    /// # Errors
    /// If the machine channel cannot be read.
    pub fn finish(mut self, limit: Option<Duration>) -> Result<Ended> {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.job.poll()? {
                break Some(status);
            }
            if limit.is_some_and(|limit| started.elapsed() >= limit) {
                self.job.end();
                break None;
            }
            self.tail.read()?;
            thread::sleep(LOOK);
        };
        let wall = self.started.elapsed();
        self.tail.finish()?;
        let first =
            self.tail.channel.messages.iter().position(
                |message| matches!(message, Message::Guest(guest) if guest.event == "start"),
            );
        let first_guest =
            first.and_then(|index| Some(self.tail.seen.get(index)?.duration_since(self.started)));
        Ok(Ended {
            status,
            channel: self.tail.channel,
            wall,
            first_guest,
        })
    }
}

impl Ended {
    /// The exit code of QEMU, if it ended by itself.
    pub fn code(&self) -> Option<i32> {
        self.status.and_then(|status| status.code())
    }

    /// How it ended, in words.
    pub fn how(&self) -> String {
        match (self.status, self.code()) {
            (None, _) => format!("did not end within its {:.0?}", self.wall),
            (Some(_), Some(code)) => format!("exit code {code}: {}", exit::meaning(code)),
            (Some(status), None) => format!("QEMU was killed ({status})"),
        }
    }
}
