//! One run of a machine: the emulator, its keyboard, and its machine channel.

use std::{
    fs::File,
    io::{Read, Write},
    path::Path,
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use crate::{
    bochs::{self, Line},
    channel::{Channel, Message, Tail},
    process::{Job, Scope},
    qemu::{Console, Machine, exit},
};

/// How often the machine channel is read.
const LOOK: Duration = Duration::from_millis(5);

/// Which program is the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emulator {
    /// QEMU: what Lull writes to the exit port is in QEMU's exit code.
    Qemu,
    /// Bochs: its exit code says nothing, Lull's code is on the machine channel only.
    Bochs,
}

impl Emulator {
    const fn name(self) -> &'static str {
        match self {
            Self::Qemu => "QEMU",
            Self::Bochs => "Bochs",
        }
    }
}

/// So long a machine may take from its last word to its end.
pub const TO_LEAVE: Duration = Duration::from_secs(10);

/// When a limit began, and how long the emulator had been kept from the host's CPUs until then.
#[derive(Clone, Copy)]
struct Since {
    at: Instant,
    starved: Duration,
}

/// A machine that runs.
pub struct Session {
    emulator: Emulator,
    job: Job,
    tail: Tail,
    started: Instant,
    keyboard: Option<Box<dyn Write + Send>>,
    line: Option<Line>,
}

/// A machine that has ended.
pub struct Ended {
    /// Which program was the machine.
    pub emulator: Emulator,
    /// How the emulator ended; nothing if its time was over.
    pub status: Option<ExitStatus>,
    /// All that it said.
    pub channel: Channel,
    /// From the start of the emulator to its end.
    pub wall: Duration,
    /// From the start of the emulator to the first guest's start.
    pub first_guest: Option<Duration>,
}

