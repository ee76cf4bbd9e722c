//! The hypervisor's command line: `name=value` words and flags, separated by blanks.
//!
//! A word that is unknown or malformed is named in a [`Problem`] and then ignored: a typing error must not keep a machine
//! from booting, and must not go unseen. An option that is given twice counts as given last, and is named as well.
//! Nothing here panics, whatever the boot loader hands over.
//!
//! Called once, at boot, and by `cargo xtask` to check what it is about to hand over.

use crate::governor::LatencyPrice;
use crate::guests_txt::MAX_LATENCY;
use crate::mitigation::Policy;
use crate::sched::credit2::Config;
use crate::units::{CpuId, CpuSet, Micros, TickRate};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

mod cpus;
mod cstates;
mod frames;
mod number;
mod problem;
mod table;
mod wakes;

pub(crate) use cpus::cpu_list;
pub use cstates::{
    CStateOptions, CpuidOverride, CpuidRegister, EarlyIrq, MaxCState, StatesOff, TableEdit,
};
pub use frames::{Frame, FrameTable};
pub(crate) use number::number;
pub use problem::Problem;
pub use table::{OPTIONS, OptionSpec};
pub use wakes::{IpiFence, WakeOptions, WakeTest};

/// How much is logged: this level and those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum LogLevel {
    /// What has gone wrong.
    Error,
    /// What may be wrong.
    Warn,
    /// What a user wants to know.
    #[default]
    Info,
    /// What a developer wants to know.
    Debug,
    /// Everything.
    Trace,
}

/// Which sleeps the idle loop may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum IdleMethod {
    /// The best ones that were found to work.
    #[default]
    Auto,
    /// Only HLT.
    Halt,
    /// MWAIT, if it was found to work at all; else as `Auto`.
    Mwait,
    /// Never sleep.
    Poll,
}

/// A fault that is put into the accounting, to show that its check notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccountFault {
    /// One interval is not counted.
    Drop,
    /// One interval is counted twice.
    Double,
}

/// A crash on purpose, to test what is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Crash {
    /// A page fault.
    PageFault,
    /// An invalid opcode.
    InvalidOpcode,
    /// A stack overflow into the guard page.
    StackOverflow,
    /// A panic.
    Panic,
}

/// How an emulator is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExitPort {
    /// The end code is written to this port (QEMU's `isa-debug-exit`).
    Code(u16),
    /// Bochs' shutdown port, which takes no code: that is on the machine channel.
    Bochs,
}

impl ExitPort {
    /// The port that is written to.
    pub const fn port(self) -> u16 {
        match self {
            Self::Code(port) => port,
            Self::Bochs => 0x8900,
        }
    }
}

/// Seconds, as a person asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seconds(pub u32);

/// Everything that the command line can say. What it does not say has the value of [`Options::default`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// `loglvl=`: how much is logged.
    pub log_level: LogLevel,
    /// `idle=`: which sleeps are used.
    pub idle: IdleMethod,
    /// `governor=`: who chooses the C-state. `None`: the default one.
    pub governor: Option<String>,
    /// `governor.price=`: at what price Lull's own governor trades energy for wake latency.
    pub latency_price: LatencyPrice,
    /// `trace.idle=`: how many idle periods of each CPU are recorded.
    pub trace_idle: Option<usize>,
    /// `latency=`: the longest exit latency that CPUs may choose. For each CPU the last one counts.
    pub latency: Vec<LatencyLimit>,
    /// `sched=`: which scheduler. `None`: the default one.
    pub sched: Option<String>,
    /// `arinc653=`: the table of frames.
    pub arinc653: Option<FrameTable>,
    /// The options of credit2.
    pub credit2: Config,
    /// The options about C-states.
    pub cstates: CStateOptions,
    /// How CPUs wake each other.
    pub wakes: WakeOptions,
    /// `hpet=`: how an HPET may interrupt.
    pub hpet: HpetInterrupt,
    /// `mitigations=`: which barriers there are between guests.
    pub mitigations: Policy,
    /// `vmx.apicv=`: whether Intel processors virtualize guests' local APICs, where they can.
    pub vmx_apicv: bool,
    /// `vmx.posted=`: whether they take interrupts that other CPUs post without leaving the guest, where they can.
    pub vmx_posted: Posting,
    /// `exit-port=`: how the emulator is left at the end. `None`: ACPI power-off, else halt.
    pub exit_port: Option<ExitPort>,
    /// `for=`: end after this time. `None`: when all guests have ended.
    pub run_for: Option<Seconds>,
    /// `keep`: go on when all guests have ended.
    pub keep: bool,
    /// `no-guests`: an idle machine is asked for.
    pub no_guests: bool,
    /// `maxcpus=`: run on no more CPUs than this, the boot CPU included.
    pub max_cpus: Option<usize>,
    /// `machine-channel=`: write JSON lines to port 0xE9.
    pub machine_channel: bool,
    /// `ap-timeout-ms=`: how long an application processor may take to answer.
    pub ap_timeout: Micros,
    /// `tsc-hz=`: the TSC's rate, instead of a measurement.
    pub tsc_rate: Option<TickRate>,
    /// `test.account=`: spoil the accounting.
    pub test_account: Option<AccountFault>,
    /// `test.tsc=stops`: the TSC is set back after each sleep in which it may stop, as if it had.
    pub test_tsc_stops: bool,
    /// `test.timers=`: each CPU sets timers of this period, and none may be lost.
    pub test_timers: Option<Micros>,
    /// `test.uptime=`: days that the machine is taken to have been up before it booted.
    pub test_uptime: Option<u32>,
    /// `test.absent-ap=`: act as if this CPU never answered.
    pub test_absent_ap: Option<CpuId>,
    /// `test.crash=`: crash on purpose.
    pub test_crash: Option<Crash>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            log_level: LogLevel::default(),
            idle: IdleMethod::default(),
            governor: None,
            latency_price: LatencyPrice::DEFAULT,
            trace_idle: None,
            latency: Vec::new(),
            sched: None,
            arinc653: None,
            credit2: Config::default(),
            cstates: CStateOptions::default(),
            wakes: WakeOptions::default(),
            hpet: HpetInterrupt::default(),
            mitigations: Policy::default(),
            vmx_apicv: true,
            vmx_posted: Posting::default(),
            exit_port: None,
            run_for: None,
            keep: false,
            no_guests: false,
            max_cpus: None,
            machine_channel: true,
            ap_timeout: Micros::new(200_000),
            tsc_rate: None,
            test_account: None,
            test_tsc_stops: false,
            test_timers: None,
            test_uptime: None,
            test_absent_ap: None,
            test_crash: None,
        }
    }
}

