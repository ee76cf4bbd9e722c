//! `cargo xtask run`: boot Lull with guests, show its console, then say who passed and where the time went.

use std::{
    io::{self, IsTerminal},
    path::PathBuf,
    process::Stdio,
    time::Duration,
};

use anyhow::{Result, bail, ensure};
use clap::{Args, ValueEnum};

use crate::{
    bochs,
    build::{self, Built, Bundle},
    deps,
    guest_arg::{self, GuestArg},
    iso::{Iso, Purpose},
    process,
    qemu::{self, Accel, Console, Cpu, Machine, Version},
    report,
    session::{Ended, Session},
    workspace::{self, shown},
};

/// Options of `run`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo xtask run                                    4 CPUs, the default guests, until they are done
  cargo xtask run --cpus 64 --for 5                  64 CPUs, at most five seconds
  cargo xtask run --guest fault --guest idle-timer   the second must pass while the first dies
  cargo xtask run --guest busy,weight=512,pin=0 --guest busy,pin=0
  cargo xtask run --icount --json out.json           deterministic: the same figures every time
  cargo xtask run --machine bochs --cpu tigerlake    in Bochs, where MWAIT really sleeps

Keys: h on the console lists the debug keys of Lull. Ctrl-A x or Ctrl-C ends, Ctrl-A c is QEMU's monitor.
The exit code is 0 only if every guest passed and the times of every CPU add up.")]
pub struct RunArgs {
    /// Which emulator is the machine
    #[arg(long, value_enum, default_value_t = MachineArg::Qemu)]
    machine: MachineArg,
    /// Number of CPUs of the machine, 1 to 255; in Bochs 1 to 15
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=255))]
    cpus: u32,
    /// Memory of the machine, for example 512M or 2G
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = mem_size)]
    mem: String,
    /// A guest: `NAME[,vcpus=N][,mem=SIZE][,weight=N][,pin=CPU|LO-HI|all][,cmdline="TEXT"]`; may be
    /// repeated. Default: idle-timer and ipi-pair
    #[arg(long = "guest", value_name = "GUEST")]
    guests: Vec<GuestArg>,
    /// End after this many seconds of the machine's time, also if guests still run
    #[arg(long = "for", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=31_536_000))]
    seconds: Option<u32>,
    /// More words for Lull's own command line, for example "loglvl=debug idle=hlt"
    #[arg(long, value_name = "WORDS", default_value = "")]
    cmdline: String,
    /// What executes the instructions. `auto` takes KVM only if a probe shows that ordinary guests and nested
    /// virtualization work here, else the emulator (TCG)
    #[arg(long, value_enum, default_value_t = AccelArg::Auto)]
    accel: AccelArg,
    /// CPU model, as QEMU's -cpu takes it, for example EPYC or max,-monitor; or as Bochs names it, for example
    /// corei7_skylake_x
    #[arg(long, value_name = "MODEL")]
    cpu: Option<String>,
    /// Deterministic: the clock counts instructions, idle time is jumped over, two runs are identical
    #[arg(long)]
    icount: bool,
    /// Stay in the console when the guests are done
    #[arg(long)]
    keep: bool,
    /// Stop before the first instruction and wait for a debugger on port 1234
    #[arg(long)]
    gdb: bool,
    /// Write the machine channel (one JSON object a line) to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Show no console, only the result
    #[arg(long, conflicts_with_all = ["keep", "gdb"])]
    quiet: bool,
}

/// `--machine`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MachineArg {
    Qemu,
    Bochs,
}

/// `--accel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AccelArg {
    Auto,
    Tcg,
    Kvm,
}

fn mem_size(text: &str) -> Result<String, String> {
    let digits = text.strip_suffix(['M', 'G', 'm', 'g']).unwrap_or(text);
    match digits.parse::<u32>() {
        Ok(1..) => Ok(text.to_owned()),
        _ => Err("expected a number of MiB, or a number with M or G, for example 512M".to_owned()),
    }
}

