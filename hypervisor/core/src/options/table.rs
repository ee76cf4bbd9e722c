//! The table of all options: name, form, meaning, and what each does.

use super::{
    AccountFault, Crash, EarlyIrq, ExitPort, FrameTable, HpetInterrupt, IdleMethod, IpiFence,
    LatencyLimit, LogLevel, Options, Posting, Seconds, WakeTest, number,
};
use crate::governor::{AnyGovernor, LatencyPrice};
use crate::mitigation::Policy;
use crate::sched::AnyScheduler;
use crate::sched::credit2::Arrangement;
use crate::units::{CpuId, IMAGE_CPUS, Micros, TickRate};
use alloc::format;
use alloc::string::{String, ToString};

/// One option.
pub struct OptionSpec {
    /// What stands before the `=`.
    pub name: &'static str,
    /// What may stand behind it; empty for a flag.
    pub value: &'static str,
    /// What it does, for `--help` and the book.
    pub help: &'static str,
    /// It may be given more than once, and each time counts.
    pub repeats: bool,
    set: fn(&mut Options, &str) -> Result<(), String>,
}

impl OptionSpec {
    const fn new(
        name: &'static str,
        value: &'static str,
        help: &'static str,
        set: fn(&mut Options, &str) -> Result<(), String>,
    ) -> Self {
        Self {
            name,
            value,
            help,
            repeats: false,
            set,
        }
    }

    const fn repeatable(mut self) -> Self {
        self.repeats = true;
        self
    }

    /// How it is written: `idle=auto|hlt|mwait|poll`.
    pub fn form(&self) -> String {
        if self.value.is_empty() {
            self.name.to_string()
        } else {
            format!("{}={}", self.name, self.value)
        }
    }

    pub(super) fn apply(&self, options: &mut Options, value: Option<&str>) -> Result<(), String> {
        match (value, self.value.is_empty()) {
            (Some(value), false) => (self.set)(options, value),
            (None, true) => (self.set)(options, ""),
            (Some(_), true) => Err("takes no value".to_string()),
            (None, false) => Err("has no value".to_string()),
        }
    }
}

