//! `cargo xtask trace`: recordings of guests on Lull, as text that `bench governors` can replay.

use std::{collections::BTreeMap, fmt::Write as _, process::Stdio, time::Duration};

use anyhow::{Result, bail};
use clap::{Args, Subcommand};

use crate::{
    build::{self, Bundle},
    channel::{Channel, IdlePeriod},
    deps,
    guest_arg::{self, GuestArg},
    qemu::{Accel, Console, Cpu, Machine},
    session::Session,
    workspace::{self, shown},
};

/// Options of `trace`.
#[derive(Args)]
pub struct TraceArgs {
    #[command(subcommand)]
    trace: Trace,
}

#[derive(Subcommand)]
enum Trace {
    /// The idle periods of one CPU, tab-separated, to the standard output
    ///
    /// Deterministic: QEMU's clock counts instructions. The columns are what `bench governors --traces` reads, and behind
    /// them the state that was chosen first and the number of stays.
    Idle(IdleArgs),
}

#[derive(Args)]
struct IdleArgs {
    /// A guest, as `run` takes it; may be repeated. Default: idle-timer and ipi-pair
    #[arg(long = "guest", value_name = "GUEST")]
    guests: Vec<GuestArg>,
    /// Number of CPUs of the machine
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    cpus: u32,
    /// Which CPU; default: the one that was idle most often
    #[arg(long, value_name = "CPU")]
    of: Option<u32>,
    /// How many idle periods of each CPU are kept
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rows: u32,
    /// End after this many seconds of the machine's time, also if guests still run
    #[arg(long = "for", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// More words for Lull's own command line
    #[arg(long, value_name = "WORDS", default_value = "")]
    cmdline: String,
}

/// `cargo xtask trace`.
///
/// # Errors
/// If something is missing, the run did not end well, or the CPU was never idle.
pub fn command(args: &TraceArgs) -> Result<()> {
    let Trace::Idle(args) = &args.trace;
    let channel = record(args)?;
    let recorded = Recorded::of(&channel);
    let cpu = match args.of {
        Some(cpu) => cpu,
        None => recorded.busiest(),
    };
    let Some((periods, dropped)) = recorded.0.get(&cpu) else {
        bail!("nothing was recorded of cpu{cpu}")
    };
    if periods.is_empty() {
        bail!("cpu{cpu} was never idle and then busy again");
    }
    for (&other, (periods, dropped)) in &recorded.0 {
        eprintln!(
            "xtask: cpu{other}: {} idle periods kept, {dropped} dropped",
            periods.len()
        );
    }
    eprintln!("xtask: cpu{cpu} is what follows ({dropped} more idle periods found no room)");
    print!("{}", text(periods));
    Ok(())
}

fn record(args: &IdleArgs) -> Result<Channel> {
    deps::bare_metal_target()?;
    let version = deps::qemu()?;
    let built = build::build(true)?;
    let dir = workspace::output_dir("trace")?;
    let bundle = dir.join("bundle.cpio");
    Bundle::of_guests(&guest_arg::complete(&args.guests, &built)?, &built)?.write(&bundle)?;
    let mut words = vec![
        "exit-port=0xf4".to_owned(),
        format!("trace.idle={}", args.rows),
    ];
    words.extend(args.seconds.map(|seconds| format!("for={seconds}")));
    words.push(args.cmdline.trim().to_owned());
    let console = dir.join("console.txt");
    let machine = Machine {
        board: crate::qemu::BOARD,
        version,
        accel: Accel::Icount,
        cpu: Cpu::Default,
        cpus: args.cpus,
        disabled_cpus: 0,
        mem: "512M".to_owned(),
        kernel: built.image,
        bundle: Some(bundle),
        cmdline: words.join(" ").trim().to_owned(),
        console: Console::File(console.clone()),
        debugcon: dir.join("channel.jsonl"),
        acpi_tables: Vec::new(),
        globals: Vec::new(),
        gdb: false,
    };
    let session = Session::start(&machine, None, |command| {
        command.stdout(Stdio::null());
    })?;
    let ended = session.finish(Some(PATIENCE))?;
    match ended.channel.end() {
        Some(end) if end.status == "ok" => Ok(ended.channel),
        Some(end) => bail!(
            "Lull ended with status `{}`; the console is in {}",
            end.status,
            shown(&console)
        ),
        None => bail!(
            "Lull did not reach its end ({}); the console is in {}",
            ended.how(),
            shown(&console)
        ),
    }
}

/// For a run, however slow the host.
const PATIENCE: Duration = Duration::from_secs(600);

/// By CPU: the idle periods, and how many more there were.
struct Recorded(BTreeMap<u32, (Vec<IdlePeriod>, u64)>);

impl Recorded {
    fn of(channel: &Channel) -> Self {
        let mut recorded = BTreeMap::<u32, (Vec<IdlePeriod>, u64)>::new();
        for part in channel.idle_traces() {
            let (periods, dropped) = recorded.entry(part.cpu).or_default();
            periods.extend(part.periods.iter().cloned());
            *dropped = part.dropped;
        }
        Self(recorded)
    }

    fn busiest(&self) -> u32 {
        let most = self.0.iter().max_by_key(|(_, (periods, _))| periods.len());
        most.map_or(0, |(&cpu, _)| cpu)
    }
}

fn text(periods: &[IdlePeriod]) -> String {
    let mut text = String::from("idle_ns\ttimer_ns\tcause\tbusy_ns\tstate\tstays\n");
    for period in periods {
        let timer = period
            .timer_ns
            .map_or("-1".to_owned(), |timer| timer.to_string());
        // A `String` takes all that is written to it.
        let _ = writeln!(
            text,
            "{}\t{timer}\t{}\t{}\t{}\t{}",
            period.idle_ns, period.cause, period.busy_ns, period.state, period.stays
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_several_cpus_become_what_a_replay_reads() {
        let channel = Channel::of_text(
            r#"{"v":1,"type":"idle_trace","cpu":0,"first":0,"dropped":0,"periods":[]}
{"v":1,"type":"idle_trace","cpu":1,"first":0,"dropped":7,"periods":[{"idle_ns":900,"timer_ns":1000,"cause":"R","busy_ns":70,"state":"C1","stays":2}]}
{"v":1,"type":"idle_trace","cpu":1,"first":1,"dropped":7,"periods":[{"idle_ns":80,"cause":"I","busy_ns":5,"state":"POLL","stays":1}]}"#,
        );
        assert!(channel.faults.is_empty(), "{:?}", channel.faults);
        let recorded = Recorded::of(&channel);
        assert_eq!(recorded.busiest(), 1);
        let (periods, dropped) = &recorded.0[&1];
        assert_eq!(*dropped, 7);
        let text = text(periods);
        assert_eq!(
            text,
            "idle_ns\ttimer_ns\tcause\tbusy_ns\tstate\tstays\n900\t1000\tR\t70\tC1\t2\n80\t-1\tI\t5\tPOLL\t1\n"
        );
        let trace = lull_sim::trace::Trace::parse("x", &text).unwrap();
        assert_eq!(
            (trace.rows[0].timer, trace.rows[1].timer),
            (Some(1000), None)
        );
        assert_eq!(trace.rows[1].length, 80);
    }
}