/// `cargo xtask run`.
///
/// # Errors
/// If something is missing, or the run did not end well.
pub fn command(args: &RunArgs) -> Result<()> {
    if args.icount && args.accel == AccelArg::Kvm {
        bail!("--icount counts the instructions of the emulator: it cannot go with --accel kvm");
    }
    if args.machine == MachineArg::Bochs {
        return on_bochs(args);
    }
    deps::bare_metal_target()?;
    let version = deps::qemu()?;
    let built = build::build(true)?;
    let accel = accel(args, version, &built)?;
    let dir = workspace::output_dir("run")?;
    let bundle = dir.join("bundle.cpio");
    Bundle::of_guests(&guest_arg::complete(&args.guests, &built)?, &built)?.write(&bundle)?;
    let console_file = dir.join("console.txt");
    let console = if args.quiet {
        Console::File(console_file.clone())
    } else if io::stdin().is_terminal() {
        Console::Terminal
    } else {
        Console::Piped
    };
    let machine = Machine {
        version,
        accel,
        cpu: args.cpu.clone().map_or(Cpu::Default, Cpu::Model),
        cpus: args.cpus,
        disabled_cpus: 0,
        mem: args.mem.clone(),
        kernel: built.image.clone(),
        bundle: Some(bundle),
        cmdline: cmdline(args, "0xf4", args.seconds),
        console,
        debugcon: dir.join("channel.jsonl"),
        acpi_tables: Vec::new(),
        globals: Vec::new(),
        board: crate::qemu::BOARD,
        gdb: args.gdb,
    };
    eprintln!("xtask: {}", process::line(&machine.command()));
    if args.gdb {
        eprintln!(
            "xtask: QEMU waits for a debugger: gdb {} -ex 'target remote :1234' -ex 'hbreak lull_boot_entry' -ex continue",
            shown(&built.image)
        );
    }
    if machine.console == Console::Terminal {
        eprintln!("xtask: Ctrl-A x or Ctrl-C ends; h lists the debug keys");
    }
    let session = Session::start(&machine, args.json.as_deref(), |command| {
        if args.quiet {
            command.stdout(Stdio::null());
        }
    })?;
    let ended = session.finish(args.time_limit())?;
    print(&ended);
    if args.quiet {
        eprintln!("xtask: the console is in {}", shown(&console_file));
    }
    verdict(&ended, args.keep)
}

impl RunArgs {
    fn time_limit(&self) -> Option<Duration> {
        time_limit(
            self.seconds.filter(|_| !self.gdb),
            if self.icount { 30 } else { 3 },
        )
    }
}

/// When to give up on a machine that was asked to end after so many seconds: its time may be slower than ours.
fn time_limit(seconds: Option<u32>, slowness: u32) -> Option<Duration> {
    Some(Duration::from_secs(120) + Duration::from_secs(seconds?.into()) * slowness)
}

fn accel(args: &RunArgs, version: Version, built: &Built) -> Result<Accel> {
    if args.icount {
        return Ok(Accel::Icount);
    }
    Ok(match args.accel {
        AccelArg::Tcg => Accel::Tcg,
        AccelArg::Kvm => Accel::Kvm,
        AccelArg::Auto => qemu::choose_accel(version, built)?,
    })
}

