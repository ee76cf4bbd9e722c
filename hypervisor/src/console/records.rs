//! Records of the machine channel: what each line of port 0xE9 says.
//!
//! Pure: a record is written to any [`ByteSink`]. Every line is one object with `"v":1` and its `"type"`.
//! Times in `cstates` are TSC ticks; `boot` carries the rate.
use super::json::{self, Array, ByteSink, Object};
use crate::acpi::cst::{FirmwareStates, Group};
use crate::run::counters::StandIns;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Display;
use lull_core::cstate::CStateTable;
use lull_core::cstate::acpi::{CstEntry, CstMethod};
use lull_core::governor::WakeReason;
use lull_core::options;
use lull_core::residency::{HwSnapshot, HwValue};
use lull_core::sched::unit::HaltPollCounts;
use lull_core::trace::IdlePeriod;
use lull_core::units::{CpuId, DomId, Micros, Nanos, TickRate, Ticks};

/// Version of the format. It grows when a member changes its meaning, not when one is added.
pub(super) const VERSION: u64 = 1;

fn record<S: ByteSink>(sink: &mut S, kind: &str, fill: impl FnOnce(&mut Object<'_, S>)) {
    json::line(sink, |o| {
        o.u64("v", VERSION).str("type", kind);
        fill(o);
    });
}

/// What the machine is, once, when all CPUs are up.
#[derive(Clone, Copy, Debug)]
pub struct Boot<'a> {
    /// CPUs that run.
    pub cpus: usize,
    /// Indices of CPUs that firmware lists and that never answered.
    pub cpus_failed: &'a [u32],
    /// Rate of the TSC.
    pub tsc: TickRate,
    /// Where that rate comes from, e.g. `hpet`.
    pub tsc_source: &'a str,
    /// The TSC runs in every C-state (CPUID 8000_0007h EDX bit 8).
    pub nonstop_tsc: bool,
    /// The local APIC timer runs in every C-state (CPUID 06h EAX bit 2).
    pub arat: bool,
    /// TSC-deadline mode is offered.
    pub tsc_deadline: bool,
    /// What the self-test of MONITOR/MWAIT found, e.g. `ok` or `dropped: ...`.
    pub mwait: &'a str,
    /// A store by another CPU ends MWAIT, as CPUs found when they tried it with each other. `None`: not known.
    pub store_wakes: Option<bool>,
    /// The local APICs run in x2APIC mode.
    pub x2apic: bool,
    /// `svm`, `vmx`, or none.
    pub virt: Option<&'a str>,
    /// Why there is no virtualization, or a remark on it.
    pub virt_why: &'a str,
    /// Signature of the hypervisor below this one.
    pub hypervisor: Option<&'a str>,
    /// What that hypervisor hides of MWAIT, nonstop TSC, ARAT and TSC-deadline; empty if nothing.
    pub hidden: &'a str,
    /// The command line, as given.
    pub cmdline: &'a str,
    /// RAM in MiB.
    pub mem_mib: u64,
    /// `lapic` or `tsc-deadline`.
    pub timer: &'a str,
}

impl Boot<'_> {
    /// Writes the record.
    pub fn write<S: ByteSink>(&self, sink: &mut S) {
        record(sink, "boot", |o| {
            o.u64("cpus", self.cpus as u64)
                .array("cpus_failed", |a| {
                    for &id in self.cpus_failed {
                        a.u64(id.into());
                    }
                })
                .u64("tsc_hz", self.tsc.hz())
                .str("tsc_source", self.tsc_source)
                .bool("nonstop_tsc", self.nonstop_tsc)
                .bool("arat", self.arat)
                .bool("tsc_deadline", self.tsc_deadline)
                .str("mwait", self.mwait)
                .opt_bool("store_wakes", self.store_wakes)
                .bool("x2apic", self.x2apic)
                .opt_str("virt", self.virt)
                .str("virt_why", self.virt_why)
                .opt_str("hypervisor", self.hypervisor)
                .str("hidden", self.hidden)
                .str("cmdline", self.cmdline)
                .u64("mem_mib", self.mem_mib)
                .str("timer", self.timer);
        });
    }
}

