//! Runtime of the guest test kernels: one image, any hypervisor.
//!
//! A guest kernel is a PVH image that asks nothing of its host but what a PC has: it finds its CPUs, calibrates its clock,
//! prints on port 0xE9, says `PASS` or `FAIL reason`, and leaves by port 0xF4. What a particular host offers beyond that is used
//! where its CPUID says so, and replaced where it does not.
//!
//! # Rules that hold everywhere
//! - Interrupts are off, except inside [`cpu::halt_while`] and [`cpu::open_window`]. So a handler never interrupts anything but
//!   a sleeping CPU, and ordinary code needs no protection from it.
//! - All that CPUs share is atomic. There is no heap and no recursion.
//! - Halting is always "look at a word, `sti; hlt`" with interrupts off in between: see `boot.S`.
//!
//! The parts that touch no register (options, tables, statistics, units) compile and are tested on the host.
#![cfg_attr(target_os = "none", no_std)]

pub mod departures;
pub mod host;
pub mod madt;
pub mod memory;
pub mod options;
pub mod start_info;
pub mod stats;
pub mod table;
pub mod text;
pub mod units;

#[cfg(target_os = "none")]
mod bare {
    //! Everything that touches the machine.
    pub mod boot;
    pub mod console;
    pub mod cpu;
    pub mod lapic;
    pub mod paging;
    pub mod percpu;
    pub mod smp;
    pub mod timer;
    pub mod trap;
    pub mod tsc;
    pub mod verdict;
}

#[cfg(target_os = "none")]
pub use bare::{
    boot::Machine, console, cpu, lapic, paging, percpu, smp, timer, trap, tsc, verdict,
};

/// Defines a guest kernel: its record in the table of tests (see [`table`]) and its three functions.
///
/// `main(&Machine)` runs on CPU 0 and ends the guest with `PASS` by returning; `ap(CpuIndex)` runs on every other CPU once
/// [`smp::start`] was called; `interrupt(vector)` is called for each interrupt that the runtime does not take itself, with
/// interrupts off, and EOI follows it.
#[macro_export]
macro_rules! guest_test {
    (name: $name:literal, summary: $summary:literal, cmdline: $cmdline:literal, vcpus: $vcpus:literal, memory_mib: $memory:literal,
     end: $end:ident, main: $main:path, ap: $ap:path, interrupt: $interrupt:path $(,)?) => {
        #[expect(
            unsafe_code,
            reason = "the runtime and the host find these by their symbol and section names"
        )]
        const _: () = {
            #[used]
            #[unsafe(link_section = ".lull_guest_test")]
            static RECORD: $crate::table::Record = $crate::table::Record::new(
                $name,
                $summary,
                $cmdline,
                $vcpus,
                $memory,
                $crate::table::End::$end,
            );

            #[unsafe(no_mangle)]
            fn lull_guest_main(machine: &$crate::Machine) {
                let main: fn(&$crate::Machine) = $main;
                main(machine);
            }

            #[unsafe(no_mangle)]
            fn lull_guest_ap(cpu: $crate::percpu::CpuIndex) {
                let ap: fn($crate::percpu::CpuIndex) = $ap;
                ap(cpu);
            }

            #[unsafe(no_mangle)]
            fn lull_guest_interrupt(vector: u8) {
                let interrupt: fn(u8) = $interrupt;
                interrupt(vector);
            }
        };
    };
}
