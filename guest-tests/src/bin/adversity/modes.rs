//! All paging modes and real mode, again and again; 1 GiB pages.
#![expect(unsafe_code, reason = "page tables, and code that leaves long mode")]

use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;

use super::checks::Checks;
use super::run::{self, Snippet};
use guest_tests::{cpu, note};

global_asm!(include_str!("modes.S"), options(att_syntax));

const ENTRIES: usize = 1024;
const PRESENT_WRITABLE: u32 = 3;
const LARGE: u32 = 0x80;
const MARK: u32 = 0x4c75_6c6c;
/// What lies at 8 MiB, where the alias is moved to.
const MOVED: u32 = 0x6d6f_7665;
const MOVED_AT: u64 = 8 << 20;
const RESULTS: usize = 40;

#[repr(C, align(4096))]
struct Pages {
    directory32: [u32; ENTRIES],
    table32: [u32; ENTRIES],
    /// Eight bytes an entry.
    pae_pointers: [u64; 512],
    pae_last: [u64; 512],
    level3: [u64; 512],
    words: [u32; 8],
    results: [u32; RESULTS],
    probe: u32,
}

struct Own(UnsafeCell<Pages>);
// SAFETY: the kernel has one CPU.
unsafe impl Sync for Own {}

static PAGES: Own = Own(UnsafeCell::new(Pages {
    directory32: [0; ENTRIES],
    table32: [0; ENTRIES],
    pae_pointers: [0; 512],
    pae_last: [0; 512],
    level3: [0; 512],
    words: [0; 8],
    results: [0; RESULTS],
    probe: MARK,
}));

fn low(address: u64) -> u32 {
    (address & 0xffff_ffff) as u32
}

