//! A machine for a test: what is not said has a sensible default; all that it says is kept in files.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use super::case::Lab;
use crate::channel::{Channel, CommandAnswer, Cstates};
use crate::{
    build::Bundle,
    guest_arg::GuestArg,
    process,
    qemu::{Accel, BOARD, Console, Cpu, Machine},
    session::{Ended, Session, TO_LEAVE},
};

/// How long a machine that is about to be ended may print.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A machine in the making.
pub struct Rig<'a> {
    lab: &'a Lab<'a>,
    label: String,
    machine: Machine,
    guests: Vec<String>,
    bundle: Option<Vec<u8>>,
    words: Vec<String>,
    limit: Duration,
}

/// A machine that runs, with a keyboard.
pub struct Running {
    pub session: Session,
    pub console: PathBuf,
    pub(super) limit: Duration,
}

/// A machine that has ended.
pub struct Ran {
    pub ended: Ended,
    /// All that went to COM1.
    pub console: String,
}

impl<'a> Rig<'a> {
    pub fn new(lab: &'a Lab<'a>, label: &str, icount: bool) -> Self {
        let context = lab.context;
        let machine = Machine {
            version: context.version,
            accel: if icount { Accel::Icount } else { Accel::Tcg },
            cpu: Cpu::Default,
            cpus: 4,
            disabled_cpus: 0,
            mem: "512M".to_owned(),
            kernel: context.built.image.clone(),
            bundle: None,
            cmdline: String::new(),
            console: Console::Piped,
            debugcon: lab.dir.join(format!("{label}.channel.jsonl")),
            acpi_tables: Vec::new(),
            globals: Vec::new(),
            board: BOARD,
            gdb: false,
        };
        Self {
            lab,
            label: label.to_owned(),
            machine,
            guests: Vec::new(),
            bundle: None,
            words: vec!["exit-port=0xf4".to_owned()],
            limit: Duration::from_secs(60),
        }
    }

    /// CPUs that the firmware lists and that are not there.
    pub fn disabled_cpus(mut self, cpus: u32) -> Self {
        self.machine.disabled_cpus = cpus;
        self
    }

    pub fn cpus(mut self, cpus: u32) -> Self {
        self.machine.cpus = cpus;
        self
    }

    pub fn mem(mut self, mem: &str) -> Self {
        mem.clone_into(&mut self.machine.mem);
        self
    }

    pub fn cpu(mut self, model: &str) -> Self {
        self.machine.cpu = Cpu::Model(model.to_owned());
        self
    }

    /// One more guest, as `--guest` takes it, with its kernel's defaults.
    pub fn guest(mut self, spec: &str) -> Self {
        self.guests.push(spec.to_owned());
        self
    }

    /// This archive instead of one made of the guests.
    pub fn bundle(mut self, bytes: Vec<u8>) -> Self {
        self.bundle = Some(bytes);
        self
    }

    /// One more ACPI table, compiled already.
    pub fn acpi_table(mut self, aml: PathBuf) -> Self {
        self.machine.acpi_tables.push(aml);
        self
    }

    /// With an HPET that can interrupt by messages.
    pub fn hpet_messages(mut self) -> Self {
        self.machine.globals.push("hpet.msi=on");
        self
    }

    /// Without an HPET.
    pub fn no_hpet(mut self) -> Self {
        self.machine.board = "q35,hpet=off";
        self
    }

    /// One more word for Lull's command line.
    pub fn word(mut self, word: &str) -> Self {
        self.words.push(word.to_owned());
        self
    }

    /// Another kernel than Lull: it gets no command line.
    pub fn kernel(mut self, kernel: PathBuf) -> Self {
        self.machine.kernel = kernel;
        self.words.clear();
        self
    }