/// All options, in the order in which they are explained.
pub const OPTIONS: [OptionSpec; 49] = [
    OptionSpec::new(
        "loglvl",
        "error|warn|info|debug|trace",
        "how much is logged (default info)",
        |options, value| {
            options.log_level = one_of(
                value,
                &[
                    ("error", LogLevel::Error),
                    ("warn", LogLevel::Warn),
                    ("info", LogLevel::Info),
                    ("debug", LogLevel::Debug),
                    ("trace", LogLevel::Trace),
                ],
            )?;
            Ok(())
        },
    ),
    OptionSpec::new(
        "idle",
        "auto|hlt|mwait|poll",
        "which sleeps are used (default auto)",
        |options, value| {
            options.idle = one_of(
                value,
                &[
                    ("auto", IdleMethod::Auto),
                    ("hlt", IdleMethod::Halt),
                    ("mwait", IdleMethod::Mwait),
                    ("poll", IdleMethod::Poll),
                ],
            )?;
            Ok(())
        },
    ),
    OptionSpec::new(
        "governor",
        "NAME",
        "who chooses the C-state",
        |options, value| {
            if value.is_empty() {
                return Err("no name".to_string());
            }
            if !AnyGovernor::NAMES.contains(&value) {
                let names = AnyGovernor::NAMES.join(", ");
                return Err(format!("no such governor: there are {names}"));
            }
            options.governor = Some(value.to_string());
            Ok(())
        },
    ),
    OptionSpec::new(
        "governor.price",
        "PRICE from 0 to 100",
        "lull: what a microsecond of added wake latency is worth, in microseconds of a busy core's energy (default 0.5)",
        |options, value| {
            options.latency_price = LatencyPrice::parse(value)?;
            Ok(())
        },
    ),
    OptionSpec::new(
        "trace.idle",
        "N from 1 to 1000000",
        "record the first N idle periods of each CPU, and write them to the machine channel at the end",
        |options, value| {
            options.trace_idle = usize::try_from(number(value, 1..=1_000_000)?).ok();
            Ok(())
        },
    ),
    OptionSpec::new(
        "latency",
        "MICROSECONDS[:CPUS] from 0 to 1000000",
        "the longest exit latency that CPUs may choose, as latency=20:1-3; more than once for different CPUs",
        |options, value| {
            options.latency.push(LatencyLimit::parse(value)?);
            Ok(())
        },
    )
    .repeatable(),
    OptionSpec::new(
        "sched",
        "NAME",
        "which scheduler (default credit2)",
        |options, value| {
            if value.is_empty() {
                return Err("no name".to_string());
            }
            if !AnyScheduler::NAMES.contains(&value) {
                let names = AnyScheduler::NAMES.join(", ");
                return Err(format!("no such scheduler: there are {names}"));
            }
            options.sched = Some(value.to_string());
            Ok(())
        },
    ),
    OptionSpec::new(
        "sched_ratelimit_us",
        "MICROSECONDS 0 or from 100 to 500000",
        "credit2: for so long a vCPU is not preempted (default 1000; 0: no limit)",
        |options, value| {
            let micros = number(value, 0..=500_000)?;
            if (1..100).contains(&micros) {
                return Err("neither 0 nor at least 100".to_string());
            }
            options.credit2.ratelimit = Micros::new(micros);
            Ok(())
        },
    ),
    OptionSpec::new(
        "sched_credit2_migrate_resist",
        "MICROSECONDS from 0 to 100000",
        "credit2: so much more credit takes a vCPU to another CPU (default 500)",
        |options, value| {
            options.credit2.migrate_resist = Micros::new(number(value, 0..=100_000)?);
            Ok(())
        },
    ),
    OptionSpec::new(
        "sched_credit2_max_cpus_runqueue",
        "N from 1 to 256",
        "credit2: so many CPUs share a runqueue at most (default 16)",
        |options, value| {
            let most = number(value, 1..=IMAGE_CPUS as u64)?;
            options.credit2.max_cpus = usize::try_from(most).unwrap_or(IMAGE_CPUS);
            Ok(())
        },
    ),
    OptionSpec::new(
        "credit2_runqueue",
        "cpu|core|socket|node|all",
        "credit2: which CPUs share a runqueue (default socket)",
        |options, value| {
            options.credit2.arrangement =
                Arrangement::by_name(value).ok_or_else(|| "not one of the choices".to_string())?;
            Ok(())
        },
    ),
    OptionSpec::new(
        "credit2_cap_period_ms",
        "MILLISECONDS from 1 to 1000",
        "credit2: how often a guest with a cap gets its time (default 10)",
        |options, value| {
            options.credit2.cap_period = Micros::new(number(value, 1..=1000)? * 1000);
            Ok(())
        },
    ),
    OptionSpec::new(
        "arinc653",
        "MAJOR,GUEST[.VCPU]:MINOR,... in microseconds",
        "arinc653: the major frame, then whose the minor frames are and how long (default: 10 ms each)",
        |options, value| {
            options.arinc653 = Some(FrameTable::parse(value)?);
            Ok(())
        },
    ),
    OptionSpec::new(
        "cpuidle",
        "on|off",
        "off: no C-state but C1 by HLT (default on)",
        |options, value| {
            options.cstates.cpuidle = on_off(value)?;
            Ok(())
        },
    ),
    OptionSpec::new(
        "mwait-idle",
        "on|off",
        "off: ignore the built-in tables of CPU models (default on)",
        |options, value| {
            options.cstates.mwait_idle = on_off(value)?;
            Ok(())
        },
    ),
    OptionSpec::new(
        "mwait-idle.table",
        "NAME:LATENCY:RESIDENCY,...",
        "other figures for states of the table, in microseconds; an empty one stays as it is",
        |options, value| options.cstates.set_table(value),
    ),
    OptionSpec::new(
        "max_cstate",
        "N[,SUB] each from 0 to 15",
        "the deepest C-state, by the hardware's number (hint 0x20 is 3); 0: only HLT; SUB limits the sub-state of N",
        |options, value| options.cstates.set_max_cstate(value),
    ),
    OptionSpec::new(
        "states_off",
        "MASK|NAME,...",
        "states that are off at first, by name, or by bit of their index (1 is POLL)",
        |options, value| options.cstates.set_states_off(value),
    ),
    OptionSpec::new(
        "idle_latency_factor",
        "N from 1 to 100",
        "target residency of the firmware's states, as a multiple of their latency",
        |options, value| {
            options.cstates.latency_factor = u32::try_from(number(value, 1..=100)?).ok();
            Ok(())
        },
    ),
    OptionSpec::new(
        "irq-enable-early",
        "auto|off|force",
        "whether C1 takes interrupts inside: where the table says so, never, or in every state that can (default auto)",
        |options, value| {
            options.cstates.early_irq = one_of(
                value,
                &[
                    ("auto", EarlyIrq::Auto),
                    ("off", EarlyIrq::Off),
                    ("force", EarlyIrq::Force),
                ],
            )?;
            Ok(())
        },
    ),
    OptionSpec::new(
        "force-mwait",
        "",
        "use MWAIT even where the self-test did not see it work, if it raised no exception",
        |options, _| {
            options.cstates.force_mwait = true;
            Ok(())
        },
    ),
    OptionSpec::new(
        "preferred-c1e",
        "on|off",
        "of C1 and C1E, where a CPU can have only one (default on)",
        |options, value| {
            options.cstates.preferred_c1e = Some(on_off(value)?);
            Ok(())
        },
    ),
    OptionSpec::new(
        "tsc",
        "unstable",
        "do not believe that the TSC counts on in every C-state",
        |options, value| options.cstates.set_tsc(value),
    ),
    OptionSpec::new(
        "hpet",
        "auto|legacy|message",
        "how an HPET interrupts that stands in for timers: in the place of the PIT, by messages, or whichever works (default auto)",
        |options, value| {
            options.hpet = one_of(
                value,
                &[
                    ("auto", HpetInterrupt::Any),
                    ("legacy", HpetInterrupt::Legacy),
                    ("message", HpetInterrupt::Message),
                ],
            )?;
            Ok(())
        },
    ),
    OptionSpec::new(
        "cpuid",
        "LEAF:REG=VALUE,...",
        "testing: what CPUID is taken to say about C-states",
        |options, value| options.cstates.add_cpuid(value),
    )
    .repeatable(),
    OptionSpec::new(
        "acpi_cst",
        "on|off",
        "off: ignore the firmware's C-states, _CST (default on)",
        |options, value| {
            options.cstates.acpi_cst = on_off(value)?;
            Ok(())
        },
    ),
    OptionSpec::new(
        "exit-port",
        "PORT from 0x1 to 0xffff|bochs",
        "leave the emulator through its debug-exit port at the end, or as Bochs has it (default: power off, else halt)",
        |options, value| {
            options.exit_port = match value {
                "bochs" => Some(ExitPort::Bochs),
                _ => u16::try_from(number(value, 1..=0xFFFF)?)
                    .ok()
                    .map(ExitPort::Code),
            };
            Ok(())
        },
    ),
    OptionSpec::new(
        "for",
        "SECONDS from 1 to 31536000",
        "end after this time (default: when all guests have ended)",
        |options, value| {
            let seconds = number(value, 1..=31_536_000)?;
            options.run_for = u32::try_from(seconds).ok().map(Seconds);
            Ok(())
        },
    ),
    OptionSpec::new(
        "keep",
        "",
        "go on when all guests have ended",
        |options, _| {
            options.keep = true;
            Ok(())
        },
    ),
    OptionSpec::new(
        "no-guests",
        "",
        "run no guests, and expect no boot bundle: an idle machine",
        |options, _| {
            options.no_guests = true;
            Ok(())
        },
    ),
    OptionSpec::new(
        "maxcpus",
        "N from 1 to 256",
        "run on no more CPUs than this, and park the others",
        |options, value| {
            options.max_cpus = usize::try_from(number(value, 1..=IMAGE_CPUS as u64)?).ok();
            Ok(())
        },
    ),
    OptionSpec::new(
        "machine-channel",
        "on|off",
        "write JSON lines to port 0xE9 (default on)",
        |options, value| {
            options.machine_channel = on_off(value)?;
            Ok(())
        },
    ),
    OptionSpec::new(
        "ap-timeout-ms",
        "MILLISECONDS from 1 to 60000",
        "how long a CPU may take to answer at start-up (default 200)",
        |options, value| {
            options.ap_timeout = Micros::new(number(value, 1..=60_000)? * 1000);
            Ok(())
        },
    ),
    OptionSpec::new(
        "tsc-hz",
        "HERTZ from 1000000 to 100000000000",
        "the TSC's rate, instead of measuring it",
        |options, value| {
            options.tsc_rate = TickRate::from_hz(number(value, 1_000_000..=100_000_000_000)?);
            Ok(())
        },
    ),
    OptionSpec::new(
        "wake.ipiless",
        "on|off",
        "off: a CPU that sleeps is always interrupted, even if it watches its wake word (default on)",
        |options, value| {
            options.wakes.ipiless = on_off(value)?;
            Ok(())
        },
    ),
    OptionSpec::new(
        "wake.notify",
        "on|off",
        "off: every wake costs a scheduling pass (default on: only one that changed a runqueue does)",
        |options, value| {
            options.wakes.notify = on_off(value)?;
            Ok(())
        },
    ),
    OptionSpec::new(
        "ipi.fence",
        "auto|none|full",
        "what orders stores before an IPI: what the CPU needs, nothing, or fences always (default auto)",
        |options, value| {
            options.wakes.fence = one_of(
                value,
                &[
                    ("auto", IpiFence::Auto),
                    ("none", IpiFence::None),
                    ("full", IpiFence::Full),
                ],
            )?;
            Ok(())
        },
    ),
    OptionSpec::new(
        "mitigations",
        "auto|off|force",
        "barriers between guests: those that the CPU needs, none, or all that it has, to try them (default auto)",
        |options, value| {
            options.mitigations = one_of(
                value,
                &[
                    ("auto", Policy::Auto),
                    ("off", Policy::Off),
                    ("force", Policy::Force),
                ],
            )?;
            Ok(())
        },
    ),
    OptionSpec::new(
        "vmx.apicv",
        "on|off",
        "off: Intel processors do not virtualize guests' local APICs, even if they can (default on)",
        |options, value| {
            options.vmx_apicv = on_off(value)?;
            Ok(())
        },
    ),
    OptionSpec::new(
        "vmx.posted",
        "auto|on|off",
        "posted interrupts, which guests take from other CPUs without an exit, on Intel processors: where they are offered and work, wherever they are offered, or nowhere (default auto)",
        |options, value| {
            options.vmx_posted = one_of(
                value,
                &[
                    ("auto", Posting::Auto),
                    ("on", Posting::On),
                    ("off", Posting::Off),
                ],
            )?;
            Ok(())
        },
    ),
    OptionSpec::new(
        "test.wakes",
        "bench|latency|mostly-idle|growth|soak",
        "testing: measure calls and wakes, or what a timer or another CPU costs one that sleeps, or one of each kind, or exercise them at random under a watchdog, and end",
        |options, value| {
            options.wakes.test = Some(one_of(
                value,
                &[
                    ("bench", WakeTest::Bench),
                    ("latency", WakeTest::Latency),
                    ("mostly-idle", WakeTest::MostlyIdle),
                    ("growth", WakeTest::Growth),
                    ("soak", WakeTest::Soak),
                ],
            )?);
            Ok(())
        },
    ),
    OptionSpec::new(
        "test.rounds",
        "N from 1 to 10000000",
        "testing: how often test.wakes measures each thing (default: as often as its figures need)",
        |options, value| {
            options.wakes.rounds = Some(number(value, 1..=10_000_000)?);
            Ok(())
        },
    ),
    OptionSpec::new(
        "test.seed",
        "N",
        "testing: where test.wakes=soak, and what is random in the others, begins",
        |options, value| {
            options.wakes.seed = number(value, 0..=u64::MAX)?;
            Ok(())
        },
    ),
    OptionSpec::new(
        "test.account",
        "drop|double",
        "testing: spoil one accounting interval, to show that the check notices",
        |options, value| {
            options.test_account = Some(one_of(
                value,
                &[
                    ("drop", AccountFault::Drop),
                    ("double", AccountFault::Double),
                ],
            )?);
            Ok(())
        },
    ),
    OptionSpec::new(
        "test.tsc",
        "stops",
        "testing: set the TSC back after each sleep in which it may stop, as if it had",
        |options, value| {
            options.test_tsc_stops = one_of(value, &[("stops", true)])?;
            Ok(())
        },
    ),
    OptionSpec::new(
        "test.timers",
        "MICROSECONDS from 100 to 1000000",
        "testing: timers of this period on each CPU; the end says how many came, and how late",
        |options, value| {
            options.test_timers = Some(Micros::new(number(value, 100..=1_000_000)?));
            Ok(())
        },
    ),
    OptionSpec::new(
        "test.uptime",
        "DAYS from 1 to 100000",
        "testing: as if the machine had been up for so long before it booted",
        |options, value| {
            options.test_uptime = u32::try_from(number(value, 1..=100_000)?).ok();
            Ok(())
        },
    ),
    OptionSpec::new(
        "test.absent-ap",
        "INDEX from 1 to 255",
        "testing: as if this CPU never answered",
        |options, value| {
            let index = number(value, 1..=IMAGE_CPUS as u64 - 1)?;
            options.test_absent_ap = u32::try_from(index).ok().map(CpuId::new);
            Ok(())
        },
    ),
    OptionSpec::new(
        "test.crash",
        "pf|ud|stack|panic",
        "testing: crash on purpose",
        |options, value| {
            options.test_crash = Some(one_of(
                value,
                &[
                    ("pf", Crash::PageFault),
                    ("ud", Crash::InvalidOpcode),
                    ("stack", Crash::StackOverflow),
                    ("panic", Crash::Panic),
                ],
            )?);
            Ok(())
        },
    ),
];

fn on_off(value: &str) -> Result<bool, String> {
    one_of(value, &[("on", true), ("off", false)])
}

fn one_of<T: Copy>(value: &str, choices: &[(&str, T)]) -> Result<T, String> {
    match choices.iter().find(|(name, _)| *name == value) {
        Some(&(_, choice)) => Ok(choice),
        None if value.is_empty() => Err("has no value".to_string()),
        None => Err("not one of the choices".to_string()),
    }
}
