//! Starting the other CPUs: INIT, wait, start-up, once more for those that did not hear.
#![expect(
    unsafe_code,
    reason = "the trampoline is copied below 1 MiB and reads a table"
)]

use super::lapic::{self, Message, Target};
use super::percpu::{self, CpuIndex, MAX_CPUS};
use super::{cpu, timer, trap, verdict};
use crate::madt::ApicIds;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// Where the trampoline goes; `AT` in `boot.S`.
const TRAMPOLINE: u64 = 0x8000;

/// The index of each APIC id; read by the trampoline. FFh: not to be started.
#[unsafe(no_mangle)]
static lull_guest_index_of_apic: [AtomicU8; 256] = [const { AtomicU8::new(0xff) }; 256];

static COUNT: AtomicU32 = AtomicU32::new(1);

/// How many CPUs this guest has.
#[must_use]
pub fn count() -> u32 {
    COUNT.load(Ordering::Relaxed)
}

/// Gives every CPU its index: the boot CPU 0, the others as they come.
pub(super) fn number(ids: &ApicIds<MAX_CPUS>) {
    let own = percpu::here().apic_id.load(Ordering::Relaxed);
    let mut next = 0;
    for &id in [own]
        .iter()
        .chain(ids.as_slice().iter().filter(|&&id| id != own))
    {
        let (Some(cpu), Ok(place)) = (CpuIndex::new(next), usize::try_from(id)) else {
            break;
        };
        let Some(index) = lull_guest_index_of_apic.get(place) else {
            crate::note!("CPU with APIC id {id} left out: only ids below 256 are started");
            continue;
        };
        index.store(cpu.get() as u8, Ordering::Relaxed);
        percpu::of(cpu).apic_id.store(id, Ordering::Relaxed);
        next += 1;
    }
    if ids.left_out != 0 {
        crate::note!(
            "{} CPUs left out: only {MAX_CPUS} are started",
            ids.left_out
        );
    }
    COUNT.store(next, Ordering::Relaxed);
}

/// Starts all other CPUs; each then runs the kernel's `ap` function. Fails the guest if one does not answer.
pub fn start() {
    let count = count();
    if count == 1 {
        return;
    }
    copy_trampoline();
    let others = || CpuIndex::first(count).skip(1);
    let is_up = |cpu| percpu::of(cpu).online.load(Ordering::Acquire) != 0;
    others().for_each(|cpu| lapic::send(Target::Physical(cpu), Message::Init));
    timer::sleep_micros(10_000);
    for _ in 0..2 {
        others().filter(|&cpu| !is_up(cpu)).for_each(|cpu| {
            lapic::send(
                Target::Physical(cpu),
                Message::Startup((TRAMPOLINE >> 12) as u8),
            );
        });
        // Sleeping rather than spinning: on an emulator that slices time the others get it all.
        for _ in 0..10 {
            timer::sleep_micros(200);
            if others().all(is_up) {
                return;
            }
        }
    }
    timer::spin_until(20_000, "all CPUs up", || others().all(is_up));
}

fn copy_trampoline() {
    unsafe extern "C" {
        static lull_guest_trampoline_start: u8;
        static lull_guest_trampoline_end: u8;
    }
    let (start, end) = (
        &raw const lull_guest_trampoline_start,
        &raw const lull_guest_trampoline_end,
    );
    // SAFETY: both ends are of one object in the image; the page at 8000h is ordinary RAM below the image, and what the loader
    // left there (command line, memory map) has been copied.
    unsafe {
        core::ptr::copy_nonoverlapping(start, TRAMPOLINE as *mut u8, end as usize - start as usize)
    };
}

/// The life of a CPU other than the boot CPU.
pub(super) fn run_ap(cpu: CpuIndex) -> ! {
    unsafe extern "Rust" {
        fn lull_guest_ap(cpu: CpuIndex);
    }
    trap::load();
    lapic::enable();
    percpu::of(cpu).online.store(1, Ordering::Release);
    // SAFETY: `guest_test!` defines it with this signature.
    unsafe { lull_guest_ap(cpu) };
    cpu::stop()
}

/// Fails the guest if it has fewer CPUs than it needs.
pub fn require(needed: u32) {
    if count() < needed {
        verdict::fail(format_args!("needs {needed} vCPUs, has {}", count()));
    }
}
