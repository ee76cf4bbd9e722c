//! From the assembly entry to the kernel's `main`.
#![expect(
    unsafe_code,
    reason = "entry from assembly; reads what the loader left in memory"
)]

use super::percpu::{self, CpuIndex, MAX_CPUS};
use super::{console, cpu, lapic, smp, timer, trap, tsc, verdict};
use crate::host::Host;
use crate::madt::{self, ApicIds};
use crate::memory::Memory;
use crate::options::Options;
use crate::start_info::{self, StartInfo};
use crate::text::Text;
use core::arch::global_asm;

global_asm!(include_str!("../boot.S"), options(att_syntax));

/// The machine as a kernel's `main` finds it: one CPU runs, the others wait for [`smp::start`].
pub struct Machine<'a> {
    /// The command line.
    pub options: Options<'a>,
    /// Who runs us.
    pub host: Host,
    /// The end of RAM below 4 GiB; `None` if nobody told.
    pub ram_end: Option<u64>,
}

/// Memory by its own address: the low 4 GiB are mapped one to one.
struct Identity;

impl Memory for Identity {
    fn read(&self, from: u64, to: &mut [u8]) -> bool {
        // The first bytes of memory (and null) are nothing that a loader hands over.
        let Some(end) = from.checked_add(to.len() as u64) else {
            return false;
        };
        if from < 16 || end > 1 << 32 {
            return false;
        }
        // SAFETY: the range is mapped; what is there was written before this kernel began, outside its image.
        unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
        true
    }
}

/// Called by `boot.S` on each CPU, on its own stack, with interrupts off.
#[unsafe(no_mangle)]
extern "C" fn lull_guest_cpu_start(index: u32) -> ! {
    let cpu = CpuIndex::new(index).unwrap_or(CpuIndex::BOOT);
    percpu::install(cpu);
    if cpu == CpuIndex::BOOT {
        run_boot_cpu()
    } else {
        smp::run_ap(cpu)
    }
}

fn run_boot_cpu() -> ! {
    unsafe extern "C" {
        static lull_guest_start_info: u64;
    }
    unsafe extern "Rust" {
        fn lull_guest_main(machine: &Machine<'_>);
    }
    trap::init();
    trap::load();
    // SAFETY: written by `boot.S` before Rust ran, and not since.
    let info = start_info::read(&Identity, unsafe { lull_guest_start_info });
    let StartInfo {
        command_line,
        rsdp,
        ram_end,
    } = info.unwrap_or_else(|| {
        crate::note!("no hvm_start_info: no command line, no ACPI tables");
        StartInfo {
            command_line: Text::new(),
            rsdp: None,
            ram_end: None,
        }
    });
    let options = Options::new(command_line.as_str(), |problem| crate::note!("{}", problem));
    if options.choice("console", &["e9", "com1"], 0) == 1 {
        console::use_com1();
    }
    let (host, base) = tsc::host();
    verdict::set_host(host);
    // The two 8259s, where there are any: all lines off.
    cpu::outb(0x21, 0xff);
    cpu::outb(0xa1, 0xff);
    lapic::choose(options.choice("apic", &["x2", "x"], 0) == 1);
    lapic::enable();
    timer::choose(options.choice("timer", &["auto", "lapic"], 0) == 1);
    let source = tsc::calibrate(host, base, &options);
    smp::number(&cpus(rsdp, &options));
    crate::print!(
        "guest on {}: {} CPUs, {}, TSC {} Hz by {}, LAPIC timer {} Hz, timer {}, cmdline '{}'",
        host.name(),
        smp::count(),
        if lapic::is_x2apic() {
            "x2APIC"
        } else {
            "xAPIC"
        },
        tsc::rate().hz(),
        source,
        tsc::lapic_rate().hz(),
        timer::kind(),
        options.line(),
    );
    let machine = Machine {
        options,
        host,
        ram_end,
    };
    // SAFETY: `guest_test!` defines it with this signature.
    unsafe { lull_guest_main(&machine) };
    verdict::end()
}

/// The CPUs: by the MADT; without one, by `cpus=` or else CPUID, with APIC ids counted from 0. `cpus=` also limits the MADT's.
fn cpus(rsdp: Option<u64>, options: &Options<'_>) -> ApicIds<MAX_CPUS> {
    let wanted = options
        .number_if_given("cpus", 1..=MAX_CPUS as u64)
        .and_then(|count| u32::try_from(count).ok());
    let listed = rsdp.and_then(|rsdp| {
        let found = madt::cpus::<MAX_CPUS>(&Identity, rsdp);
        if found.is_none() {
            crate::note!("RSDP at {rsdp:#x} leads to no sound MADT");
        }
        found
    });
    let mut ids = ApicIds::new();
    if let Some(listed) = listed {
        let limit = wanted.map_or(MAX_CPUS, |count| count as usize);
        listed
            .as_slice()
            .iter()
            .take(limit)
            .for_each(|&id| ids.push(id));
        ids.left_out = if wanted.is_some() { 0 } else { listed.left_out };
    } else {
        let count =
            wanted.unwrap_or_else(|| cpu::features().logical_cpus.clamp(1, MAX_CPUS as u32));
        (0..count).for_each(|id| ids.push(id));
    }
    ids
}