/// Where a [`Problem`] lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// The hypervisor's command line.
    Cmdline,
    /// The boot bundle or its guest list.
    Bundle,
    /// A guest's image or options.
    Guest,
    /// Firmware tables.
    Firmware,
    /// A CPU.
    Cpu,
}

impl Where {
    /// The word in the record.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Cmdline => "cmdline",
            Self::Bundle => "bundle",
            Self::Guest => "guest",
            Self::Firmware => "firmware",
            Self::Cpu => "cpu",
        }
    }
}

/// One bad input: what is wrong, and what was expected.
#[derive(Clone, Copy, Debug)]
pub struct Problem<N, W, E> {
    /// Which input.
    pub place: Where,
    /// Its name: the option, the file, the CPU.
    pub name: N,
    /// What is wrong with it.
    pub why: W,
    /// What would be right.
    pub expected: E,
}

impl<N: Display, W: Display, E: Display> Problem<N, W, E> {
    /// Writes the record.
    pub fn write<S: ByteSink>(&self, sink: &mut S) {
        record(sink, "problem", |o| {
            o.str("where", self.place.word())
                .str("name", &self.name)
                .str("why", &self.why)
                .str("expected", &self.expected);
        });
    }
}

/// The timers that `test.timers=` set on one CPU.
#[derive(Clone, Copy, Debug)]
pub struct ProbeRow {
    /// The CPU.
    pub cpu: CpuId,
    /// How many came.
    pub came: u64,
    /// Periods in which none came, since the one before was late.
    pub skipped: u64,
    /// How late the latest was.
    pub latest: Ticks,
}

/// Writes what became of the timers of `test.timers=`.
pub fn timers<S: ByteSink>(sink: &mut S, period: Ticks, rows: &[ProbeRow]) {
    record(sink, "timers", |o| {
        o.u64("period", period.get()).array("cpus", |a| {
            for row in rows {
                a.object(|o| {
                    o.u64("cpu", row.cpu.index() as u64)
                        .u64("came", row.came)
                        .u64("skipped", row.skipped)
                        .u64("latest", row.latest.get());
                });
            }
        });
    });
}

/// How long a CPU's part in the run took by two clocks.
#[derive(Clone, Copy, Debug)]
pub struct ClockRow {
    /// Which CPU.
    pub cpu: CpuId,
    /// By its own TSC.
    pub tsc: Ticks,
    /// By the platform timer, in TSC ticks.
    pub platform: Ticks,
}

/// Writes how long the run took by the TSC of each CPU, which was restored from `source`, and by the platform timer.
pub fn clocks<S: ByteSink>(sink: &mut S, source: &str, rows: &[ClockRow]) {
    record(sink, "clocks", |o| {
        o.str("source", source).array("cpus", |a| {
            for row in rows {
                a.object(|o| {
                    o.u64("cpu", row.cpu.index() as u64)
                        .u64("tsc", row.tsc.get())
                        .u64("platform", row.platform.get());
                });
            }
        });
    });
}

/// Some of the idle periods that one CPU has recorded.
#[derive(Clone, Copy, Debug)]
pub struct IdleTrace<'a> {
    /// Which CPU.
    pub cpu: CpuId,
    /// The number of the first one here, from 0.
    pub first: usize,
    /// How many found no room in all.
    pub dropped: u64,
    /// The CPU's C-states.
    pub table: &'a CStateTable,
    /// In order.
    pub periods: &'a [IdlePeriod],
}

impl IdleTrace<'_> {
    /// Writes the record.
    pub fn write<S: ByteSink>(&self, sink: &mut S) {
        record(sink, "idle_trace", |o| {
            o.u64("cpu", self.cpu.index() as u64)
                .u64("first", self.first as u64)
                .u64("dropped", self.dropped)
                .array("periods", |a| {
                    for period in self.periods {
                        a.object(|o| idle_period(o, self.table, period));
                    }
                });
        });
    }
}