impl Session {
    /// Starts `machine` in QEMU. Its machine channel is also copied to `copy`. With `streams`, QEMU's own streams are
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
        let keyboard = job.stdin().map(|pipe| Box::new(pipe) as _);
        Ok(Self {
            emulator: Emulator::Qemu,
            job,
            tail,
            started,
            keyboard,
            line: None,
        })
    }

    /// Starts `machine` in Bochs; its console goes to `console`, and also to our output if it is `shown`. Its machine
    /// channel is also copied to `copy`.
    ///
    /// # Errors
    /// If Bochs cannot be started, or a file cannot be made.
    pub fn start_bochs(
        machine: &bochs::Machine,
        console: &Path,
        shown: bool,
        copy: Option<&Path>,
    ) -> Result<Self> {
        let channel = machine.channel();
        let tail = Tail::new(&channel, copy)?.mixed();
        let line = Line::open(console, shown)?;
        machine.write_config(line.device())?;
        let mut command = machine.command();
        let file = |path: &Path| {
            File::create(path).with_context(|| format!("cannot write {}", path.display()))
        };
        command
            .stdin(Stdio::null())
            .stdout(file(&channel)?)
            .stderr(file(&machine.errors())?);
        let started = Instant::now();
        let job = Job::start(&mut command, Scope::Group)?;
        Ok(Self {
            emulator: Emulator::Bochs,
            job,
            tail,
            started,
            keyboard: Some(Box::new(line.keyboard()?)),
            line: Some(line),
        })
    }

    /// Presses keys on the debug console, if its input is piped.
    ///
    /// # Errors
    /// If the emulator does not take them.
    pub fn press(&mut self, keys: &str) -> Result<()> {
        let keyboard = self
            .keyboard
            .as_mut()
            .context("this machine has no keyboard")?;
        keyboard
            .write_all(keys.as_bytes())
            .and_then(|()| keyboard.flush())
            .with_context(|| format!("{} does not take keys", self.emulator.name()))
    }

    /// From now on, what is typed on our standard input goes to the debug console.
    pub fn take_keys_from_stdin(&mut self) {
        let Some(mut keyboard) = self.keyboard.take() else {
            return;
        };
        // It ends with xtask.
        thread::spawn(move || {
            let mut key = [0];
            while let Ok(1) = std::io::stdin().read(&mut key) {
                // An Enter that only sends a key off means nothing to Lull; one that ends a command does.
                if keyboard.write_all(&key).is_err() {
                    break;
                }
            }
        });
    }

    /// Whether the emulator has not ended yet.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn runs(&mut self) -> Result<bool> {
        Ok(self.job.poll()?.is_none())
    }

    /// Waits until `found` holds for what has been said; `false` if the emulator ended or `limit` was over before.
    ///
    /// # Errors
    /// If the machine channel cannot be read.
    pub fn wait_for(
        &mut self,
        limit: Duration,
        mut found: impl FnMut(&Channel) -> bool,
    ) -> Result<bool> {
        let started = self.since();
        loop {
            let gone = self.job.poll()?.is_some();
            self.tail.read()?;
            if found(&self.tail.channel) {
                return Ok(true);
            }
            if gone || self.is_over(started, limit) {
                return Ok(false);
            }
            thread::sleep(LOOK);
        }
    }

    fn since(&self) -> Since {
        Since {
            at: Instant::now(),
            starved: self.job.starved(),
        }
    }

    /// Is the limit over, which began at `started`? Time in which the emulator wanted to run and other programs had the host's
    /// CPUs does not count: a test must not fail because of what else the host does. Ten times the limit is the end.
    fn is_over(&self, started: Since, limit: Duration) -> bool {
        let elapsed = started.at.elapsed();
        let starved = self.job.starved().saturating_sub(started.starved);
        elapsed.saturating_sub(starved) >= limit || elapsed >= limit.saturating_mul(10)
    }

    /// Waits until it ends, or ends it when `limit` is over.
    ///
    /// # Errors
    /// If the machine channel cannot be read.
    pub fn finish(mut self, limit: Option<Duration>) -> Result<Ended> {
        let started = self.since();
        let mut end_said = None;
        let status = loop {
            if let Some(status) = self.job.poll()? {
                break Some(status);
            }
            if self.tail.channel.end().is_some() {
                let since = *end_said.get_or_insert_with(|| self.since());
                if self.is_over(since, TO_LEAVE) {
                    self.job.end();
                    break None;
                }
            }
            if limit.is_some_and(|limit| self.is_over(started, limit)) {
                self.job.end();
                break None;
            }
            self.tail.read()?;
            thread::sleep(LOOK);
        };
        let wall = self.started.elapsed();
        self.tail.finish()?;
        self.keyboard = None;
        if let Some(line) = self.line.take() {
            line.close();
        }
        let first =
            self.tail.channel.messages.iter().position(
                |message| matches!(message, Message::Guest(guest) if guest.event == "start"),
            );
        let first_guest =
            first.and_then(|index| Some(self.tail.seen.get(index)?.duration_since(self.started)));
        Ok(Ended {
            emulator: self.emulator,
            status,
            channel: self.tail.channel,
            wall,
            first_guest,
        })
    }
}

impl Ended {
    /// The exit code of QEMU, if it ended by itself; in Bochs, what QEMU's would have been.
    pub fn code(&self) -> Option<i32> {
        let code = self.status.and_then(|status| status.code());
        let by_bochs = self.emulator == Emulator::Bochs && code == Some(bochs::SHUTDOWN);
        match self.channel.end() {
            // Or of a machine on which nothing could run, and that had to be ended.
            Some(end) if by_bochs || self.status.is_none() && end.status == "bad-input" => {
                i32::try_from(end.code << 1 | 1).ok()
            }
            _ => code,
        }
    }

    /// How it ended, in words.
    pub fn how(&self) -> String {
        let name = self.emulator.name();
        match (self.status, self.code()) {
            (None, None) => format!("did not end within its {:.0?}", self.wall),
            (_, Some(code)) if code <= 1 => {
                format!("{name} ended by itself, exit code {code}, without a verdict of Lull's")
            }
            (_, Some(code)) => format!("exit code {code}: {}", exit::meaning(code)),
            (Some(status), None) => format!("{name} was killed ({status})"),
        }
    }
}
