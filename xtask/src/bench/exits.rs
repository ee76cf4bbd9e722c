//! `bench exits`: what each way out of a guest costs, by the guest `exits`, on QEMU's SVM and on Bochs' VMX.

use std::{collections::BTreeMap, path::Path, process::Stdio, time::Duration};

use anyhow::{Result, ensure};

use crate::{
    bochs::{self, Release},
    build::{self, Built, Bundle},
    deps, guest_arg,
    iso::{Iso, Purpose},
    qemu::{self, Accel, Console, Cpu},
    session::{Ended, Session},
    workspace,
};

/// How long a machine may take.
const LIMIT: Duration = Duration::from_secs(240);

/// The figures, in the order in which they are printed; and what is known of others on QEMU's SVM, counted the same way.
const FIGURES: [(&str, &str); 12] = [
    ("cpuid", "KVM 3133-3392, Xen 5373-5499"),
    ("hypercall", "KVM 3133-3392, Xen 5373-5499"),
    ("undefined", "of that, the guest's own #UD"),
    ("port_write", ""),
    ("lapic_read", ""),
    ("tpr_write", ""),
    ("eoi", ""),
    ("deadline_write", ""),
    ("self_ipi", ""),
    ("timer_overshoot", ""),
    ("ipi_halted", "KVM 13033, Xen 23151"),
    ("ipi_busy", ""),
];

type Figures = BTreeMap<String, f64>;

/// `cargo xtask bench exits`.
///
/// # Errors
/// If QEMU is missing, or a run does not end well. A missing Bochs is told, and its column stays empty.
pub fn command(count: u32) -> Result<()> {
    deps::bare_metal_target()?;
    let version = deps::qemu()?;
    let built = build::build(true)?;
    let dir = workspace::output_dir("bench")?;
    let bundle = dir.join("exits.cpio");
    let guest = format!("exits,cmdline=\"count={count}\"").parse()?;
    let guests = guest_arg::complete(&[guest], &built)?;
    Bundle::of_guests(&guests, &built)?.write(&bundle)?;

    let counted = on_qemu(version, &built, &bundle, &dir)?;
    let ticks = match on_bochs(&built, &bundle, &dir) {
        Ok(figures) => figures,
        Err(why) => {
            println!("no Bochs: {why:#}");
            Figures::new()
        }
    };
    println!();
    println!(
        "{:<16} {:>12} {:>12}  others, instructions on QEMU's SVM",
        "", "SVM, QEMU", "VMX, Bochs"
    );
    println!("{:<16} {:>12} {:>12}", "", "instructions", "ticks");
    for (name, others) in FIGURES {
        let show = |figures: &Figures| {
            figures
                .get(name)
                .map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"))
        };
        println!(
            "{name:<16} {:>12} {:>12}  {others}",
            show(&counted),
            show(&ticks)
        );
    }
    Ok(())
}

fn on_qemu(version: qemu::Version, built: &Built, bundle: &Path, dir: &Path) -> Result<Figures> {
    let machine = qemu::Machine {
        version,
        board: qemu::BOARD,
        accel: Accel::Icount,
        cpu: Cpu::Default,
        cpus: 2,
        disabled_cpus: 0,
        mem: "512M".to_owned(),
        kernel: built.image.clone(),
        bundle: Some(bundle.to_owned()),
        cmdline: "exit-port=0xf4".to_owned(),
        console: Console::File(dir.join("exits-qemu.txt")),
        debugcon: dir.join("exits-qemu.jsonl"),
        acpi_tables: Vec::new(),
        globals: Vec::new(),
        gdb: false,
    };
    let session = Session::start(&machine, None, |command| {
        command.stdout(Stdio::null());
    })?;
    figures(&session.finish(Some(LIMIT))?)
}

fn on_bochs(built: &Built, bundle: &Path, dir: &Path) -> Result<Figures> {
    deps::iso_tools()?;
    let bochs = bochs::find(Release::Current)?;
    let iso = dir.join("exits.iso");
    Iso {
        image: &built.image,
        bundle: Some(bundle),
        cmdline: "exit-port=bochs",
        purpose: Purpose::Emulator,
    }
    .write(&dir.join("exits-tree"), &iso)?;
    let machine = bochs::Machine {
        bochs,
        model: "corei7_skylake_x".to_owned(),
        cpus: 2,
        mem_mib: 256,
        iso,
        dir: dir.to_owned(),
        label: "exits-bochs".to_owned(),
        msrs: Vec::new(),
    };
    let session = Session::start_bochs(&machine, &dir.join("exits-bochs.txt"), false, None)?;
    figures(&session.finish(Some(LIMIT))?)
}

/// The figures of the only guest, which must have passed.
fn figures(ended: &Ended) -> Result<Figures> {
    let passed = ended.channel.guests().any(|guest| guest.passed());
    ensure!(passed, "the guest did not pass ({})", ended.how());
    Ok(ended
        .channel
        .figures()
        .filter_map(|figure| Some((figure.name.clone(), figure.number()?)))
        .collect())
}
