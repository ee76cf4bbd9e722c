//! One machine in Bochs: what it has, and the configuration that makes it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::Bochs;

/// The most CPUs: Bochs has no more timers.
pub const MAX_CPUS: u32 = 15;

/// CPU models that Lull is tested on; Bochs has more.
pub const MODELS: [&str; 7] = [
    "corei7_skylake_x",
    "sapphire_rapids",
    "corei7_haswell_4770",
    "corei7_icelake_u",
    "tigerlake",
    "arrow_lake",
    "ryzen",
];

/// Instructions, and ticks of the TSC, in one second of the machine. Few: with two CPUs or more, every tick of an idle
/// machine is emulated.
const IPS: u32 = 10_000_000;

/// A machine to be made.
#[derive(Clone, Debug)]
pub struct Machine {
    pub bochs: Bochs,
    /// As Bochs names it.
    pub model: String,
    pub cpus: u32,
    /// Memory in MiB.
    pub mem_mib: u32,
    /// What it boots from.
    pub iso: PathBuf,
    /// Where its files go: configuration, log, machine channel.
    pub dir: PathBuf,
    /// What the names of these files begin with.
    pub label: String,
    /// MSRs that every CPU has beside those of its model, with their values after a reset.
    pub msrs: Vec<(u32, u64)>,
}

impl Machine {
    fn file(&self, kind: &str) -> PathBuf {
        self.dir.join(format!("{}.{kind}", self.label))
    }

    /// Where port 0xE9 goes, among lines of Bochs' own.
    pub fn channel(&self) -> PathBuf {
        self.file("channel.jsonl")
    }

    /// Where the complaints of Bochs go.
    pub fn errors(&self) -> PathBuf {
        self.file("bochs.txt")
    }

    /// What Bochs itself gave as the reason for its end, if it did.
    pub fn complaint(&self) -> Option<String> {
        let said = fs::read_to_string(self.errors()).ok()?;
        let (_, after) = said.split_once("exiting with the following message:")?;
        after
            .lines()
            .map(str::trim)
            .find(|line| !line.is_empty())
            .map(str::to_owned)
    }

    /// Writes the configuration; COM1 is `line`.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write_config(&self, line: &Path) -> Result<()> {
        let msrs = ("msrs", self.msr_definitions());
        for (kind, text) in [("bochsrc", self.config(line)), ("rc", RC.to_owned()), msrs] {
            let path = self.file(kind);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// One line an MSR: number, type, the value after a reset, the reserved bits and those that ignore a write, by halves, which
    /// must have eight digits and no prefix.
    fn msr_definitions(&self) -> String {
        let line = |(msr, value): &(u32, u64)| {
            let (high, low) = (value >> 32, value & 0xFFFF_FFFF);
            format!("{msr:#x} 0 {high:08x} {low:08x} 00000000 00000000 00000000 00000000\n")
        };
        self.msrs.iter().map(line).collect()
    }

    /// The text of the configuration.
    fn config(&self, line: &Path) -> String {
        let Self {
            model,
            cpus,
            mem_mib,
            label,
            ..
        } = self;
        let msrs = if self.msrs.is_empty() {
            String::new()
        } else {
            format!(", msrs=\"{label}.msrs\"")
        };
        format!(
            "config_interface: textconfig
display_library: term
plugin_ctrl: unmapped=true, biosdev=true, speaker=false, extfpuirq=true, parallel=false, serial=true, gameport=false, iodebug=true
memory: guest={mem_mib}, host={mem_mib}
romimage: file=$BXSHARE/BIOS-bochs-latest
vgaromimage: file=$BXSHARE/VGABIOS-lgpl-latest
cpu: model={model}, count={cpus}, ips={IPS}, reset_on_triple_fault=0, ignore_bad_msrs=0{msrs}
clock: sync=none, time0=946681200, rtc_sync=0
boot: cdrom
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=cdrom, path=\"{}\", status=inserted
pci: enabled=1, chipset=i440fx
com1: enabled=1, mode=term, dev=\"{}\"
port_e9_hack: enabled=1
sound: driver=dummy
log: \"{label}.log\"
panic: action=fatal
error: action=report
info: action=report
debug: action=ignore
",
            self.iso.display(),
            line.display(),
        )
    }

    /// The command that starts it.
    pub fn command(&self) -> Command {
        let mut command = self.bochs.command();
        command
            .current_dir(&self.dir)
            .arg("-q")
            .args(["-f", &format!("{}.bochsrc", self.label)])
            .args(["-rc", &format!("{}.rc", self.label)])
            // What is on its screen goes to a terminal that Bochs makes itself, and nobody looks at.
            .env("TERM", "vt100");
        command
    }
}

/// What a Bochs that was built with its debugger does first; another one does not look at it.
const RC: &str = "continue\nquit\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_names_what_the_machine_has() {
        let machine = Machine {
            bochs: Bochs::of_host(),
            model: "tigerlake".into(),
            cpus: 3,
            mem_mib: 256,
            iso: "boot.iso".into(),
            dir: "/tmp".into(),
            label: "run".into(),
            msrs: vec![(0x1FC, 0x12_0000_005B)],
        };
        assert_eq!(
            machine.msr_definitions(),
            "0x1fc 0 00000012 0000005b 00000000 00000000 00000000 00000000\n"
        );
        let text = machine.config(Path::new("/dev/pts/7"));
        for part in [
            "cpu: model=tigerlake, count=3, ips=10000000,",
            "ignore_bad_msrs=0, msrs=\"run.msrs\"\n",
            "memory: guest=256, host=256\n",
            "path=\"boot.iso\"",
            "com1: enabled=1, mode=term, dev=\"/dev/pts/7\"\n",
            "log: \"run.log\"\n",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert_eq!(machine.channel(), Path::new("/tmp/run.channel.jsonl"));
    }
}