/// A command of the console, and what came of it.
#[derive(Clone, Copy, Debug)]
pub struct CommandAnswer<'a> {
    /// As it was typed.
    pub line: &'a str,
    /// What it said, line by line; or why it was not carried out.
    pub answer: &'a Result<Vec<String>, options::Problem>,
}

impl CommandAnswer<'_> {
    /// Writes the record.
    pub fn write<S: ByteSink>(&self, sink: &mut S) {
        record(sink, "command", |o| {
            o.str("line", self.line).bool("ok", self.answer.is_ok());
            match self.answer {
                Ok(lines) => {
                    o.array("answer", |a| {
                        for line in lines {
                            a.str(line);
                        }
                    });
                }
                Err(problem) => {
                    o.str("word", &problem.word)
                        .str("why", &problem.why)
                        .str("expected", &problem.expected);
                }
            }
        });
    }
}

fn idle_period<S: ByteSink>(o: &mut Object<'_, S>, table: &CStateTable, period: &IdlePeriod) {
    o.u64("idle_ns", period.length.get());
    if let Some(timer) = period.timer {
        o.u64("timer_ns", timer.get());
    }
    o.str(
        "cause",
        match period.wake {
            Some(WakeReason::Timer) => "T",
            Some(WakeReason::Store) => "R",
            Some(WakeReason::Interrupt) => "I",
            Some(WakeReason::Limit | WakeReason::Spurious) | None => "N",
        },
    )
    .u64("busy_ns", period.busy.get())
    .str("state", table.state(period.chosen).name)
    .u64("stays", period.stays.into());
}

/// The last line of a run.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// `ok`, `guest-failed`, `accounting`, `panic`, ...
    pub status: &'a str,
    /// The code that goes to the exit port.
    pub code: u8,
}

impl End<'_> {
    /// Writes the record.
    pub fn write<S: ByteSink>(&self, sink: &mut S) {
        record(sink, "end", |o| {
            o.str("status", self.status).u64("code", self.code.into());
        });
    }
}

/// How a guest came to its end.
#[derive(Clone, Copy, Debug)]
pub struct GuestEnd<'a> {
    /// `pass`, `fail`, or `none` if the guest said neither.
    pub verdict: &'a str,
    /// `port`, `triple-fault`, `crash` or `killed`.
    pub how: &'a str,
    /// The code that the guest wrote to its exit port, else 0.
    pub code: u64,
    /// The reason behind its verdict, or of its death.
    pub reason: &'a str,
    /// Time that each vCPU ran.
    pub run: &'a [Ticks],
    /// What came of looking for a kick before each vCPU was blocked.
    pub looks: &'a [HaltPollCounts],
    /// How often each vCPU gave its time to another one while it spun.
    pub directed_yields: &'a [u64],
    /// Interrupts that vCPUs were notified of in their guest, without an exit.
    pub posted: u64,
    /// Exits of all vCPUs by kind, those that were.
    pub exits: &'a [(&'static str, u64)],
}

/// Start or end of a guest.
#[derive(Clone, Copy, Debug)]
pub struct Guest<'a> {
    /// The domain.
    pub id: DomId,
    /// Its name in the guest list.
    pub name: &'a str,
    /// How many vCPUs it has.
    pub vcpus: u64,
    /// None: it starts.
    pub end: Option<GuestEnd<'a>>,
}

