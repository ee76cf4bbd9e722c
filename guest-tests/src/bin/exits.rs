//! What each way out of a guest costs, in ticks of the TSC.
//!
//! Every figure is a mean over `count=` times in a row, minus what an empty round costs. Where a tick is an instruction (QEMU with
//! `-icount`), that is the number of instructions of the exit, of the hypervisor's and of the guest's own, together.
//!
//! Options: `count=1000`.
//!
//! Figures: `cpuid`, `hypercall` (an unknown one; on a host that has none, with the #UD and the guest's handler of it), `undefined`
//! (UD2, so #UD and that handler without any exit), `port_write`, `lapic_read`, `tpr_write`, `eoi` (where the APIC is driven by MSRs,
//! the bare instruction), `deadline_write`, `self_ipi` (sent, taken, ended), `timer_overshoot` (from the
//! deadline to the handler, out of HLT), and with two vCPUs `ipi_halted` (sent, the other wakes, answers, we wake) and `ipi_busy`
//! (sent, the other is interrupted in a loop, and its handler answers).
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "calls to a hypervisor")]

use core::sync::atomic::{AtomicU32, Ordering};
use guest_tests::lapic::{self, Message, Register, Target};
use guest_tests::percpu::CpuIndex;
use guest_tests::{Machine, attempt, check, cpu, figure, note, smp, timer, tsc};

guest_tests::guest_test! {
    name: "exits",
    summary: "what each way out of a guest costs",
    cmdline: "count=1000",
    vcpus: 2,
    memory_mib: 16,
    end: Port,
    main: main,
    ap: partner,
    interrupt: interrupt,
}

/// For a CPU that halts until it comes.
const HALTED: u8 = 0x50;
/// For a CPU that is busy.
const BUSY: u8 = 0x51;
/// From a CPU to itself.
const OWN: u8 = 0x52;
/// A port where nothing is: the one that PCs use for delays.
const DELAY_PORT: u16 = 0x80;

/// What the partner does.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Part {
    Halt = 0,
    Spin = 1,
    End = 2,
}

static PART: AtomicU32 = AtomicU32::new(Part::Halt as u32);
/// Interrupts that CPU 1 has taken, by which it is told to go on.
static ASKED: AtomicU32 = AtomicU32::new(0);
/// Those that it has answered.
static ANSWERED: AtomicU32 = AtomicU32::new(0);
/// Answers that CPU 0 has been woken by.
static WOKEN: AtomicU32 = AtomicU32::new(0);
static OWN_TAKEN: AtomicU32 = AtomicU32::new(0);

fn interrupt(vector: u8) {
    let word = match (vector, CpuIndex::current().get()) {
        (HALTED, 0) => &WOKEN,
        (HALTED, _) => &ASKED,
        (BUSY, _) => &ANSWERED,
        _ => &OWN_TAKEN,
    };
    word.fetch_add(1, Ordering::SeqCst);
}

fn partner(own: CpuIndex) {
    if own.get() != 1 {
        return;
    }
    let mut seen = 0;
    loop {
        match PART.load(Ordering::SeqCst) {
            part if part == Part::End as u32 => return,
            part if part == Part::Spin as u32 => {
                cpu::open_window();
                cpu::pause();
            }
            _ => {
                cpu::halt_while(&ASKED, seen);
                let asked = ASKED.load(Ordering::SeqCst);
                if asked != seen {
                    seen = asked;
                    lapic::send(Target::Physical(CpuIndex::BOOT), Message::Fixed(HALTED));
                }
            }
        }
    }
}

/// Ticks of one round of `what`, on the average.
fn mean(count: u64, mut what: impl FnMut()) -> u64 {
    // Once before: what is slow the first time only.
    what();
    let begin = cpu::now();
    for _ in 0..count {
        what();
    }
    cpu::now().since(begin).0 / count
}

/// A call that no hypervisor knows.
const NO_CALL: u64 = u64::MAX;

/// An unknown call by AMD's instruction.
fn vmmcall() {
    // SAFETY: a call that does not exist changes nothing but RAX; some hypervisors change RBX, which is kept.
    let _ = unsafe {
        attempt!("mov r12, rbx", "vmmcall", "mov rbx, r12"; inout("rax") NO_CALL => _, out("r12") _)
    };
}

/// An unknown call by Intel's instruction.
fn vmcall() {
    // SAFETY: as in `vmmcall`.
    let _ = unsafe {
        attempt!("mov r12, rbx", "vmcall", "mov rbx, r12"; inout("rax") NO_CALL => _, out("r12") _)
    };
}

