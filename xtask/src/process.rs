//! Runs programs, with a time limit, and leaves none behind.
//!
//! Every child is in one list while it lives. It is ended when its [`Job`] is dropped, when its time is over,
//! when xtask gets SIGINT, SIGTERM or SIGHUP, and (by the kernel) when xtask dies of anything else.
#![expect(
    unsafe_code,
    reason = "the death signal of a child is set between fork and exec, and SIGPIPE is given back its default"
)]

use std::{
    ffi::OsStr,
    fmt::Write as _,
    fs,
    io::{self, Read, Write as _},
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus, Output},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::{
    sys::{
        prctl,
        signal::{self, Signal, kill, killpg},
        termios::{SetArg, Termios, tcgetattr, tcsetattr},
    },
    unistd::Pid,
};

/// How often a running child is looked at.
const LOOK: Duration = Duration::from_millis(10);
/// How long a child may take to end in good order (QEMU gives the terminal back then) before it is killed.
const GRACE: Duration = Duration::from_secs(2);

/// Which processes end together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The child leads a process group of its own: its children are ended with it.
    Group,
    /// The child stays in our process group, so that it may read from the terminal.
    Terminal,
}

/// A child that has not been waited for yet.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Live {
    pid: Pid,
    scope: Scope,
}

impl Live {
    fn signal(self, signal: Signal) {
        // It may have ended on its own in this very moment, which is what we want.
        let _ended = match self.scope {
            Scope::Group => killpg(self.pid, signal),
            Scope::Terminal => kill(self.pid, signal),
        };
    }
}

static LIVE: Mutex<Vec<Live>> = Mutex::new(Vec::new());

fn live() -> MutexGuard<'static, Vec<Live>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `cargo xtask ... | head` ends xtask, and by their death signal its children, instead of making it panic.
///
/// Rust ignores SIGPIPE, so that a closed pipe is an error of each `println!`.
pub fn end_quietly_when_nobody_reads() {
    // SAFETY: the default action runs no code of ours.
    let set = unsafe { signal::signal(Signal::SIGPIPE, signal::SigHandler::SigDfl) };
    debug_assert!(set.is_ok(), "SIGPIPE has a default");
}

/// From now on SIGINT, SIGTERM and SIGHUP end all children, then xtask itself.
///
/// # Errors
/// If the handler cannot be installed.
pub fn end_children_on_signals() -> Result<()> {
    let terminal: Option<Termios> = tcgetattr(io::stdin()).ok();
    ctrlc::set_handler(move || {
        live()
            .iter()
            .for_each(|child| child.signal(Signal::SIGTERM));
        let patience = Instant::now() + GRACE;
        while !live().is_empty() && Instant::now() < patience {
            thread::sleep(LOOK);
        }
        live()
            .iter()
            .for_each(|child| child.signal(Signal::SIGKILL));
        if let Some(settings) = &terminal {
            let _given_back = tcsetattr(io::stdin(), SetArg::TCSANOW, settings);
        }
        eprintln!("xtask: interrupted");
        std::process::exit(130);
    })
    .context("cannot watch for Ctrl-C")
}

/// A running program, ended at the latest when this is dropped.
pub struct Job {
    child: Child,
    live: Live,
    name: String,
    ended: Option<ExitStatus>,
}

