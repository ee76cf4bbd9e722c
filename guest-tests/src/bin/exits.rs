//! What leaving the guest costs: ticks of the TSC for each kind of exit, and for waking another vCPU.
//!
//! Each operation is done `rounds=1000` times in a row; the empty loop is taken off. Under QEMU's `-icount` a tick is an
//! instruction, and every run gives the same figures. Bare, they are the cost of the operation itself.
//!
//! Figures, all in ticks: `cpuid`, `hypercall` (an unknown one: #UD and its handler of two instructions), `port_write`,
//! `msr_read_apic_base`, then by mode of the LAPIC `x2apic_{tpr,eoi,read}` and `tsc_deadline`, or `xapic_{tpr,eoi,read}`;
//! `halt_pending` (HLT with an interrupt pending, and its handler), `timer_overshoot`, and with two vCPUs `ipi_halted`
//! (wake a halted vCPU, until its answer is seen) and `ipi_busy` (the same with one that spins).
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "the instructions that are measured")]

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicU32, Ordering};
use guest_tests::lapic::{self, Message, Register, Target};
use guest_tests::percpu::{self, CpuIndex};
use guest_tests::stats::Summary;
use guest_tests::trap::{self, IdtPointer};
use guest_tests::{Machine, cpu, figure, smp, timer, tsc, verdict};

guest_tests::guest_test! {
    name: "exits",
    summary: "what leaving the guest costs, in ticks",
    cmdline: "rounds=1000",
    vcpus: 2,
    memory_mib: 16,
    end: Port,
    main: main,
    ap: partner,
    interrupt: interrupt,
}

const VECTOR: u8 = 0x50;
/// How long anything may take, in ms.
const PATIENCE: u64 = 60_000;

/// Interrupts that CPU 1 has answered.
static ANSWERS: AtomicU32 = AtomicU32::new(0);
/// What CPU 1 does between them: 0 halt, 1 spin, 2 stop.
static MODE: AtomicU32 = AtomicU32::new(0);
/// What CPU 1 is doing, for CPU 0: one more than `MODE`.
static DOES: AtomicU32 = AtomicU32::new(0);

fn interrupt(vector: u8) {
    if vector != VECTOR {
        verdict::fail(format_args!("interrupt {vector:#x} that nobody sent"));
    }
    let here = percpu::here();
    here.user[0].fetch_add(1, Ordering::SeqCst);
    if CpuIndex::current() != CpuIndex::BOOT {
        ANSWERS.fetch_add(1, Ordering::SeqCst);
    }
}

fn partner(own: CpuIndex) {
    if own.get() != 1 {
        return;
    }
    let taken = &percpu::here().user[0];
    loop {
        let mode = MODE.load(Ordering::SeqCst);
        if mode == 2 {
            return;
        }
        let before = taken.load(Ordering::SeqCst);
        DOES.store(mode + 1, Ordering::SeqCst);
        if mode == 0 {
            cpu::halt_while(taken, before);
        } else {
            while taken.load(Ordering::SeqCst) == before {
                cpu::open_window();
                cpu::pause();
            }
        }
    }
}

/// Ticks for each round of `$code`, which may change RAX, RBX, RCX, RDX and RSI, and finds its operands in RSI and RDI.
macro_rules! ticks {
    ($rounds:expr, $rsi:expr, $rdi:expr, $($code:literal),*) => {{
        let begin = cpu::now();
        // SAFETY: each use below says what its instructions do; RBX is kept.
        unsafe {
            asm!(
                "mov r9, rbx",
                "2:",
                $($code,)*
                "dec r10",
                "jnz 2b",
                "mov rbx, r9",
                inout("rsi") $rsi => _, in("rdi") $rdi,
                inout("r10") $rounds => _,
                out("rax") _, out("rcx") _, out("rdx") _, out("r9") _,
            );
        }
        cpu::now().since(begin).0 / $rounds
    }};
}

global_asm!(
    ".pushsection .text.exits, \"ax\", @progbits",
    ".globl exits_skip",
    "exits_skip:",
    "add qword ptr [rsp], 3",
    "iretq",
    ".popsection",
);

/// An unknown hypercall. Its exception leads to a handler of two instructions.
fn hypercall(rounds: u64, empty: u64) -> u64 {
    unsafe extern "C" {
        fn exits_skip();
    }
    let target = exits_skip as *const () as u64;
    let gate = [
        target & 0xffff | 0x08 << 16 | 0x8e00 << 32 | (target >> 16 & 0xffff) << 48,
        target >> 32,
    ];
    let gates = [gate; 32];
    let pointer = IdtPointer {
        limit: 32 * 16 - 1,
        base: gates.as_ptr() as u64,
    };
    // SAFETY: interrupts are off, and the runtime's table is put back before they open; the gates outlive their use.
    unsafe { asm!("lidt [{}]", in(reg) &raw const pointer, options(readonly, nostack)) };
    let ticks = if cpu::features().vmcall {
        ticks!(rounds, 0u64, 0u64, "mov eax, -1", "vmcall")
    } else {
        ticks!(rounds, 0u64, 0u64, "mov eax, -1", "vmmcall")
    };
    trap::load();
    ticks.saturating_sub(empty + 1)
}