/// #UD without a hypervisor.
fn undefined() {
    // SAFETY: does nothing but fault.
    let _ = unsafe {
        attempt!("mov r12, rbx", "ud2", "mov rbx, r12"; inout("rax") NO_CALL => _, out("r12") _)
    };
}

/// The MSR of a register of the APIC.
const fn x2apic(register: Register) -> u32 {
    0x800 + (register as u32 >> 4)
}

fn is_amd() -> bool {
    cpu::cpuid(0, 0).ebx == u32::from_le_bytes(*b"Auth")
}

fn alone(count: u64) {
    let empty = mean(count, cpu::fence);
    let ticks = |name: &str, whole: u64| figure!(name, whole.saturating_sub(empty), "ticks");
    ticks(
        "cpuid",
        mean(count, || {
            let _ = cpu::cpuid(0x4000_0001, 0);
        }),
    );
    ticks("port_write", mean(count, || cpu::outb(DELAY_PORT, 0)));
    if lapic::is_x2apic() {
        ticks(
            "lapic_read",
            mean(count, || {
                let _ = cpu::rdmsr(x2apic(Register::Svr));
            }),
        );
        // SAFETY: neither moves memory, nor lets an interrupt through: they are off.
        let write = |register| unsafe { cpu::wrmsr(x2apic(register), 0) };
        ticks("tpr_write", mean(count, || write(Register::Tpr)));
        ticks("eoi", mean(count, || write(Register::Eoi)));
    } else {
        ticks(
            "lapic_read",
            mean(count, || {
                let _ = lapic::read(Register::Svr);
            }),
        );
        ticks("tpr_write", mean(count, || lapic::write(Register::Tpr, 0)));
        ticks("eoi", mean(count, lapic::eoi));
    }
    let far = cpu::now().after(tsc::rate().millis(1_000_000));
    ticks("deadline_write", mean(count, || timer::arm(far)));
    timer::cancel();
    ticks(
        "self_ipi",
        mean(count, || {
            lapic::send(Target::ToSelf, Message::Fixed(OWN));
            cpu::open_window();
        }),
    );
    check!(
        u64::from(OWN_TAKEN.load(Ordering::SeqCst)) > count,
        "interrupts to itself got lost"
    );
}

fn overshoot(count: u64) {
    let mut sum = 0;
    for _ in 0..count {
        let deadline = cpu::now().after(tsc::rate().micros(1000));
        sum += timer::sleep_until(deadline).handler.since(deadline).0;
    }
    figure!("timer_overshoot", sum / count, "ticks");
}

fn with_partner(count: u64) {
    let Some(other) = CpuIndex::new(1) else {
        return;
    };
    smp::start();
    timer::sleep_micros(1000);
    let mut round = WOKEN.load(Ordering::SeqCst);
    let halted = mean(count, || {
        lapic::send(Target::Physical(other), Message::Fixed(HALTED));
        cpu::halt_while(&WOKEN, round);
        timer::spin_until(10_000, "an answer", || {
            WOKEN.load(Ordering::SeqCst) != round
        });
        round += 1;
    });
    figure!("ipi_halted", halted, "ticks");

    PART.store(Part::Spin as u32, Ordering::SeqCst);
    lapic::send(Target::Physical(other), Message::Fixed(HALTED));
    timer::sleep_micros(1000);
    let mut answered = ANSWERED.load(Ordering::SeqCst);
    // Where CPUs take turns, each round lasts as long as a turn.
    let busy = mean(count.min(20), || {
        lapic::send(Target::Physical(other), Message::Fixed(BUSY));
        timer::spin_until(10_000, "an answer", || {
            ANSWERED.load(Ordering::SeqCst) != answered
        });
        answered += 1;
    });
    figure!("ipi_busy", busy, "ticks");
    PART.store(Part::End as u32, Ordering::SeqCst);
}

fn main(machine: &Machine<'_>) {
    let options = &machine.options;
    let count = options.number("count", 1000, 1..=1_000_000);
    options.report_unknown();
    if !lapic::is_x2apic() {
        note!("the APIC is driven through its page");
    }
    alone(count);
    // With the guest's own handler of #UD where there is no such call.
    let empty = mean(count, cpu::fence);
    let call = if is_amd() { vmmcall } else { vmcall };
    figure!(
        "hypercall",
        mean(count, call).saturating_sub(empty),
        "ticks"
    );
    figure!(
        "undefined",
        mean(count, undefined).saturating_sub(empty),
        "ticks"
    );
    overshoot(count.min(50));
    if smp::count() >= 2 {
        with_partner(count);
    }
}