impl Job {
    /// Starts `command`.
    ///
    /// # Errors
    /// If the program is missing or cannot be started; the error names it.
    pub fn start(command: &mut Command, scope: Scope) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        if scope == Scope::Group {
            command.process_group(0);
        }
        // SAFETY: the closure runs between fork and exec and makes one system call, `prctl`, which is
        // async-signal-safe; it allocates nothing and takes no lock.
        unsafe {
            command.pre_exec(|| prctl::set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from));
        }
        let mut all = live();
        let child = command.spawn().map_err(|why| cannot_start(&name, &why))?;
        let pid =
            Pid::from_raw(i32::try_from(child.id()).context("a process id that does not fit")?);
        let live = Live { pid, scope };
        all.push(live);
        Ok(Self {
            child,
            live,
            name,
            ended: None,
        })
    }

    /// The child's standard input, once, if it was piped.
    pub fn stdin(&mut self) -> Option<std::process::ChildStdin> {
        self.child.stdin.take()
    }

    /// How long the thread of it that waited most for a CPU of the host has waited; 0 where the kernel does not tell.
    pub fn starved(&self) -> Duration {
        let folder = format!("/proc/{}/task", self.live.pid);
        let threads = fs::read_dir(folder).into_iter().flatten().flatten();
        let waits = threads.filter_map(|thread| {
            let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            waited(&text)
        });
        waits.max().unwrap_or_default()
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn poll(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            // The list is held meanwhile: a pid that has been waited for may belong to someone else.
            let mut all = live();
            self.ended = self
                .child
                .try_wait()
                .with_context(|| format!("cannot wait for {}", self.name))?;
            if self.ended.is_some() {
                all.retain(|other| *other != self.live);
            }
        }
        Ok(self.ended)
    }

    /// Waits until it ends or `limit` is over; `None`: it still runs.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<Option<ExitStatus>> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.poll()? {
                return Ok(Some(status));
            }
            if limit.is_some_and(|limit| started.elapsed() >= limit) {
                return Ok(None);
            }
            thread::sleep(LOOK);
        }
    }

    /// Ends it and all its children: first in good order, then for sure.
    pub fn end(&mut self) {
        for (signal, patience) in [(Signal::SIGTERM, GRACE), (Signal::SIGKILL, GRACE)] {
            if matches!(self.poll(), Ok(Some(_)) | Err(_)) {
                return;
            }
            self.live.signal(signal);
            let _gone = self.wait(Some(patience));
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.end();
    }
}

/// The second number of `schedstat`: nanoseconds in which a thread could have run and did not.
fn waited(schedstat: &str) -> Option<Duration> {
    let waited = schedstat.split_whitespace().nth(1)?;
    Some(Duration::from_nanos(waited.parse().ok()?))
}

fn cannot_start(name: &str, why: &io::Error) -> anyhow::Error {
    match why.kind() {
        io::ErrorKind::NotFound => {
            anyhow::anyhow!("the program `{name}` is not installed (it is not in PATH)")
        }
        io::ErrorKind::PermissionDenied => anyhow::anyhow!("no permission to run `{name}`"),
        _ => anyhow::anyhow!("cannot start `{name}`: {why}"),
    }
}

/// Runs `command` to its end; its output goes where ours goes.
///
/// # Errors
/// If it cannot be started or fails; the error holds the whole command line.
pub fn run(command: &mut Command) -> Result<()> {
    run_within(command, None)
}

/// As [`run`], and ends it when `limit` is over.
///
/// # Errors
/// As [`run`], or if the limit is over.
pub fn run_within(command: &mut Command, limit: Option<Duration>) -> Result<()> {
    let mut job = Job::start(command, Scope::Group)?;
    match (job.wait(limit)?, limit) {
        (Some(status), _) if status.success() => Ok(()),
        (Some(status), _) => bail!("`{}` failed ({status})", line(command)),
        (None, limit) => {
            job.end();
            bail!(
                "`{}` did not end within {:?}",
                line(command),
                limit.unwrap_or_default()
            )
        }
    }
}

/// Runs `command` to its end and gives what it wrote to the streams that `command` pipes.
///
/// # Errors
/// If it cannot be started or read.
pub fn output(command: &mut Command) -> Result<Output> {
    let mut job = Job::start(command, Scope::Group)?;
    let stdout = reader(job.child.stdout.take());
    let stderr = reader(job.child.stderr.take());
    let status = job.wait(None)?.context("a program that does not end")?;
    let text = |reader: Option<thread::JoinHandle<Vec<u8>>>| {
        reader.and_then(|r| r.join().ok()).unwrap_or_default()
    };
    Ok(Output {
        status,
        stdout: text(stdout),
        stderr: text(stderr),
    })
}

