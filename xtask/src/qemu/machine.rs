//! One machine in QEMU: what it has, and the command line that makes it.

use std::{ffi::OsString, path::PathBuf, process::Command};

use super::Version;
use crate::deps::QEMU;

/// What executes the instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// The emulator, with a host thread per CPU: truly concurrent, times mean little.
    Tcg,
    /// The emulator, deterministic: the TSC counts executed instructions, CPUs are time-sliced.
    Icount,
    /// The host's CPU.
    Kvm,
}

/// Which CPU the machine has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cpu {
    /// The best that the accelerator has.
    Default,
    /// What the user says.
    Model(String),
}

/// Where COM1 goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Console {
    /// Our standard streams, shared with QEMU's monitor: Ctrl-A x ends, Ctrl-A c is the monitor, Ctrl-C ends.
    Terminal,
    /// Our standard streams as they are.
    Piped,
    /// A file; there is no input.
    File(PathBuf),
}

/// The board that Lull is at home on.
pub const BOARD: &str = "q35";

/// A machine to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    pub version: Version,
    pub accel: Accel,
    pub cpu: Cpu,
    pub cpus: u32,
    /// CPUs beyond these that the firmware lists as disabled.
    pub disabled_cpus: u32,
    /// As QEMU's `-m` takes it: `512M`, `2G`.
    pub mem: String,
    pub kernel: PathBuf,
    pub bundle: Option<PathBuf>,
    pub cmdline: String,
    pub console: Console,
    /// Where port 0xE9 goes.
    pub debugcon: PathBuf,
    /// Compiled ACPI tables that the firmware has besides its own.
    pub acpi_tables: Vec<PathBuf>,
    /// Properties of devices, as `-global` takes them.
    pub globals: Vec<&'static str>,
    /// As `-M` takes it.
    pub board: &'static str,
    /// Stop before the first instruction and wait for a debugger on TCP port 1234.
    pub gdb: bool,
}

impl Machine {
    /// The arguments for QEMU.
    pub fn args(&self) -> Vec<OsString> {
        let mut args = Args::default();
        match self.accel {
            Accel::Tcg => args.pair(
                "-accel",
                if self.cpus > 1 {
                    "tcg,thread=multi"
                } else {
                    "tcg"
                },
            ),
            Accel::Icount => {
                args.pair("-accel", "tcg,thread=single");
                // `sleep=off`: idle time is jumped over; the clock of the virtual machine, else runs would differ.
                args.pair("-icount", "shift=0,sleep=off");
                args.pair("-rtc", "base=2026-01-01,clock=vm");
            }
            Accel::Kvm => {
                args.pair("-accel", "kvm");
                // HLT and MWAIT of the guest are the CPU's own: real sleep instead of an exit.
                args.pair("-overcommit", "cpu-pm=on");
            }
        }
        args.pair("-M", self.board);
        for global in &self.globals {
            args.pair("-global", *global);
        }
        args.pair("-m", &self.mem);
        args.pair("-cpu", self.cpu());
        let smp = match self.disabled_cpus {
            0 => self.cpus.to_string(),
            disabled => format!(
                "{},maxcpus={}",
                self.cpus,
                self.cpus.saturating_add(disabled)
            ),
        };
        args.pair("-smp", smp);
        for word in ["-display", "none", "-nodefaults", "-no-reboot"] {
            args.one(word);
        }
        match &self.console {
            Console::Terminal => {
                args.pair("-chardev", "stdio,id=com1,mux=on,signal=on");
                args.pair("-serial", "chardev:com1");
                args.pair("-mon", "chardev=com1,mode=readline");
            }
            Console::Piped => {
                args.pair("-chardev", "stdio,id=com1,signal=off");
                args.pair("-serial", "chardev:com1");
            }
            Console::File(path) => args.pair("-serial", prefixed("file:", path)),
        }
        args.pair("-debugcon", prefixed("file:", &self.debugcon));
        args.pair("-device", "isa-debug-exit,iobase=0xf4,iosize=4");
        for table in &self.acpi_tables {
            args.pair("-acpitable", prefixed("file=", &doubled_commas(table)));
        }
        if self.gdb {
            args.pair("-gdb", "tcp:127.0.0.1:1234");
            args.one("-S");
        }
        args.pair("-kernel", &self.kernel);
        if let Some(bundle) = &self.bundle {
            args.pair("-initrd", bundle);
        }
        if !self.cmdline.is_empty() {
            args.pair("-append", &self.cmdline);
        }
        args.0
    }

    /// The command that starts it.
    pub fn command(&self) -> Command {
        let mut command = Command::new(QEMU);
        command.args(self.args());
        command
    }