impl Guest<'_> {
    /// Writes the record.
    pub fn write<S: ByteSink>(&self, sink: &mut S) {
        record(sink, "guest", |o| {
            o.u64("id", self.id.index() as u64)
                .str("name", self.name)
                .str("event", if self.end.is_some() { "end" } else { "start" })
                .u64("vcpus", self.vcpus);
            if let Some(end) = &self.end {
                o.str("verdict", end.verdict)
                    .str("how", end.how)
                    .u64("code", end.code)
                    .str("reason", end.reason)
                    .array("run_ticks", |a| {
                        for &ticks in end.run {
                            a.u64(ticks.get());
                        }
                    })
                    .array("halt_poll_successes", |a| {
                        for one in end.looks {
                            a.u64(one.successes);
                        }
                    })
                    .array("halt_poll_failures", |a| {
                        for one in end.looks {
                            a.u64(one.failures);
                        }
                    })
                    .array("directed_yields", |a| {
                        for &count in end.directed_yields {
                            a.u64(count);
                        }
                    })
                    .u64("posted", end.posted)
                    .object("exits", |o| {
                        for &(kind, times) in end.exits {
                            o.u64(kind, times);
                        }
                    });
            }
        });
    }
}

/// A figure that a guest measured.
#[derive(Clone, Copy, Debug)]
pub struct Figure<'a> {
    /// The domain.
    pub guest: DomId,
    /// What was measured.
    pub name: &'a str,
    /// The value as the guest printed it. Written as a JSON number if it is one, else as a string.
    pub value: &'a str,
    /// Its unit.
    pub unit: &'a str,
}

impl Figure<'_> {
    /// Writes the record.
    pub fn write<S: ByteSink>(&self, sink: &mut S) {
        record(sink, "figure", |o| {
            o.u64("guest", self.guest.index() as u64)
                .str("name", self.name)
                .number_or_str("value", self.value)
                .str("unit", self.unit);
        });
    }
}

/// What the firmware says about C-states, once, before the other CPUs start.
#[derive(Clone, Copy, Debug)]
pub struct AcpiCst<'a>(pub &'a FirmwareStates);

impl AcpiCst<'_> {
    /// Writes the record.
    pub fn write<S: ByteSink>(&self, sink: &mut S) {
        let states = self.0;
        record(sink, "acpi_cst", |o| {
            o.str("state", states.state.word())
                .u64("runs", states.runs.into())
                .u64("offered", states.offered.into());
            if let Some(port) = states.p_blk {
                o.u64("p_blk", port.into());
            }
            o.array("groups", |a| {
                for group in states.groups() {
                    a.object(|o| cst_group(o, &group));
                }
            });
        });
    }
}

fn cst_group<S: ByteSink>(o: &mut Object<'_, S>, group: &Group<'_>) {
    o.str("first", group.first).array("processors", |a| {
        for &processor in &group.processors {
            a.u64(processor.into());
        }
    });
    if let Some(answer) = group.told.osc {
        o.bool("osc", answer.accepted());
        if let Some(granted) = answer.granted {
            o.u64("granted", granted.into());
        }
    }
    o.bool("pdc", group.told.pdc);
    match &group.list {
        Err(why) => {
            o.str("why", why);
        }
        Ok((entries, faults)) => {
            o.array("entries", |a| {
                for entry in *entries {
                    a.object(|o| cst_entry(o, entry));
                }
            })
            .array("faults", |a| {
                for (at, fault) in *faults {
                    a.object(|o| {
                        o.u64("entry", *at as u64).str("why", fault);
                    });
                }
            });
        }
    }
}

fn cst_entry<S: ByteSink>(o: &mut Object<'_, S>, entry: &CstEntry) {
    o.u64("c", entry.acpi_type.number().into());
    match entry.method {
        CstMethod::Mwait {
            hint,
            check_bus_master,
        } => o
            .str("method", "mwait")
            .u64("hint", hint.eax().into())
            .bool("check_bus_master", check_bus_master),
        CstMethod::Halt => o.str("method", "hlt"),
        CstMethod::Io(port) => o.str("method", "io").u64("port", port.into()),
    }
    .u64("latency_us", entry.latency.get());
}