/// Runs `command`, whose three streams are piped, on this input, and ends it when `limit` is over. Gives what it wrote,
/// and whether it ended by itself.
///
/// # Errors
/// If it cannot be started or read.
pub fn output_of(command: &mut Command, input: Vec<u8>, limit: Duration) -> Result<(Output, bool)> {
    let mut job = Job::start(command, Scope::Group)?;
    let stdout = reader(job.child.stdout.take());
    let stderr = reader(job.child.stderr.take());
    if let Some(mut stdin) = job.stdin() {
        // A program that does not read all of it is heard on its other streams.
        thread::spawn(move || stdin.write_all(&input));
    }
    let ended = job.wait(Some(limit))?;
    job.end();
    let status = job.poll()?.context("a program that does not end")?;
    let text = |reader: Option<thread::JoinHandle<Vec<u8>>>| {
        reader.and_then(|r| r.join().ok()).unwrap_or_default()
    };
    let output = Output {
        status,
        stdout: text(stdout),
        stderr: text(stderr),
    };
    Ok((output, ended.is_some()))
}

/// Reads a pipe to its end, beside us.
fn reader(pipe: Option<impl Read + Send + 'static>) -> Option<thread::JoinHandle<Vec<u8>>> {
    pipe.map(|mut pipe| {
        thread::spawn(move || {
            let mut all = Vec::new();
            // What came before an error is still worth something.
            let _read = pipe.read_to_end(&mut all);
            all
        })
    })
}

/// The command line as one would type it.
pub fn line(command: &Command) -> String {
    let mut text = quoted(command.get_program());
    for arg in command.get_args() {
        let _never_fails = write!(text, " {}", quoted(arg));
    }
    text
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=.,:/+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named() {
        let why = run(&mut Command::new("lull-no-such-program"))
            .unwrap_err()
            .to_string();
        assert_eq!(
            why,
            "the program `lull-no-such-program` is not installed (it is not in PATH)"
        );
    }

    #[test]
    fn a_failure_holds_the_command_line() {
        let why = run(Command::new("sh").args(["-c", "exit 3"]))
            .unwrap_err()
            .to_string();
        assert!(why.starts_with("`sh -c 'exit 3'` failed"), "{why}");
    }

    #[test]
    fn what_takes_too_long_is_named() {
        let mut command = Command::new("sleep");
        let why = run_within(command.arg("600"), Some(Duration::from_millis(50)))
            .unwrap_err()
            .to_string();
        assert_eq!(why, "`sleep 600` did not end within 50ms");
    }

    #[test]
    fn the_time_that_a_thread_waited_for_a_cpu_is_read() {
        let waited_ns = |text| waited(text).map(|span| span.as_nanos());
        assert_eq!(waited_ns("4000000 2500000 17\n"), Some(2_500_000));
        assert_eq!(waited_ns("4000000"), None);
        assert_eq!(waited_ns("0 no 0"), None);
    }

    #[test]
    fn a_limit_ends_the_child_and_its_children() {
        let mut job = Job::start(
            Command::new("sh").args(["-c", "sleep 600 & sleep 600"]),
            Scope::Group,
        )
        .unwrap();
        let group = job.live.pid;
        assert!(
            job.wait(Some(Duration::from_millis(50))).unwrap().is_none(),
            "it should still run"
        );
        job.end();
        // The orphan has to be reaped by init before its group is gone.
        let patience = Instant::now() + Duration::from_secs(5);
        while killpg(group, None).is_ok() && Instant::now() < patience {
            thread::sleep(LOOK);
        }
        assert!(killpg(group, None).is_err(), "the group still lives");
        assert!(!live().iter().any(|child| child.pid == group));
    }

    #[test]
    fn command_lines_can_be_typed_again() {
        let mut command = Command::new("qemu");
        command.args(["-append", "a b", "-m", "512M", "it's", ""]);
        assert_eq!(line(&command), r"qemu -append 'a b' -m 512M 'it'\''s' ''");
    }
}
