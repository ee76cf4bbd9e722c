//! The messages of the machine channel. Times are in TSC ticks.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// One line.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Message {
    Boot(Boot),
    Problem(Problem),
    AcpiCst(AcpiCst),
    Cstates(Cstates),
    Guest(GuestEvent),
    Figure(Figure),
    Measure(Measure),
    IdleTrace(IdleTrace),
    Command(CommandAnswer),
    Timers(Timers),
    Clocks(Clocks),
    End(End),
    /// A type that this xtask does not know.
    #[serde(other)]
    Unknown,
}

/// What Lull measured of itself.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Measure {
    pub name: String,
    pub value: u64,
    pub unit: String,
}

/// Some of the idle periods that one CPU has recorded.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct IdleTrace {
    pub cpu: u32,
    /// The number of the first one here.
    pub first: u64,
    /// How many found no room.
    pub dropped: u64,
    pub periods: Vec<IdlePeriod>,
}

/// One idle period.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct IdlePeriod {
    pub idle_ns: u64,
    /// To the next deadline at entry, if there was one.
    pub timer_ns: Option<u64>,
    /// `T`, `R`, `I` or `N`.
    pub cause: String,
    pub busy_ns: u64,
    /// The first state that was chosen.
    pub state: String,
    pub stays: u32,
}

/// What was found at boot.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Boot {
    /// How many CPUs run.
    pub cpus: u32,
    /// Indices of CPUs that never answered.
    pub cpus_failed: Vec<u32>,
    pub tsc_hz: u64,
    pub tsc_source: String,
    pub nonstop_tsc: bool,
    pub arat: bool,
    pub tsc_deadline: bool,
    pub mwait: String,
    /// Whether a store by another CPU ends MWAIT, if that was found out.
    pub store_wakes: Option<bool>,
    pub x2apic: bool,
    /// `svm`, `vmx` or nothing.
    pub virt: Option<String>,
    /// Why `virt` is what it is.
    pub virt_why: Option<String>,
    /// Who runs us, by CPUID.
    pub hypervisor: Option<String>,
    pub cmdline: String,
    pub mem_mib: u64,
    /// `lapic` or `tsc-deadline`.
    pub timer: String,
}

/// One bad input.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Problem {
    /// `cmdline`, `bundle`, `guest`, `firmware` or `cpu`.
    #[serde(rename = "where")]
    pub place: String,
    pub name: String,
    pub why: String,
    pub expected: Option<String>,
}

/// What the firmware says about C-states.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AcpiCst {
    /// `off`, `none`, `found` or `failed`.
    pub state: String,
    /// How often the firmware's code was run.
    pub runs: u32,
    /// The capability dword that the processors were told.
    pub offered: u32,
    /// The port of the P_BLK.
    pub p_blk: Option<u16>,
    /// Processors with equal results, taken together.
    pub groups: Vec<CstGroup>,
}

/// Processors with equal results.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CstGroup {
    /// Path of the first one's object.
    pub first: String,
    /// ACPI's numbers of all.
    pub processors: Vec<u32>,
    /// Whether `_OSC` took note, if there is one.
    pub osc: Option<bool>,
    /// What it granted.
    pub granted: Option<u32>,
    /// Whether `_PDC` told.
    pub pdc: bool,
    /// Why there are no entries.
    pub why: Option<String>,
    pub entries: Vec<CstEntry>,
    pub faults: Vec<CstFault>,
}

/// One state of `_CST`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CstEntry {
    /// ACPI's type.
    pub c: u8,
    /// `mwait`, `hlt` or `io`.
    pub method: String,
    pub hint: Option<u32>,
    pub port: Option<u16>,
    pub check_bus_master: Option<bool>,
    pub latency_us: u64,
}

/// What is wrong with an entry.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CstFault {
    /// Its position from 1; 0 is the list.
    pub entry: u32,
    pub why: String,
}

/// One reading of all CPUs' counters.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Cstates {
    pub seq: u64,
    /// `start`, `key` or `end`.
    pub reason: String,
    pub now: u64,
    pub cpus: Vec<CpuCounters>,
}

/// One CPU in a reading.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CpuCounters {
    pub cpu: u32,
    /// What it does: `hypervisor`, `guest`, or the name of a C-state.
    pub activity: String,
    /// Since the CPU came up.
    #[serde(flatten)]
    pub counters: Counters,
    /// Since the last reading.
    pub delta: Option<Counters>,
}