fn main(machine: &Machine<'_>) {
    let options = &machine.options;
    let rounds = options.number("rounds", 1000, 1..=1_000_000);
    options.report_unknown();
    let empty = ticks!(rounds, 0u64, 0u64, "");
    figure!("loop", empty, "ticks");
    // The operands are loaded by one instruction each, which belong to the operation.
    let tell = |name: &str, ticks: u64| figure!(name, ticks.saturating_sub(empty), "ticks");
    tell("cpuid", ticks!(rounds, 0u64, 0u64, "xor eax, eax", "cpuid"));
    figure!("hypercall", hypercall(rounds, empty), "ticks");
    // A port without a device.
    tell(
        "port_write",
        ticks!(rounds, 0u64, 0u64, "mov dx, 0x80", "out dx, al"),
    );
    tell(
        "msr_read_apic_base",
        ticks!(rounds, 0u64, 0u64, "mov ecx, 0x1b", "rdmsr"),
    );
    if lapic::is_x2apic() {
        // TPR 0, no interrupt in service: nothing changes.
        tell(
            "x2apic_tpr",
            ticks!(
                rounds,
                0u64,
                0u64,
                "mov ecx, 0x808",
                "xor eax, eax",
                "xor edx, edx",
                "wrmsr"
            ),
        );
        tell(
            "x2apic_eoi",
            ticks!(
                rounds,
                0u64,
                0u64,
                "mov ecx, 0x80b",
                "xor eax, eax",
                "xor edx, edx",
                "wrmsr"
            ),
        );
        tell(
            "x2apic_read",
            ticks!(rounds, 0u64, 0u64, "mov ecx, 0x803", "rdmsr"),
        );
    } else {
        let page = 0xfee0_0000u64;
        tell(
            "xapic_tpr",
            ticks!(rounds, page + 0x80, 0u64, "mov dword ptr [rsi], 0"),
        );
        tell(
            "xapic_eoi",
            ticks!(rounds, page + 0xb0, 0u64, "mov dword ptr [rsi], 0"),
        );
        tell(
            "xapic_read",
            ticks!(rounds, page + 0x30, 0u64, "mov eax, [rsi]"),
        );
    }
    if timer::kind() == "tsc-deadline" {
        lapic::write(Register::LvtTimer, 0b10 << 17 | u32::from(timer::VECTOR));
        let far = cpu::now().after(tsc::rate().millis(3_600_000)).0;
        // A later deadline each time: it is armed anew.
        tell(
            "tsc_deadline",
            ticks!(
                rounds,
                far & 0xffff_ffff,
                far >> 32,
                "mov ecx, 0x6e0",
                "mov eax, esi",
                "mov edx, edi",
                "add esi, 1",
                "wrmsr"
            ),
        );
        timer::cancel();
    }
    figure!("halt_pending", halt_pending(rounds), "ticks");
    let overshoot = (0..rounds.min(200)).fold(Summary::new(), |mut sum, _| {
        let deadline = cpu::now().after(tsc::rate().micros(200));
        sum.add(timer::sleep_until(deadline).handler.since(deadline).0);
        sum
    });
    figure!("timer_overshoot", overshoot.mean(), "ticks");
    if smp::count() > 1 {
        pair(rounds);
    }
}

/// HLT with an interrupt pending, and the interrupt.
fn halt_pending(rounds: u64) -> u64 {
    let taken = &percpu::here().user[0];
    let mut sum = Summary::new();
    for _ in 0..rounds {
        lapic::send(Target::ToSelf, Message::Fixed(VECTOR));
        let before = taken.load(Ordering::SeqCst);
        let begin = cpu::now();
        cpu::halt_while(taken, before);
        sum.add(cpu::now().since(begin).0);
    }
    sum.mean()
}

fn pair(rounds: u64) {
    let Some(other) = CpuIndex::new(1) else {
        return;
    };
    smp::start();
    for (mode, name) in [(0, "ipi_halted"), (1, "ipi_busy")] {
        MODE.store(mode, Ordering::SeqCst);
        if mode == 1 {
            // Out of its last halt.
            lapic::send(Target::Physical(other), Message::Fixed(VECTOR));
        }
        let mut sum = Summary::new();
        for _ in 0..rounds.min(100) {
            timer::spin_until(PATIENCE, "CPU 1 to halt or spin", || {
                DOES.load(Ordering::SeqCst) == mode + 1
            });
            // It said so just before: time to do it.
            timer::sleep_micros(20);
            DOES.store(0, Ordering::SeqCst);
            let answers = ANSWERS.load(Ordering::SeqCst);
            let begin = cpu::now();
            lapic::send(Target::Physical(other), Message::Fixed(VECTOR));
            timer::spin_until(PATIENCE, "the answer of CPU 1", || {
                ANSWERS.load(Ordering::SeqCst) != answers
            });
            sum.add(cpu::now().since(begin).0);
        }
        figure!(name, sum.mean(), "ticks");
        figure!(format_args!("{name}_max"), sum.max(), "ticks");
    }
    MODE.store(2, Ordering::SeqCst);
    lapic::send(Target::Physical(other), Message::Fixed(VECTOR));
}
