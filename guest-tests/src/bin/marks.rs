//! Fills all that a guest can name with marks, or looks for another guest's.
//!
//! | `role=` | |
//! |---|---|
//! | `look` (default) | no register and no memory has a mark at the start, and none ever comes |
//! | `fill` | x87, XMM, YMM, DR0 to DR3, MSRs and memory get marks; its own must stay |
//!
//! `for-ms=50`. Both spin with interrupts off, so that a host that runs them on one CPU has to preempt them.
//! Figures: `rounds`, `memory_kib` (looked through or filled).
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "registers that Rust has no word for")]

use core::arch::asm;
use guest_tests::{Machine, check, cpu, figure, trap, tsc};

guest_tests::guest_test! {
    name: "marks",
    summary: "registers and memory of another guest are never seen",
    cmdline: "role=look",
    vcpus: 1,
    memory_mib: 16,
    end: Port,
    main: main,
    ap: trap::no_ap,
    interrupt: trap::no_interrupts,
}

/// Two halves alike and canonical, so that a mark can stand in an address register; what belongs to a place is added.
const MARK: u64 = 0x0000_6b61_4d6b_6100;
const MASK: u64 = 0xffff_ffff_ffff_ff00;
/// Free memory begins here: kernels and boot information lie below.
const FREE: u64 = 8 << 20;
const TSC_AUX: u32 = 0xc000_0103;
/// FS base, KERNEL_GS base, LSTAR, CSTAR, STAR, SYSENTER_ESP, SYSENTER_EIP.
const MSRS: [u32; 7] = [
    0xc000_0100,
    0xc000_0102,
    0xc000_0082,
    0xc000_0083,
    0xc000_0081,
    0x175,
    0x176,
];

fn is_mark(value: u64) -> bool {
    value & MASK == MARK
}

/// Turns AVX on where it is offered; says whether.
fn enable_avx() -> bool {
    const XSAVE_AND_AVX: u32 = 1 << 26 | 1 << 28;
    if cpu::cpuid(1, 0).ecx & XSAVE_AND_AVX != XSAVE_AND_AVX {
        return false;
    }
    // SAFETY: CPUID offers both; nothing here uses the state but the functions below.
    unsafe {
        asm!("mov rax, cr4", "or rax, 1 << 18", "mov cr4, rax", "xor ecx, ecx", "xor edx, edx", "mov eax, 7", "xsetbv",
            out("rax") _, out("rcx") _, out("rdx") _, options(nostack));
    }
    true
}

#[repr(C, align(64))]
struct Area([u64; 512]);

/// All x87, XMM and YMM registers, as XSAVE or FXSAVE stores them.
fn vectors(avx: bool) -> Area {
    let mut area = Area([0; 512]);
    // SAFETY: 4096 bytes suffice for x87, SSE and AVX; the area is aligned.
    unsafe {
        if avx {
            asm!("xsave64 [{}]", in(reg) &raw mut area, in("eax") 7, in("edx") 0, options(nostack));
        } else {
            asm!("fxsave64 [{}]", in(reg) &raw mut area, options(nostack));
        }
    }
    area
}

/// Marks in all of them.
fn fill_vectors(avx: bool) {
    let mark = [MARK | 1, MARK | 2, MARK | 3, MARK | 4];
    // SAFETY: changes vector and x87 registers, which nothing else here uses.
    unsafe {
        macro_rules! all {
            ($($n:literal),*) => {
                if avx {
                    asm!($(concat!("vmovdqu ymm", $n, ", [{0}]")),*, in(reg) &raw const mark, options(nostack));
                } else {
                    asm!($(concat!("movdqu xmm", $n, ", [{0}]")),*, in(reg) &raw const mark, options(nostack));
                }
            };
        }
        all!(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        asm!("fninit", "fild qword ptr [{0}]", "fild qword ptr [{0}]", "fild qword ptr [{0}]", in(reg) &raw const mark, options(nostack));
    }
}

fn debug_registers() -> [u64; 4] {
    let (a, b, c, d);
    // SAFETY: reads registers.
    unsafe {
        asm!("mov {0}, dr0", "mov {1}, dr1", "mov {2}, dr2", "mov {3}, dr3", out(reg) a, out(reg) b, out(reg) c, out(reg) d,
            options(nomem, nostack));
    }
    [a, b, c, d]
}

fn fill_all(avx: bool) {
    fill_vectors(avx);
    // SAFETY: DR7 enables none of the breakpoints; none of these MSRs leads anywhere that this kernel goes.
    unsafe {
        asm!("mov dr0, {0}", "mov dr1, {0}", "mov dr2, {0}", "mov dr3, {0}", in(reg) MARK | 5, options(nomem, nostack));
        for msr in MSRS {
            cpu::wrmsr(msr, MARK | 6);
        }
        if has_tsc_aux() {
            cpu::wrmsr(TSC_AUX, MARK & 0xffff_ffff);
        }
    }
}

fn has_tsc_aux() -> bool {
    cpu::cpuid(0x8000_0001, 0).edx & 1 << 27 != 0
}

/// How many marks there are in registers.
fn count(avx: bool) -> usize {
    let x87_or_vectors = vectors(avx).0.iter().filter(|&&word| is_mark(word)).count();
    let debug = debug_registers()
        .into_iter()
        .filter(|&word| is_mark(word))
        .count();
    let msrs = MSRS.iter().filter(|&&msr| is_mark(cpu::rdmsr(msr))).count();
    let aux = usize::from(has_tsc_aux() && cpu::rdmsr(TSC_AUX) == MARK & 0xffff_ffff);
    x87_or_vectors + debug + msrs + aux
}

fn main(machine: &Machine<'_>) {
    let options = &machine.options;
    let fill = options.choice("role", &["look", "fill"], 0) == 1;
    let millis = options.number("for-ms", 50, 1..=100_000);
    options.report_unknown();
    // What lies in the upper halves of YMM shows only with AVX on: turning it on clears nothing.
    let avx = enable_avx();
    let found = count(avx);
    check!(
        found == 0,
        "{found} registers have another guest's marks at the start"
    );
    let end = machine.ram_end.unwrap_or(FREE).min(64 << 20);
    for address in (FREE..end).step_by(8) {
        let at = address as *mut u64;
        // SAFETY: memory of this guest, where nothing lies.
        let word = unsafe { at.read_volatile() };
        check!(
            !is_mark(word),
            "memory at {address:#x} has another guest's mark {word:#x}"
        );
        if fill {
            // SAFETY: as above.
            unsafe { at.write_volatile(MARK | 7) };
        }
    }
    figure!("memory_kib", end.saturating_sub(FREE) / 1024, "KiB");
    if fill {
        fill_all(avx);
    }
    let own = count(avx);
    let until = cpu::now().after(tsc::rate().millis(millis));
    let mut rounds = 0u64;
    while cpu::now() < until {
        let now = count(avx);
        check!(
            now == own,
            "{now} registers have marks in round {rounds}, {own} at the start"
        );
        rounds += 1;
    }
    check!(!fill || own >= 40, "only {own} registers have marks");
    figure!("marks", own, "registers");
    figure!("rounds", rounds, "rounds");
}