fn read_cr3() -> u64 {
    let value: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cr3", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Fills the tables and the words that the assembly reads.
fn prepare() {
    unsafe extern "C" {
        static adversity_real_start: u8;
        static adversity_real_end: u8;
        static adversity_real_isr: u8;
    }
    let at = PAGES.0.get();
    // SAFETY: nobody else uses the pages; low memory from 0x8000 to 0xa000 is free in every machine (the runtime's own
    // trampoline lies there, and is copied again when it starts a CPU); the runtime's tables have the form that `boot.S` gave
    // them: one entry in level 4, five in level 3.
    unsafe {
        let pages = &mut *at;
        for (entry, n) in pages.directory32.iter_mut().zip(0u32..) {
            *entry = n << 22 | LARGE | PRESENT_WRITABLE;
        }
        for (entry, n) in pages.table32.iter_mut().zip(0u32..) {
            *entry = n << 12 | PRESENT_WRITABLE;
        }
        pages.directory32[0x300] = LARGE | PRESENT_WRITABLE;
        pages.directory32[0x301] = low(&raw const (*at).table32 as u64) | PRESENT_WRITABLE;
        let level3 = (((read_cr3() & !0xfff) as *const u64).read_volatile() & !0xfff) as *const u64;
        for n in 0..3 {
            pages.pae_pointers[n] = level3.add(n).read_volatile() & !0xfff | 1;
        }
        pages.pae_pointers[3] = &raw const (*at).pae_last as u64 | 1;
        for (entry, n) in pages.pae_last.iter_mut().zip(0u64..) {
            *entry = n << 21 | u64::from(LARGE | PRESENT_WRITABLE);
        }
        pages.results = [0; RESULTS];
        pages.words[0] = low(&raw const (*at).directory32 as u64);
        pages.words[1] = low(&raw const (*at).pae_pointers as u64);
        pages.words[2] = low(&raw const (*at).probe as u64);
        pages.words[3] = low(&raw const (*at).results as u64);
        pages.words[4] = low(&raw const (*at).pae_last as u64);
        (MOVED_AT as *mut u32).write_volatile(MOVED);
        let (start, end) = (
            &raw const adversity_real_start,
            &raw const adversity_real_end,
        );
        let size = end as usize - start as usize;
        core::ptr::copy_nonoverlapping(start, 0x8000 as *mut u8, size);
        // Vector 21h of the real-mode table.
        let isr = &raw const adversity_real_isr as usize - start as usize;
        ((0x9000 + 4 * 0x21) as *mut u32).write_volatile(0x0800_0000 | isr as u32);
    }
}

fn all_modes() -> [u32; RESULTS] {
    unsafe extern "C" {
        fn adversity_modes(words: *const u32);
    }
    const GS_BASE: u32 = 0xc000_0101;
    let gs = cpu::rdmsr(GS_BASE);
    // SAFETY: comes back in long mode with the same tables and registers; the segments' bases and the interrupt table, which it
    // changes, are put back here before anything uses them.
    unsafe {
        asm!("call {}", sym adversity_modes, in("rdi") &raw const (*PAGES.0.get()).words, clobber_abi("sysv64"));
        cpu::wrmsr(GS_BASE, gs);
    }
    run::load_table();
    // SAFETY: the assembly is done.
    unsafe { (&raw const (*PAGES.0.get()).results).read_volatile() }
}

pub fn test(checks: &Checks) {
    let leaf = cpu::cpuid(0, 0);
    let id = leaf.ebx ^ leaf.ecx ^ leaf.edx;
    let base = low(cpu::rdmsr(0x1b));
    const OBSERVED: [(&str, u32); 10] = [
        ("compatibility", MARK),
        ("off", MARK),
        ("32-bit", MARK),
        ("32-bit-alias", MARK),
        ("32-bit-small-pages", MARK),
        ("32-bit-moved", MOVED),
        ("off-again", MARK),
        ("pae-alias", MARK),
        ("pae-code-in-alias", MARK),
        ("pae-moved", MOVED),
    ];
    let real = [
        ("cs-0800", 0x800),
        ("cs-0000", 0),
        ("cs-0801", 0x801),
        ("far-call", 0x800),
        ("int-21", 0x1234),
        ("cpuid", id),
        ("rdmsr", base),
        ("in", 0xff),
        ("4-gib-limit", MARK),
    ];
    let mut good = true;
    for round in 0..50u32 {
        if !good {
            break;
        }
        prepare();
        let results = all_modes();
        let mut results = results.iter().copied();
        let mut take = || results.next().unwrap_or(0);
        for (name, word) in OBSERVED {
            let found = (take(), take());
            if found != (word, id) {
                note!("round {round}, {name}: {:#x} and {:#x}", found.0, found.1);
                good = false;
            }
            if round == 0 || !good {
                checks.holds(format_args!("modes.{name}"), found == (word, id));
            }
        }
        for (name, expected) in real {
            let found = take();
            if found != expected {
                note!("round {round}, {name}: {found:#x}, expected {expected:#x}");
                good = false;
            }
            if round == 0 || !good {
                checks.holds(format_args!("modes.real-{name}"), found == expected);
            }
        }
        if round == 0 {
            checks.holds(format_args!("modes.back"), (take(), take()) == (MARK, id));
        }
    }
    huge_pages(checks);
}

/// A mapping of the first GiB by one entry, at 1 TiB; code runs in it, and instructions there are emulated.
fn huge_pages(checks: &Checks) {
    const GIB_PAGES: u32 = 1 << 26;
    const AT: u64 = 1 << 40;
    const SLOT: usize = 2; // of level 4, 512 GiB each
    if cpu::cpuid(0x8000_0001, 0).edx & GIB_PAGES == 0 {
        note!("modes.1-gib-pages: not offered");
        return;
    }
    let at = PAGES.0.get();
    let level4 = (read_cr3() & !0xfff) as *mut u64;
    let flush = || {
        // SAFETY: loads what is there.
        unsafe { asm!("mov {0}, cr3", "mov cr3, {0}", out(reg) _, options(nostack)) };
    };
    // SAFETY: maps memory a second time, where nothing lies.
    unsafe {
        (&raw mut (*at).level3)
            .cast::<u64>()
            .write_volatile(u64::from(LARGE | PRESENT_WRITABLE));
        level4
            .add(SLOT)
            .write_volatile(&raw const (*at).level3 as u64 | 3);
    }
    flush();
    // SAFETY: the mapping just made.
    let seen = unsafe { ((AT + &raw const (*at).probe as u64) as *const u32).read_volatile() };
    checks.holds(format_args!("modes.1-gib-pages"), seen == MARK);
    let leaf = cpu::cpuid(0, 0);
    for (name, bytes) in [
        ("cpuid", &[0x0fu8, 0xa2] as &[u8]),
        ("cpuid-prefixed", &[0x2e, 0x2e, 0x2e, 0x0f, 0xa2]),
    ] {
        let snippet = Snippet::new(bytes).at(4095);
        let _ = snippet.run();
        let ran = snippet.execute(AT + run::code_area() + 4095);
        let [rax, ..] = ran.registers;
        checks.expect(
            format_args!("modes.1-gib-pages-{name}"),
            ran.trace().as_str(),
            "nothing",
        );
        checks.holds(
            format_args!("modes.1-gib-pages-{name}-answer"),
            rax == u64::from(leaf.eax),
        );
    }
    // SAFETY: takes the mapping away again.
    unsafe { level4.add(SLOT).write_volatile(0) };
    flush();
}