/// Where the time of one CPU went.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Who chooses.
    pub governor: String,
    /// The limit on exit latency that holds.
    pub latency_limit_ns: Option<u64>,
    pub elapsed: u64,
    /// Awake: `guest` + `hypervisor`.
    pub c0: u64,
    pub guest: u64,
    pub hypervisor: u64,
    /// Attempts to sleep that met an event.
    pub aborted: u64,
    /// Sleeps that ended for nothing that can be named.
    pub spurious: u64,
    pub sched_passes: u64,
    /// Wakes from an idle state, by reason.
    pub wakes: BTreeMap<String, Value>,
    /// Events that it posted to other CPUs, by what they needed: `ipi`, `store`, ...
    pub posts: BTreeMap<String, u64>,
    pub states: Vec<State>,
    /// The hardware's own counters, and `at`, when they were read; nothing: reading one faults.
    pub hardware: BTreeMap<String, Option<u64>>,
    /// Sleeps in which another timer stood in for the CPU's own.
    pub timer_handed_over: u64,
    /// Times that this timer woke the CPU.
    pub timer_broadcast_wakes: u64,
    /// Times that its TSC was restored.
    pub tsc_restored: u64,
    /// Sleeps before which AMX tiles were released.
    pub tiles_released: u64,
    /// Sleeps for which SPEC_CTRL was cleared, and how often it was put back.
    pub spec_ctrl_cleared: u64,
    pub spec_ctrl_restored: u64,
}

impl Counters {
    /// Σ residency.
    pub fn residency(&self) -> u64 {
        self.states.iter().map(|state| state.residency).sum()
    }

    /// Σ time of interrupt handlers in idle states.
    pub fn irq(&self) -> u64 {
        self.states.iter().map(|state| state.irq).sum()
    }

    /// Σ entries into idle states.
    pub fn usage(&self) -> u64 {
        self.states.iter().map(|state| state.usage).sum()
    }

    /// Σ wakes.
    pub fn wakes_total(&self) -> u64 {
        self.wakes.values().filter_map(Value::as_u64).sum()
    }
}

/// One idle state of one CPU.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct State {
    pub name: String,
    /// `HLT`, `MWAIT`, `POLL`, ...
    pub method: String,
    /// Exit latency.
    pub latency_us: u64,
    pub usage: u64,
    pub residency: u64,
    pub irq: u64,
    /// Entries that turned out too deep.
    pub above: u64,
    /// Entries that turned out too shallow.
    pub below: u64,
    /// Choices in whose place another state was entered.
    pub rejected: u64,
    /// The shortest stay, if any has ended.
    pub shortest: Option<u64>,
    pub longest: u64,
    /// It must not be chosen at present.
    pub off: bool,
}

/// What became of the timers of `test.timers=`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Timers {
    pub period: u64,
    pub cpus: Vec<CpuTimers>,
}

/// Those of one CPU.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CpuTimers {
    pub cpu: u32,
    pub came: u64,
    /// Periods in which none came, since the one before was late.
    pub skipped: u64,
    /// How late the latest was.
    pub latest: u64,
}

/// The length of the run by two clocks.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Clocks {
    /// What the TSC was restored from.
    pub source: String,
    pub cpus: Vec<CpuClocks>,
}

/// The length of the run by one CPU's TSC and by the platform timer, in TSC ticks.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CpuClocks {
    pub cpu: u32,
    pub tsc: u64,
    pub platform: u64,
}

/// A command of the console, and what came of it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CommandAnswer {
    pub line: String,
    pub ok: bool,
    pub answer: Vec<String>,
    /// What is wrong, and what would be right.
    pub word: String,
    pub why: String,
    pub expected: String,
}

/// A guest started or ended.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GuestEvent {
    pub id: u32,
    pub name: String,
    /// `start` or `end`.
    pub event: String,
    pub vcpus: u32,
    /// `pass`, `fail` or `none`.
    pub verdict: Option<String>,
    /// `port`, `triple-fault`, `crash` or `killed`.
    pub how: Option<String>,
    pub code: Option<u64>,
    pub reason: Option<String>,
    /// Time on a CPU, per vCPU.
    pub run_ticks: Vec<u64>,
    /// How often a kick came while it was looked for before a vCPU was blocked, per vCPU; and how often none did.
    pub halt_poll_successes: Vec<u64>,
    pub halt_poll_failures: Vec<u64>,
    /// How often a vCPU gave its time to another of its guest while it spun, per vCPU.
    pub directed_yields: Vec<u64>,
    /// Interrupts that vCPUs were notified of in their guest, without an exit.
    pub posted: u64,
    /// Exits of all vCPUs, by kind; a kind of which there were none is not there.
    pub exits: BTreeMap<String, u64>,
}

impl GuestEvent {
    /// Whether this is an end with a good verdict.
    pub fn passed(&self) -> bool {
        self.event == "end" && self.verdict.as_deref() == Some("pass")
    }
}

/// One figure that a guest reported.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Figure {
    /// Domain id.
    #[serde(default)]
    pub guest: u32,
    pub name: String,
    /// A number, or a text if the guest printed none.
    pub value: Value,
    #[serde(default)]
    pub unit: String,
}

impl Figure {
    /// The value as a number.
    pub fn number(&self) -> Option<f64> {
        self.value.as_f64()
    }
}

/// The last line.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct End {
    /// `ok`, or what went wrong.
    pub status: String,
    /// What was written to the debug-exit port.
    pub code: u64,
}
