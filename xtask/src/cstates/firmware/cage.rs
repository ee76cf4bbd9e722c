//! A process in place of the image's cage: for code that panics, loops, recurses or eats memory without end.
//!
//! xtask starts itself once more, gives the work to it by its standard input, and believes what it wrote until it ended,
//! however it ended. The limits are on the time that it computes, its memory and its stack.

use std::{
    io::{Read, Write},
    os::unix::process::ExitStatusExt,
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use lull::acpi::aml::capabilities::Capabilities;
use lull::acpi::aml::handler::{Machine, PciAddress};
use lull::acpi::aml::rules::{First, Refusals, Refused, Rules};
use lull::acpi::aml::{AmlTable, Findings, Job, evaluate};
use lull::cage::{Escape, Text, file_name};
use lull_core::units::Micros;
use nix::sys::{
    resource::{Resource, setrlimit},
    signal::Signal,
};

use super::lines::{Line, Task, Writer, report};
use crate::process;

/// The name of the hidden command.
pub const COMMAND: &str = "evaluate-aml";
/// What it may compute.
const SECONDS: u64 = 2;
/// On a machine that has other things to do, that takes longer.
const PATIENCE: Duration = Duration::from_secs(120);
/// All of its memory.
const MEMORY: u64 = 256 << 20;
/// Its stack. A debug build needs much more than the image.
const STACK: usize = 4 << 20;

/// How the work ended, and what it wanted of registers that are not here.
pub type Ended = (Result<(), Escape>, Option<String>);

/// Runs the job in a process of its own.
///
/// # Errors
/// The process cannot be started. How it ends is no error but part of the result.
pub fn run(job: &Job<'_>, findings: &mut Findings) -> Result<Ended> {
    let task = Task {
        tables: job
            .tables
            .iter()
            .map(|table| (table.name.clone(), table.bytes.clone()))
            .collect(),
        without: job.without.to_vec(),
        unasked: job.unasked.iter().map(ToString::to_string).collect(),
        enabled: job.enabled.to_vec(),
        capabilities: job.capabilities.bits(),
        known: findings
            .processors
            .iter()
            .map(|known| known.path.to_string())
            .collect(),
    };
    let program = std::env::current_exe().context("xtask does not find itself")?;
    let mut command = Command::new(program);
    command
        .arg(COMMAND)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let input = serde_json::to_vec(&task)?;
    let (output, in_time) = process::output_of(&mut command, input, PATIENCE)?;
    let mut lines = Vec::new();
    for line in output.stdout.split(|byte| *byte == b'\n') {
        // The last one may be cut.
        if let Ok(line) = serde_json::from_slice::<Line>(line) {
            report(&line, findings);
            lines.push(line);
        }
    }
    let missed = lines.iter().find_map(|line| match line {
        Line::Missed(what) => Some(what.clone()),
        _ => None,
    });
    let outcome = ended(&output, in_time, lines.last());
    if let Err(Escape::NotStarted) = outcome {
        bail!(
            "the process for the firmware's code did not start: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok((outcome, missed))
}

/// How it ended.
fn ended(output: &Output, in_time: bool, last: Option<&Line>) -> Result<(), Escape> {
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        return Ok(());
    }
    let out_of_time = !in_time || output.status.signal() == Some(Signal::SIGXCPU as i32);
    Err(match last {
        _ if out_of_time => Escape::OutOfTime(Micros::new(SECONDS * 1_000_000)),
        Some(Line::Panic(what)) => Escape::Panic(text(what)),
        // What the runtime of Rust says; it has no other way to tell.
        _ if said.contains("has overflowed its stack") => Escape::StackOverflow,
        _ if said.contains("memory allocation of") => Escape::HeapUsedUp(MEMORY),
        None => Escape::NotStarted,
        _ => Escape::Panic(text(&output.status.to_string())),
    })
}

fn text(what: &str) -> Text {
    let mut kept = Text::new();
    for c in what.chars() {
        let _full = kept.try_push(if c.is_control() { ' ' } else { c });
    }
    kept
}

/// No registers: reads give ones, as where no device answers.
struct NoRegisters;

static MISSED: Refusals = Refusals::none();
static REFUSED: Refusals = Refusals::none();

impl Machine for NoRegisters {
    fn read_memory(&self, address: u64, size: u64) -> Option<u64> {
        MISSED.add(Refused::Memory(address), false);
        Some(u64::MAX >> (64 - 8 * size.clamp(1, 8)))
    }
    fn write_memory(&self, address: u64, _: u64, _: u64) -> bool {
        MISSED.add(Refused::Memory(address), true);
        true
    }
    fn read_port(&self, port: u16, size: u16) -> u32 {
        MISSED.add(Refused::Port(port), false);
        u32::MAX >> (32 - 8 * size.clamp(1, 4))
    }
    fn write_port(&self, port: u16, _: u16, _: u32) {
        MISSED.add(Refused::Port(port), true);
    }
    fn read_pci(&self, _: PciAddress, size: u16) -> u32 {
        MISSED.add(Refused::Pci, false);
        u32::MAX >> (32 - 8 * size.clamp(1, 4))
    }
    fn write_pci(&self, _: PciAddress, _: u16, _: u32) {
        MISSED.add(Refused::Pci, true);
    }
    /// Every look at the clock is a microsecond: the same on a host that has other things to do.
    fn nanoseconds(&self) -> u64 {
        static CLOCK: AtomicU64 = AtomicU64::new(0);
        CLOCK.fetch_add(1000, Ordering::Relaxed)
    }
}

fn say(line: &Line) {
    let mut out = std::io::stdout().lock();
    // Nobody reads any more: there is nobody to tell.
    let _gone = serde_json::to_writer(&mut out, line);
    let _gone = out.write_all(b"\n").and_then(|()| out.flush());
}

/// The hidden command: the other side of [`run`].
///
/// # Errors
/// Its input is no task, or the limits cannot be set.
pub fn command() -> Result<()> {
    let mut input = Vec::new();
    std::io::stdin().lock().read_to_end(&mut input)?;
    let task: Task = serde_json::from_slice(&input)
        .map_err(|why| anyhow!("this command is for xtask itself, and its input no task: {why}"))?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    setrlimit(Resource::RLIMIT_CPU, SECONDS, SECONDS + 1)?;
    setrlimit(Resource::RLIMIT_AS, MEMORY, MEMORY)?;
    std::panic::set_hook(Box::new(|info| {
        let message = info.payload_as_str().unwrap_or("no message");
        let at = info.location().map_or(String::new(), |at| {
            format!(" ({}:{})", file_name(at.file()), at.line())
        });
        say(&Line::Panic(format!("{message}{at}")));
    }));
    let tables: Vec<AmlTable> = task
        .tables
        .into_iter()
        .map(|(name, bytes)| AmlTable { name, bytes })
        .collect();
    let unasked: Vec<&'static str> = task
        .unasked
        .iter()
        .filter_map(|name| super::lines::method(name))
        .collect();
    let work = thread::Builder::new().stack_size(STACK).spawn(move || {
        let job = Job {
            tables: &tables,
            without: &task.without,
            unasked: &unasked,
            enabled: &task.enabled,
            capabilities: Capabilities::from_bits_retain(task.capabilities),
        };
        let mut writer = Writer {
            known: task.known,
            write: say,
        };
        evaluate(
            NoRegisters,
            Rules::new([], [], []),
            &REFUSED,
            &job,
            &mut writer,
        );
    })?;
    work.join().map_err(|_| anyhow!("it panicked"))?;
    if MISSED.count() > 0 {
        let (count, first) = (MISSED.count(), First(&MISSED));
        say(&Line::Missed(format!(
            "registers are not here: {count} accesses read ones or wrote nothing, the first a {first}"
        )));
    }
    if REFUSED.count() > 0 {
        say(&Line::Refused(REFUSED.to_string()));
    }
    Ok(())
}
