//! `cargo xtask soak`: calls, wakes, timers and NMIs at random on the real image, under a watchdog that names any CPU that sleeps on
//! a pending event.

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;

use crate::{
    bochs, build, deps,
    emulated::{Emulated, On, required},
    qemu::Accel,
    workspace,
};

/// Options of `soak`.
#[derive(Args)]
#[command(after_help = "\
Three quarters of the time go to QEMU with 4 to 32 CPUs side by side on the host's cores, half of that with CPUs that poll, since
only there a store replaces an IPI; the rest to Bochs, where MWAIT really sleeps. Each run prints its seed: `--seed` begins there.")]
pub struct SoakArgs {
    /// How long, in all
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    minutes: u32,
    /// Seed of the first run
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Leave Bochs out
    #[arg(long)]
    qemu_only: bool,
}

/// CPUs and idle method, one run after the other.
const RUNS: [(u32, &str); 8] = [
    (4, "idle=auto"),
    (4, "idle=poll"),
    (8, "idle=hlt"),
    (8, "idle=poll"),
    (16, "idle=auto"),
    (16, "idle=poll"),
    (32, "idle=hlt"),
    (32, "idle=poll"),
];

/// `cargo xtask soak`.
///
/// # Errors
/// A wakeup or a call was lost, or a run did not end.
pub fn command(args: &SoakArgs) -> Result<()> {
    deps::bare_metal_target()?;
    let version = deps::qemu()?;
    let built = build::build(true)?;
    let dir = workspace::output_dir("soak")?;
    let bochs = if args.qemu_only {
        None
    } else {
        deps::iso_tools()?;
        Some(bochs::find(bochs::Release::Current)?)
    };
    let end = Instant::now() + Duration::from_secs(u64::from(args.minutes) * 60);
    let mut seed = args.seed;
    let mut turn = 0;
    while Instant::now() < end {
        let left = end.saturating_duration_since(Instant::now()).as_secs();
        let in_bochs = bochs.as_ref().filter(|_| turn % 4 == 3);
        let (on, cpus, words, seconds) = match in_bochs {
            Some(bochs) => {
                let on = On::Bochs {
                    bochs: bochs.clone(),
                    model: "corei7_skylake_x".to_owned(),
                };
                (on, 2 + (turn as u32 / 4) % 3, "", 2)
            }
            None => {
                let (cpus, words) = RUNS[(turn - turn / 4) % RUNS.len()];
                let on = On::Qemu {
                    version,
                    accel: Accel::Tcg,
                };
                (on, cpus, words, left.clamp(2, 20))
            }
        };
        let name = match &on {
            On::Qemu { .. } => "QEMU",
            On::Bochs { .. } => "Bochs",
        };
        print!("{name}, {cpus} CPUs, {words} test.seed={seed}: ");
        let ended = Emulated {
            on,
            image: &built.image,
            bundle: None,
            dir: &dir,
            label: format!("run-{turn}"),
            cpus,
            words: format!("test.wakes=soak test.seed={seed} for={seconds} {words}"),
            limit: Duration::from_secs(180),
        }
        .run()?;
        println!(
            "{} steps, {} calls, none lost",
            required(&ended, "soak.steps")?,
            required(&ended, "soak.calls")?
        );
        seed += 1;
        turn += 1;
    }
    Ok(())
}