/// One C-state of one CPU.
#[derive(Clone, Copy, Debug)]
pub struct StateRow<'a> {
    /// Its name, e.g. `C1`.
    pub name: &'a str,
    /// How it is entered: `HLT`, `MWAIT`, `POLL`, ...
    pub method: &'a str,
    /// It must not be chosen at present.
    pub off: bool,
    /// Its exit latency.
    pub latency: Micros,
    /// How often it was entered.
    pub usage: u64,
    /// Time in it, without the time of interrupt handlers.
    pub residency: Ticks,
    /// Time from the first interrupt handler to the way out.
    pub irq: Ticks,
    /// Entries that turned out too deep.
    pub above: u64,
    /// Entries that turned out too shallow.
    pub below: u64,
    /// Choices of it in whose place another state was entered.
    pub rejected: u64,
    /// The shortest stay that has ended, if any has.
    pub shortest: Option<Ticks>,
    /// The longest stay that has ended.
    pub longest: Ticks,
}

/// The counters of one CPU over some span.
#[derive(Clone, Copy, Debug)]
pub struct CpuTotals<'a> {
    /// What it does at the end of the span: `hypervisor`, `guest`, or the C-state that it is in.
    pub activity: &'a str,
    /// Who chooses the C-states at present.
    pub governor: &'a str,
    /// The limit on exit latency that holds at present.
    pub latency_limit: Option<Nanos>,
    /// The span itself: last stamp less first.
    pub elapsed: Ticks,
    /// Time awake, summed from its own intervals.
    pub c0: Ticks,
    /// Of it, in guests.
    pub guest: Ticks,
    /// Of it, in the hypervisor.
    pub hypervisor: Ticks,
    /// Attempts to sleep that met a pending event and never slept.
    pub aborted: u64,
    /// Sleeps that ended for nothing that can be named.
    pub spurious: u64,
    /// Passes of the scheduler.
    pub sched_passes: u64,
    /// Turns of the dispatch loop without a pass.
    pub passes_avoided: u64,
    /// What woke the CPU, how often: names and counts.
    pub wakes: &'a [(&'a str, u64)],
    /// What the passes of the scheduler were for: names and counts.
    pub passes: &'a [(&'a str, u64)],
    /// Posts to other CPUs' wake words, by what they needed: names and counts.
    pub posts: &'a [(&'a str, u64)],
    /// The C-states, shallowest first.
    pub states: &'a [StateRow<'a>],
    /// What the hardware has counted.
    pub hardware: &'a HwSnapshot,
    /// What stood in for clocks that stop.
    pub stand_ins: StandIns,
}

impl CpuTotals<'_> {
    fn fill<S: ByteSink>(&self, o: &mut Object<'_, S>) {
        o.str("governor", self.governor);
        if let Some(limit) = self.latency_limit {
            o.u64("latency_limit_ns", limit.get());
        }
        o.u64("elapsed", self.elapsed.get())
            .u64("c0", self.c0.get())
            .u64("guest", self.guest.get())
            .u64("hypervisor", self.hypervisor.get())
            .u64("aborted", self.aborted)
            .u64("spurious", self.spurious)
            .u64("sched_passes", self.sched_passes)
            .u64("passes_avoided", self.passes_avoided)
            .object("wakes", |o| counts(o, self.wakes))
            .object("passes", |o| counts(o, self.passes))
            .object("posts", |o| counts(o, self.posts))
            .array("states", |a| {
                for state in self.states {
                    a.object(|o| {
                        o.str("name", state.name)
                            .str("method", state.method)
                            .bool("off", state.off)
                            .u64("latency_us", state.latency.get())
                            .u64("usage", state.usage)
                            .u64("residency", state.residency.get())
                            .u64("irq", state.irq.get())
                            .u64("above", state.above)
                            .u64("below", state.below)
                            .u64("rejected", state.rejected)
                            .u64("longest", state.longest.get());
                        if let Some(shortest) = state.shortest {
                            o.u64("shortest", shortest.get());
                        }
                    });
                }
            });
        if self.hardware.iter().next().is_some() {
            o.object("hardware", |o| hardware(o, self.hardware));
        }
        if self.stand_ins != StandIns::default() {
            o.u64("timer_handed_over", self.stand_ins.handed_over)
                .u64("timer_broadcast_wakes", self.stand_ins.timer_wakes)
                .u64("tsc_restored", self.stand_ins.tsc_restored)
                .u64("tiles_released", self.stand_ins.tiles_released)
                .u64("spec_ctrl_cleared", self.stand_ins.spec_ctrl_cleared)
                .u64("spec_ctrl_restored", self.stand_ins.spec_ctrl_restored);
        }
    }
}