/// The same in Bochs: its console is a line of its own, and the image comes from a CD.
fn on_bochs(args: &RunArgs) -> Result<()> {
    args.fits_bochs()?;
    deps::bare_metal_target()?;
    deps::iso_tools()?;
    let bochs = bochs::find(bochs::Release::Current)?;
    let [first, ..] = bochs::MODELS;
    let model = args.cpu.clone().unwrap_or_else(|| first.to_owned());
    let known = bochs.models();
    ensure!(
        known.is_empty() || known.contains(&model),
        "Bochs has no CPU model {model}: expected one of {}",
        known.join(", ")
    );
    let built = build::build(true)?;
    let dir = workspace::output_dir("run-bochs")?;
    let bundle = dir.join("bundle.cpio");
    if !args.guests.is_empty() {
        Bundle::of_guests(&guest_arg::complete(&args.guests, &built)?, &built)?.write(&bundle)?;
    }
    let seconds = args.bochs_seconds();
    let iso = dir.join("run.iso");
    Iso {
        image: &built.image,
        bundle: (!args.guests.is_empty()).then_some(&bundle),
        cmdline: &cmdline(args, "bochs", seconds),
        purpose: Purpose::Emulator,
    }
    .write(&dir.join("tree"), &iso)?;
    let machine = bochs::Machine {
        bochs,
        model,
        cpus: args.cpus,
        mem_mib: mem_mib(&args.mem),
        iso,
        dir: dir.clone(),
        label: "run".to_owned(),
        msrs: Vec::new(),
    };
    eprintln!("xtask: {}", process::line(&machine.command()));
    let console = dir.join("console.txt");
    let mut session = Session::start_bochs(&machine, &console, !args.quiet, args.json.as_deref())?;
    if !args.quiet {
        eprintln!("xtask: Ctrl-C ends; h and Enter lists the debug keys");
        session.take_keys_from_stdin();
    }
    let ended = session.finish(time_limit(seconds, BOCHS_SLOWNESS))?;
    print(&ended);
    eprintln!("xtask: the console is in {}", shown(&console));
    if ended.code() == Some(bochs::SHUTDOWN) && ended.channel.messages.is_empty() {
        bail!(
            "Bochs did not start Lull: {}",
            machine.complaint().unwrap_or_else(|| ended.how())
        );
    }
    verdict(&ended, args.keep)
}

/// Seconds that one second of a machine in Bochs may take at most.
const BOCHS_SLOWNESS: u32 = 30;

impl RunArgs {
    /// Refuses what Bochs does not have.
    fn fits_bochs(&self) -> Result<()> {
        if self.cpus > bochs::MAX_CPUS {
            bail!(
                "--cpus {}: Bochs has at most {} CPUs",
                self.cpus,
                bochs::MAX_CPUS
            );
        }
        for (given, name) in [
            (self.icount, "--icount"),
            (self.gdb, "--gdb"),
            (self.accel != AccelArg::Auto, "--accel"),
        ] {
            if given {
                bail!("{name} is for QEMU: it cannot go with --machine bochs");
            }
        }
        if let Some(model) = &self.cpu
            && !model.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        {
            bail!(
                "--cpu {model}: expected a name of Bochs', for example {}",
                bochs::MODELS.join(", ")
            );
        }
        Ok(())
    }

    /// In Bochs there are no guests but those that are named: most of its models cannot run any.
    fn is_idle_only(&self) -> bool {
        self.machine == MachineArg::Bochs && self.guests.is_empty()
    }

    /// Without guests nothing would end the run.
    fn bochs_seconds(&self) -> Option<u32> {
        self.seconds
            .or((self.is_idle_only() && !self.keep).then_some(1))
    }
}

/// `--mem` in MiB; it has been checked.
fn mem_mib(text: &str) -> u32 {
    let (digits, unit) = match text.strip_suffix(['G', 'g']) {
        Some(digits) => (digits, 1024),
        None => (text.trim_end_matches(['M', 'm']), 1),
    };
    digits.parse::<u32>().unwrap_or(0).saturating_mul(unit)
}

/// Lull's command line.
fn cmdline(args: &RunArgs, exit_port: &str, seconds: Option<u32>) -> String {
    let mut words = vec![format!("exit-port={exit_port}")];
    words.extend(seconds.map(|seconds| format!("for={seconds}")));
    for (given, word) in [(args.keep, "keep"), (args.is_idle_only(), "no-guests")] {
        if given {
            words.push(word.to_owned());
        }
    }
    if !args.cmdline.trim().is_empty() {
        words.push(args.cmdline.trim().to_owned());
    }
    words.join(" ")
}

fn print(ended: &Ended) {
    let channel = &ended.channel;
    println!();
    print!("{}", report::guests(channel));
    if let Some(reading) = channel.cstates().next_back() {
        let hz = channel.boot().map_or(0, |boot| boot.tsc_hz);
        println!(
            "\nWhere the time of each CPU went (reading {}, reason {}):",
            reading.seq, reading.reason
        );
        print!("{}", report::residency(reading, hz));
    }
}