/// Whether interrupts are posted to guests that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Posting {
    /// Where the processor offers it, and was not found to deliver virtual interrupts at the wrong moment.
    #[default]
    Auto,
    /// Where the processor offers it.
    On,
    /// Nowhere.
    Off,
}

/// How an HPET's interrupt gets to a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum HpetInterrupt {
    /// In the place of the PIT's if that works, else by messages.
    #[default]
    Any,
    /// In the place of the PIT's only.
    Legacy,
    /// By messages only.
    Message,
}

/// A limit on exit latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LatencyLimit {
    /// The limit.
    pub limit: Micros,
    /// The CPUs that it is for.
    pub cpus: CpuSet,
}

impl LatencyLimit {
    /// Reads `MICROSECONDS` or `MICROSECONDS:CPUS`.
    fn parse(value: &str) -> Result<Self, String> {
        let (limit, cpus) = match value.split_once(':') {
            Some((limit, cpus)) => (limit, cpu_list(cpus)?),
            None => (value, CpuSet::ALL),
        };
        Ok(Self {
            limit: Micros::new(number(limit, 0..=MAX_LATENCY.get())?),
            cpus,
        })
    }
}

impl Options {
    /// The limit on exit latency that a CPU begins with.
    pub fn latency_of(&self, cpu: CpuId) -> Option<Micros> {
        let mut last_first = self.latency.iter().rev();
        let one = last_first.find(|one| one.cpus.contains(cpu))?;
        Some(one.limit)
    }

    /// What `latency=` says of CPUs that are not among those `online`: nothing comes of it. `all` is said of those only.
    pub fn absent_cpus(&self, online: &CpuSet) -> impl Iterator<Item = (Micros, CpuSet)> {
        let named = self.latency.iter().filter(|one| one.cpus != CpuSet::ALL);
        named
            .map(|one| (one.limit, one.cpus.difference(online)))
            .filter(|(_, absent)| !absent.is_empty())
    }

    /// Reads a command line. Never fails: what could not be used is in the list.
    pub fn parse(line: &str) -> (Self, Vec<Problem>) {
        let mut options = Self::default();
        let mut problems = Vec::new();
        let mut seen = [false; OPTIONS.len()];
        for word in line.split_whitespace() {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, None),
            };
            let known = OPTIONS.iter().zip(&mut seen).find(|(o, _)| o.name == name);
            let Some((option, seen)) = known else {
                problems.push(Problem::new(word, "no such option", known_names()));
                continue;
            };
            match option.apply(&mut options, value) {
                Err(why) => problems.push(Problem::new(word, why, option.form())),
                Ok(()) if core::mem::replace(seen, true) && !option.repeats => {
                    problems.push(Problem::new(
                        word,
                        format!("`{name}` is given more than once: the last one counts"),
                        "it once",
                    ))
                }
                Ok(()) => {}
            }
        }
        (options, problems)
    }
}

fn known_names() -> String {
    let mut names = "one of ".to_string();
    for (index, option) in OPTIONS.iter().enumerate() {
        if index > 0 {
            names.push_str(", ");
        }
        names.push_str(option.name);
    }
    names
}

/// As the command line spells it.
impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        })
    }
}

#[cfg(test)]
mod tests;