/// Each counter by its name, null if it faults.
fn hardware<S: ByteSink>(o: &mut Object<'_, S>, hardware: &HwSnapshot) {
    o.u64("at", hardware.at.get());
    for (counter, value) in hardware.iter() {
        match value {
            HwValue::Ticks(ticks) => o.u64(counter.name(), ticks.get()),
            HwValue::Absent | HwValue::Faults => o.opt_str(counter.name(), None::<&str>),
        };
    }
}

fn counts<S: ByteSink>(o: &mut Object<'_, S>, counts: &[(&str, u64)]) {
    for &(name, count) in counts {
        o.u64(name, count);
    }
}

/// Takes the rows of a `cstates` record, one CPU after the other.
pub struct CpuRows<'a, 'b, S>(&'a mut Array<'b, S>);

impl<S: ByteSink> CpuRows<'_, '_, S> {
    /// Adds a CPU: its totals since boot, and the change since the last record.
    pub fn cpu(&mut self, cpu: CpuId, total: &CpuTotals<'_>, delta: &CpuTotals<'_>) {
        self.0.object(|o| {
            o.u64("cpu", cpu.index() as u64)
                .str("activity", total.activity);
            total.fill(o);
            o.object("delta", |o| delta.fill(o));
        });
    }
}

/// Writes one reading of all C-state counters; `rows` adds the CPUs.
///
/// `reason` is `key`, `end` or `start`; `seq` counts the records.
pub fn cstates<S: ByteSink>(
    sink: &mut S,
    seq: u64,
    reason: &str,
    now: Ticks,
    rows: impl FnOnce(&mut CpuRows<'_, '_, S>),
) {
    record(sink, "cstates", |o| {
        o.u64("seq", seq)
            .str("reason", reason)
            .u64("now", now.get())
            .array("cpus", |a| rows(&mut CpuRows(a)));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_core::cstate::CState;
    use lull_core::residency::{HwAccount, HwCounter};

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn idle_periods_have_what_a_replay_needs() {
        let table = CStateTable::new(&[CState::POLL]).unwrap();
        let period = IdlePeriod {
            length: Nanos::new(900),
            timer: Some(Nanos::new(1_000)),
            wake: Some(WakeReason::Store),
            busy: Nanos::new(70),
            chosen: table.shallowest(),
            stays: 2,
        };
        let without = IdlePeriod {
            timer: None,
            wake: None,
            ..period
        };
        let trace = IdleTrace {
            cpu: CpuId::new(3),
            first: 64,
            dropped: 5,
            table: &table,
            periods: &[period, without],
        };
        assert_eq!(
            text(|s| trace.write(s)),
            "{\"v\":1,\"type\":\"idle_trace\",\"cpu\":3,\"first\":64,\"dropped\":5,\"periods\":[\
             {\"idle_ns\":900,\"timer_ns\":1000,\"cause\":\"R\",\"busy_ns\":70,\"state\":\"POLL\",\"stays\":2},\
             {\"idle_ns\":900,\"cause\":\"N\",\"busy_ns\":70,\"state\":\"POLL\",\"stays\":2}]}\n"
        );
    }

    #[test]
    fn boot_has_all_members_in_order() {
        let boot = Boot {
            cpus: 4,
            cpus_failed: &[3, 9],
            tsc: TickRate::from_hz(1_000_000_000).unwrap(),
            tsc_source: "hpet",
            nonstop_tsc: false,
            arat: true,
            tsc_deadline: false,
            mwait: "dropped: #GP with ECX=1",
            store_wakes: None,
            x2apic: false,
            virt: None,
            virt_why: "no \"SVM\"",
            hypervisor: Some("TCGTCGTCGTCG"),
            hidden: "nonstop TSC",
            cmdline: "a=\"b\"",
            mem_mib: 512,
            timer: "lapic",
        };
        assert_eq!(
            text(|s| boot.write(s)),
            "{\"v\":1,\"type\":\"boot\",\"cpus\":4,\"cpus_failed\":[3,9],\"tsc_hz\":1000000000,\
             \"tsc_source\":\"hpet\",\"nonstop_tsc\":false,\"arat\":true,\"tsc_deadline\":false,\
             \"mwait\":\"dropped: #GP with ECX=1\",\"store_wakes\":null,\"x2apic\":false,\"virt\":null,\
             \"virt_why\":\"no \\\"SVM\\\"\",\"hypervisor\":\"TCGTCGTCGTCG\",\"hidden\":\"nonstop TSC\",\"cmdline\":\"a=\\\"b\\\"\",\
             \"mem_mib\":512,\"timer\":\"lapic\"}\n"
        );
    }

    #[test]
    fn problem_names_place_and_expectation() {
        let p = Problem {
            place: Where::Cmdline,
            name: "foo=1",
            why: "unknown option",
            expected: "see the list",
        };
        assert_eq!(
            text(|s| p.write(s)),
            "{\"v\":1,\"type\":\"problem\",\"where\":\"cmdline\",\"name\":\"foo=1\",\
             \"why\":\"unknown option\",\"expected\":\"see the list\"}\n"
        );
    }

    #[test]
    fn commands_are_answered_or_refused() {
        let record = |answer| {
            text(|s| {
                CommandAnswer {
                    line: "latency \"",
                    answer: &answer,
                }
                .write(s)
            })
        };
        assert_eq!(
            record(Ok(vec!["done".into(), "twice".into()])),
            "{\"v\":1,\"type\":\"command\",\"line\":\"latency \\\"\",\"ok\":true,\"answer\":[\"done\",\"twice\"]}\n"
        );
        assert!(
            record(Err(options::Problem::new("x", "bad", "good")))
                .ends_with("\"ok\":false,\"word\":\"x\",\"why\":\"bad\",\"expected\":\"good\"}\n")
        );
    }

    #[test]
    fn guest_start_has_no_verdict_and_end_has() {
        let mut guest = Guest {
            id: DomId::new(1),
            name: "idle-timer",
            vcpus: 2,
            end: None,
        };
        assert_eq!(
            text(|s| guest.write(s)),
            "{\"v\":1,\"type\":\"guest\",\"id\":1,\"name\":\"idle-timer\",\"event\":\"start\",\"vcpus\":2}\n"
        );
        let run = [Ticks::new(5), Ticks::new(7)];
        let looks = [(4, 1), (0, 2)].map(|(successes, failures)| HaltPollCounts {
            successes,
            failures,
            polled: Ticks::ZERO,
        });
        guest.end = Some(GuestEnd {
            verdict: "pass",
            how: "port",
            code: 16,
            reason: "",
            run: &run,
            looks: &looks,
            directed_yields: &[3, 0],
            posted: 4,
            exits: &[("hlt", 3), ("eoi", 9)],
        });
        assert_eq!(
            text(|s| guest.write(s)),
            "{\"v\":1,\"type\":\"guest\",\"id\":1,\"name\":\"idle-timer\",\"event\":\"end\",\"vcpus\":2,\
             \"verdict\":\"pass\",\"how\":\"port\",\"code\":16,\"reason\":\"\",\"run_ticks\":[5,7],\
             \"halt_poll_successes\":[4,0],\"halt_poll_failures\":[1,2],\"directed_yields\":[3,0],\
             \"posted\":4,\"exits\":{\"hlt\":3,\"eoi\":9}}\n"
        );
    }

    #[test]
    fn figure_is_a_number_only_if_it_is_one() {
        let figure = |value| {
            text(|s| {
                Figure {
                    guest: DomId::new(2),
                    name: "n",
                    value,
                    unit: "ns",
                }
                .write(s)
            })
        };
        assert!(figure("-12.50").contains("\"value\":-12.50,"));
        assert!(figure("1,\"x\":2").contains("\"value\":\"1,\\\"x\\\":2\","));
    }

    #[test]
    fn end_record() {
        assert_eq!(
            text(|s| End {
                status: "ok",
                code: 0x10
            }
            .write(s)),
            "{\"v\":1,\"type\":\"end\",\"status\":\"ok\",\"code\":16}\n"
        );
    }

    #[test]
    fn cstates_carries_totals_and_change() {
        fn state(usage: u64, residency: u64) -> StateRow<'static> {
            StateRow {
                name: "C1",
                method: "HLT",
                off: false,
                latency: Micros::new(8),
                usage,
                residency: Ticks::new(residency),
                irq: Ticks::new(1),
                above: 2,
                below: 0,
                rejected: 3,
                shortest: (usage > 1).then(|| Ticks::new(4)),
                longest: Ticks::new(9),
            }
        }
        fn totals<'a>(states: &'a [StateRow<'a>], hardware: &'a HwSnapshot) -> CpuTotals<'a> {
            CpuTotals {
                activity: "guest",
                governor: "lull",
                latency_limit: Some(Nanos::new(5000)),
                elapsed: Ticks::new(100),
                c0: Ticks::new(29),
                guest: Ticks::new(20),
                hypervisor: Ticks::new(9),
                aborted: 1,
                spurious: 2,
                sched_passes: 3,
                passes_avoided: 5,
                wakes: &[("call", 2), ("timer", 4)],
                passes: &[("resched", 3)],
                posts: &[],
                states,
                hardware,
                stand_ins: StandIns::default(),
            }
        }
        let account = HwAccount::new();
        let registers = [(HwCounter::Cc6, 0x3FD), (HwCounter::Pc6, 0x3F9)];
        account.sample(Ticks::new(77), &registers, |msr| {
            (msr == 0x3FD).then_some(5)
        });
        let (counted, nothing) = (account.snapshot(), HwSnapshot::default());
        let (all, change) = ([state(6, 70)], [state(1, 10)]);
        let got = text(|s| {
            cstates(s, 2, "key", Ticks::new(1000), |rows| {
                rows.cpu(
                    CpuId::new(0),
                    &totals(&all, &counted),
                    &totals(&change, &nothing),
                );
                rows.cpu(
                    CpuId::new(1),
                    &totals(&[], &nothing),
                    &totals(&[], &nothing),
                );
            });
        });
        let body = "\"governor\":\"lull\",\"latency_limit_ns\":5000,\"elapsed\":100,\"c0\":29,\"guest\":20,\"hypervisor\":9,\"aborted\":1,\"spurious\":2,\
                    \"sched_passes\":3,\"passes_avoided\":5,\"wakes\":{\"call\":2,\"timer\":4},\
                    \"passes\":{\"resched\":3},\"posts\":{},\"states\":";
        assert_eq!(
            got,
            format!(
                "{{\"v\":1,\"type\":\"cstates\",\"seq\":2,\"reason\":\"key\",\"now\":1000,\"cpus\":[\
                 {{\"cpu\":0,\"activity\":\"guest\",{body}[{{\"name\":\"C1\",\"method\":\"HLT\",\"off\":false,\"latency_us\":8,\"usage\":6,\"residency\":70,\"irq\":1,\"above\":2,\"below\":0,\"rejected\":3,\"longest\":9,\"shortest\":4}}],\"hardware\":{{\"at\":77,\"CC6\":0,\"PC6\":null}},\
                 \"delta\":{{{body}[{{\"name\":\"C1\",\"method\":\"HLT\",\"off\":false,\"latency_us\":8,\"usage\":1,\"residency\":10,\"irq\":1,\"above\":2,\"below\":0,\"rejected\":3,\"longest\":9}}]}}}},\
                 {{\"cpu\":1,\"activity\":\"guest\",{body}[],\"delta\":{{{body}[]}}}}]}}\n"
            )
        );
    }
}