/// Only a good end is a success.
fn verdict(ended: &Ended, kept: bool) -> Result<()> {
    if let Some(fault) = ended.channel.faults.first() {
        eprintln!("xtask: the machine channel is damaged: {fault}");
    }
    let Some(end) = ended.channel.end() else {
        // The user left the console, as `--keep` invites to.
        if kept && ended.code() == Some(0) {
            return Ok(());
        }
        let last = ended.channel.last_lines.join("\n  ");
        bail!(
            "Lull did not reach its end ({}). Last on the machine channel:\n  {}",
            ended.how(),
            if last.is_empty() {
                "nothing at all"
            } else {
                &last
            }
        );
    };
    if end.status != "ok" {
        let why = ended.channel.problems().last();
        let why = why.map_or(String::new(), |problem| format!(": {}", problem.why));
        bail!(
            "Lull ended with status `{}` ({}){why}",
            end.status,
            ended.how()
        );
    }
    println!("\nok ({:.1} s of wall time)", ended.wall.as_secs_f64());
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        run: RunArgs,
    }

    fn parse(words: &str) -> Result<RunArgs, String> {
        Line::try_parse_from(format!("run {words}").split_whitespace())
            .map(|line| line.run)
            .map_err(|why| why.to_string())
    }

    #[test]
    fn what_lull_is_told() {
        assert_eq!(cmdline(&parse("").unwrap(), "0xf4", None), "exit-port=0xf4");
        assert_eq!(
            cmdline(
                &parse("--keep --cmdline idle=hlt").unwrap(),
                "bochs",
                Some(5)
            ),
            "exit-port=bochs for=5 keep idle=hlt"
        );
        assert_eq!(
            cmdline(&parse("--machine bochs").unwrap(), "bochs", Some(1)),
            "exit-port=bochs for=1 no-guests"
        );
    }

    #[test]
    fn defaults_are_those_of_the_documentation() {
        let args = parse("").unwrap();
        assert_eq!(
            (args.cpus, args.mem.as_str(), args.accel, args.icount),
            (4, "512M", AccelArg::Auto, false)
        );
        assert_eq!(args.time_limit(), None);
    }

    #[test]
    fn wrong_arguments_are_named() {
        for (words, part) in [
            ("--cpus 0", "0 is not in 1..=255"),
            ("--cpus 256", "256 is not in 1..=255"),
            ("--mem lots", "expected a number of MiB"),
            ("--mem 0", "expected a number of MiB"),
            ("--guest busy,wait=1", "`wait=1`: no such option"),
            ("--accel xen", "possible values: auto, tcg, kvm"),
            ("--machine vax", "possible values: qemu, bochs"),
            ("--for 0", "0 is not in 1.."),
            ("--bogus", "unexpected argument '--bogus'"),
            ("--quiet --keep", "cannot be used with"),
        ] {
            let why = parse(words).err().unwrap_or_default();
            assert!(why.contains(part), "{words}: {why}");
        }
    }

    #[test]
    fn bochs_is_refused_what_it_does_not_have() {
        for (words, part) in [
            ("--cpus 16", "--cpus 16: Bochs has at most 15 CPUs"),
            ("--icount", "--icount is for QEMU"),
            ("--accel tcg", "--accel is for QEMU"),
            ("--cpu max,-monitor", "--cpu max,-monitor: expected a name"),
        ] {
            let args = parse(&format!("--machine bochs {words}")).unwrap();
            let why = command(&args).unwrap_err().to_string();
            assert!(why.starts_with(part), "{words}: {why}");
        }
        let args = parse("--machine bochs --cpus 15 --cpu tigerlake").unwrap();
        args.fits_bochs().unwrap();
        assert_eq!(args.bochs_seconds(), Some(1), "idle only");
        let guests = parse("--machine bochs --guest busy").unwrap();
        assert_eq!(guests.bochs_seconds(), None, "until the guest is done");
        assert_eq!(
            (mem_mib("512M"), mem_mib("2G"), mem_mib("96")),
            (512, 2048, 96)
        );
    }

    #[test]
    fn icount_is_not_for_kvm() {
        let why = command(&parse("--icount --accel kvm").unwrap())
            .unwrap_err()
            .to_string();
        assert!(why.contains("cannot go with --accel kvm"), "{why}");
    }
}
