//! Whether KVM does here what Lull needs, found by trying.
//!
//! `/dev/kvm` alone proves nothing: there are machines where it opens and makes virtual machines, yet no ordinary
//! guest runs. So an ordinary guest is run (one of our guest kernels, alone), then Lull itself, which needs nested
//! virtualization, with one guest.

use std::{
    fs::{self, File, OpenOptions},
    path::Path,
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use super::{Accel, Console, Cpu, Machine, Version, exit};
use crate::{
    build::{Built, Bundle},
    guest_arg::GuestArg,
    session::Session,
    workspace,
};

/// How long a guest that works may take.
const LIMIT: Duration = Duration::from_secs(5);
/// The kernel that is tried: all its CPUs come up, sleep, and are woken.
const PROBE: &str = "smp";

/// KVM if it works here, else the emulator, with one line that says why.
///
/// # Errors
/// If the files for the probe cannot be written.
pub fn choose(version: Version, built: &Built) -> Result<Accel> {
    let why = match static_reason(Path::new("/dev/kvm"), Path::new("/sys/module")) {
        Some(why) => why,
        None => match probe(version, built) {
            Ok(()) => {
                eprintln!("xtask: KVM works here, nested virtualization too: using it");
                return Ok(Accel::Kvm);
            }
            Err(why) => format!("{why:#}"),
        },
    };
    eprintln!("xtask: KVM not used: {why}; falling back to TCG");
    Ok(Accel::Tcg)
}

/// A reason against KVM that needs no try.
fn static_reason(device: &Path, modules: &Path) -> Option<String> {
    if !device.exists() {
        return Some(format!("there is no {}", device.display()));
    }
    if let Err(why) = OpenOptions::new().read(true).write(true).open(device) {
        return Some(format!("{} cannot be opened ({why})", device.display()));
    }
    for module in ["kvm_amd", "kvm_intel"] {
        // No such file: KVM is another module's or is built in. The try will tell.
        if let Ok(value) = fs::read_to_string(modules.join(module).join("parameters/nested"))
            && !["1", "Y", "y"].contains(&value.trim())
        {
            return Some(format!(
                "{module} has nested virtualization switched off (nested={})",
                value.trim()
            ));
        }
    }
    None
}

/// Runs an ordinary guest, then Lull with a guest.
fn probe(version: Version, built: &Built) -> Result<()> {
    let dir = workspace::output_dir("kvm-probe")?;
    let kernel = built.guest(PROBE)?;
    let alone = Machine {
        version,
        accel: Accel::Kvm,
        cpu: Cpu::Default,
        cpus: 2,
        disabled_cpus: 0,
        mem: "128M".to_owned(),
        kernel: kernel.path.clone(),
        bundle: None,
        cmdline: String::new(),
        console: Console::File(dir.join("console.txt")),
        debugcon: dir.join("channel.jsonl"),
        acpi_tables: Vec::new(),
        globals: Vec::new(),
        board: crate::qemu::BOARD,
        gdb: false,
    };
    attempt("an ordinary guest", &alone)?;
    let mut guest: GuestArg = PROBE.parse()?;
    kernel.complete(&mut guest);
    let bundle = dir.join("bundle.cpio");
    Bundle::of_guests(&[guest], built)?.write(&bundle)?;
    let nested = Machine {
        kernel: built.image.clone(),
        bundle: Some(bundle),
        mem: "256M".to_owned(),
        cmdline: "exit-port=0xf4".to_owned(),
        ..alone
    };
    attempt("a nested guest", &nested)
}

fn attempt(what: &str, machine: &Machine) -> Result<()> {
    let errors = machine.debugcon.with_file_name("qemu.txt");
    let file =
        File::create(&errors).with_context(|| format!("cannot write {}", errors.display()))?;
    let session = Session::start(machine, None, |command| {
        command.stdout(Stdio::null()).stderr(file);
    })?;
    let ended = session.finish(Some(LIMIT))?;
    if ended.code() == Some(exit::OK) {
        return Ok(());
    }
    let said = fs::read_to_string(&errors).unwrap_or_default();
    let first = said
        .lines()
        .next()
        .map_or(String::new(), |line| format!("; QEMU said: {line}"));
    bail!(
        "/dev/kvm opens, but {what} does not run ({}{first})",
        ended.how()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_that_need_no_try() {
        let dir = std::env::temp_dir().join(format!("lull-kvm-{}", std::process::id()));
        let device = dir.join("kvm");
        let nested = dir.join("kvm_intel/parameters/nested");
        fs::create_dir_all(nested.parent().unwrap()).unwrap();
        assert_eq!(
            static_reason(&device, &dir),
            Some(format!("there is no {}", device.display()))
        );
        fs::write(&device, "").unwrap();
        assert_eq!(static_reason(&device, &dir), None);
        fs::write(&nested, "Y\n").unwrap();
        assert_eq!(static_reason(&device, &dir), None);
        fs::write(&nested, "N\n").unwrap();
        assert_eq!(
            static_reason(&device, &dir).unwrap(),
            "kvm_intel has nested virtualization switched off (nested=N)"
        );
        fs::remove_dir_all(dir).unwrap();
    }
}