    /// How long it may take on the wall clock; 60 s if nothing is said.
    pub fn limit(mut self, seconds: u64) -> Self {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// Starts it.
    pub fn start(mut self) -> Result<Running> {
        let file = |kind: &str| self.lab.dir.join(format!("{}.{kind}", self.label));
        let bundle = match self.bundle.take() {
            Some(bytes) => Some(bytes),
            None if self.guests.is_empty() => None,
            None => {
                Some(Bundle::of_guests(&self.guest_args()?, &self.lab.context.built)?.to_bytes()?)
            }
        };
        if let Some(bytes) = bundle {
            let path = file("bundle.cpio");
            fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
            self.machine.bundle = Some(path);
        }
        self.machine.cmdline = self.words.join(" ");
        fs::write(file("command.txt"), process::line(&self.machine.command()))?;
        let console = file("console.txt");
        let (out, err) = (File::create(&console)?, File::create(file("qemu.txt"))?);
        let session = Session::start(&self.machine, None, |command| {
            command.stdin(Stdio::piped()).stdout(out).stderr(err);
        })?;
        Ok(Running {
            session,
            console,
            limit: self.limit,
        })
    }

    /// Starts it and waits for its end.
    pub fn run(self) -> Result<Ran> {
        self.start()?.finish()
    }

    fn guest_args(&self) -> Result<Vec<GuestArg>> {
        let complete = |spec: &String| {
            let mut guest: GuestArg = spec.parse()?;
            self.lab
                .context
                .built
                .guest(guest.kernel())?
                .complete(&mut guest);
            Ok(guest)
        };
        self.guests.iter().map(complete).collect()
    }
}

impl Running {
    /// Waits until so many guests have started, each with one record.
    ///
    /// # Errors
    /// They have not within a minute.
    pub fn wait_for_guests(&mut self, count: usize) -> Result<()> {
        let limit = Duration::from_secs(60);
        let up = self
            .session
            .wait_for(limit, |channel| channel.guests().count() >= count)?;
        ensure!(up, "the guests did not start");
        Ok(())
    }

    /// Types a command on the debug console, and gives its answer.
    ///
    /// # Errors
    /// There is no answer.
    pub fn command(&mut self, line: &str) -> Result<CommandAnswer> {
        let mut before = 0;
        self.session.wait_for(Duration::ZERO, |channel| {
            before = channel.commands().count();
            true
        })?;
        self.type_line(line)?;
        let mut answer = None;
        self.session.wait_for(Duration::from_secs(20), |channel| {
            answer = channel.commands().nth(before).cloned();
            answer.is_some()
        })?;
        let answer = answer.with_context(|| format!("no answer to `{line}`"))?;
        ensure!(
            answer.line == line,
            "`{line}` was read as `{}`",
            answer.line
        );
        Ok(answer)
    }

    /// Types a command as people do: no more at once than a UART's FIFO holds, and the rest when that was echoed.
    fn type_line(&mut self, line: &str) -> Result<()> {
        const AT_ONCE: usize = 8;
        let typed: Vec<char> = format!(":{line}").chars().collect();
        for piece in typed.chunks(AT_ONCE) {
            let said = self.console().len();
            self.session.press(&piece.iter().collect::<String>())?;
            // The first character opens the line, and is echoed in its own way.
            let echo: String = piece.iter().filter(|c| **c != ':').collect();
            for _ in 0..200 {
                let console = self.console();
                if console.get(said..).is_some_and(|new| new.contains(&echo)) {
                    break;
                }
                self.session
                    .wait_for(Duration::from_millis(20), |_| false)?;
            }
        }
        self.session.press("\r")
    }

    /// The same, for a command that must be carried out.
    ///
    /// # Errors
    /// It was not.
    pub fn does(&mut self, line: &str) -> Result<CommandAnswer> {
        let answer = self.command(line)?;
        ensure!(answer.ok, "`{line}` is refused: {answer:?}");
        Ok(answer)
    }

    /// Takes a reading by key `c`, and gives it.
    ///
    /// # Errors
    /// There is none.
    pub fn reading(&mut self) -> Result<Cstates> {
        let mut before = 0;
        self.session.wait_for(Duration::ZERO, |channel| {
            before = channel.cstates().count();
            true
        })?;
        self.session.press("c")?;
        let mut reading = None;
        self.session.wait_for(Duration::from_secs(20), |channel| {
            reading = channel.cstates().nth(before).cloned();
            reading.is_some()
        })?;
        reading.context("key c gave no reading")
    }

    /// Waits until all CPUs are up, and `guests` guests have started.
    ///
    /// # Errors
    /// They have not within a minute.
    pub fn up(&mut self, guests: usize) -> Result<()> {
        let up = self.session.wait_for(Duration::from_secs(60), |channel| {
            channel.boot().is_some() && channel.guests().count() >= guests
        })?;
        ensure!(up, "the machine did not come up");
        Ok(())
    }

    /// What has gone to COM1 so far.
    pub fn console(&self) -> String {
        fs::read(&self.console)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Waits for its end. A machine that does not end in time is asked for all it knows first, for its log.
    pub fn finish(mut self) -> Result<Ran> {
        let ends = |channel: &Channel| channel.end().is_some();
        if self.session.wait_for(self.limit, ends)? {
            self.session.wait_for(TO_LEAVE, |_| false)?;
        }
        if self.session.runs()? && self.session.press("*").is_ok() {
            self.session.wait_for(LAST_WORDS, |_| false)?;
        }
        let ended = self.session.finish(Some(Duration::ZERO))?;
        let console = fs::read(&self.console).unwrap_or_default();
        Ok(Ran {
            ended,
            console: String::from_utf8_lossy(&console).into_owned(),
        })
    }
}