    fn cpu(&self) -> String {
        let mut cpu = match (&self.cpu, self.accel) {
            // `migratable=no,+invtsc`: else the nonstop TSC is hidden.
            (Cpu::Default, Accel::Kvm) => "host,migratable=no,+invtsc".to_owned(),
            (Cpu::Default, Accel::Tcg | Accel::Icount) => "max".to_owned(),
            (Cpu::Model(model), _) => model.clone(),
        };
        // With both, QEMU aborts ("Bad icount read") at the first access to a timer MSR.
        if self.accel == Accel::Icount && self.version.tcg_has_x2apic() && !cpu.contains("x2apic") {
            cpu.push_str(",-x2apic");
        }
        cpu
    }
}

/// QEMU takes a comma for the end of a value, and two for one.
fn doubled_commas(path: &std::path::Path) -> PathBuf {
    path.to_string_lossy().replace(',', ",,").into()
}

fn prefixed(prefix: &str, path: &std::path::Path) -> OsString {
    let mut word = OsString::from(prefix);
    word.push(path);
    word
}

#[derive(Default)]
struct Args(Vec<OsString>);

impl Args {
    fn one(&mut self, word: impl Into<OsString>) {
        self.0.push(word.into());
    }

    fn pair(&mut self, option: &str, value: impl Into<OsString>) {
        self.one(option);
        self.one(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(accel: Accel) -> Machine {
        Machine {
            version: Version { major: 7, minor: 2 },
            accel,
            cpu: Cpu::Default,
            cpus: 4,
            disabled_cpus: 0,
            mem: "512M".into(),
            kernel: "image".into(),
            bundle: Some("bundle.cpio".into()),
            cmdline: "exit-port=0xf4 keep".into(),
            console: Console::Piped,
            debugcon: "channel,1.json".into(),
            acpi_tables: Vec::new(),
            globals: Vec::new(),
            board: BOARD,
            gdb: false,
        }
    }

    fn line(machine: &Machine) -> String {
        machine
            .args()
            .iter()
            .map(|arg| arg.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn tcg() {
        assert_eq!(
            line(&machine(Accel::Tcg)),
            "-accel tcg,thread=multi -M q35 -m 512M -cpu max -smp 4 -display none -nodefaults -no-reboot \
             -chardev stdio,id=com1,signal=off -serial chardev:com1 -debugcon file:channel,1.json \
             -device isa-debug-exit,iobase=0xf4,iosize=4 -kernel image -initrd bundle.cpio -append exit-port=0xf4 keep"
        );
        let one = Machine {
            cpus: 1,
            bundle: None,
            cmdline: String::new(),
            ..machine(Accel::Tcg)
        };
        let text = line(&one);
        assert!(text.starts_with("-accel tcg -M q35"), "{text}");
        assert!(text.ends_with("-kernel image"), "{text}");
    }

    #[test]
    fn tables_are_given_by_file() {
        let machine = Machine {
            acpi_tables: vec!["a.aml".into(), "b,c.aml".into()],
            globals: Vec::new(),
            ..machine(Accel::Tcg)
        };
        let text = line(&machine);
        assert!(
            text.contains(" -acpitable file=a.aml -acpitable file=b,,c.aml -kernel "),
            "{text}"
        );
    }

    #[test]
    fn icount_is_deterministic() {
        let old = line(&machine(Accel::Icount));
        assert!(
            old.starts_with(
                "-accel tcg,thread=single -icount shift=0,sleep=off -rtc base=2026-01-01,clock=vm -M q35 -m 512M -cpu max -smp 4 "
            ),
            "{old}"
        );
        let newer = Machine {
            version: Version {
                major: 10,
                minor: 0,
            },
            ..machine(Accel::Icount)
        };
        assert!(
            line(&newer).contains("-cpu max,-x2apic "),
            "{}",
            line(&newer)
        );
        let chosen = Machine {
            cpu: Cpu::Model("EPYC,+x2apic".into()),
            ..newer
        };
        assert!(
            line(&chosen).contains("-cpu EPYC,+x2apic "),
            "what the user says about x2APIC stands"
        );
    }

    #[test]
    fn kvm_shows_the_real_cpu() {
        let kvm = line(&machine(Accel::Kvm));
        assert!(
            kvm.starts_with(
                "-accel kvm -overcommit cpu-pm=on -M q35 -m 512M -cpu host,migratable=no,+invtsc -smp 4 "
            ),
            "{kvm}"
        );
        let chosen = Machine {
            cpu: Cpu::Model("EPYC".into()),
            ..machine(Accel::Kvm)
        };
        assert!(line(&chosen).contains("-cpu EPYC "));
    }

    #[test]
    fn the_terminal_is_shared_with_the_monitor_and_gdb_waits() {
        let interactive = Machine {
            console: Console::Terminal,
            gdb: true,
            ..machine(Accel::Tcg)
        };
        let text = line(&interactive);
        assert!(
            text.contains(
                "-chardev stdio,id=com1,mux=on,signal=on -serial chardev:com1 -mon chardev=com1,mode=readline "
            ),
            "{text}"
        );
        assert!(text.contains("-gdb tcp:127.0.0.1:1234 -S "), "{text}");
    }
}
