//! The local APIC, in x2APIC mode where it is offered, else through its page (Intel SDM vol. 3, chapter "APIC").
#![expect(unsafe_code, reason = "registers in MSRs and in a page")]

use super::percpu::{self, CpuIndex};
use super::{cpu, verdict};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The spurious-interrupt vector.
pub const SPURIOUS_VECTOR: u8 = 0xff;

/// Registers, by their offset in the page; the MSR is 800h plus a sixteenth of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Register {
    /// Local APIC id.
    Id = 0x20,
    /// Task priority.
    Tpr = 0x80,
    /// Processor priority.
    Ppr = 0xa0,
    /// End of interrupt.
    Eoi = 0xb0,
    /// Logical destination.
    Ldr = 0xd0,
    /// Destination format (page only).
    Dfr = 0xe0,
    /// Spurious interrupt vector, and software enable.
    Svr = 0xf0,
    /// Interrupt command, low half (x2APIC: all of it).
    Icr = 0x300,
    /// Interrupt command, high half (page only).
    IcrHigh = 0x310,
    /// Timer entry of the local vector table.
    LvtTimer = 0x320,
    /// LINT0 entry.
    LvtLint0 = 0x350,
    /// Initial count of the timer.
    TimerInitial = 0x380,
    /// Current count of the timer.
    TimerCurrent = 0x390,
    /// Divider of the timer.
    TimerDivide = 0x3e0,
    /// Self-IPI (x2APIC only).
    SelfIpi = 0x3f0,
}

/// Whom an IPI goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// One CPU, by its APIC id.
    Physical(CpuIndex),
    /// All CPUs, by the broadcast id.
    PhysicalAll,
    /// One CPU, by its logical id.
    Logical(CpuIndex),
    /// Shorthand "self".
    ToSelf,
    /// Shorthand "all including self".
    All,
    /// Shorthand "all excluding self".
    Others,
}

/// What an IPI does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// An interrupt with this vector.
    Fixed(u8),
    /// An NMI.
    Nmi,
    /// INIT.
    Init,
    /// Start-up at page `.0`.
    Startup(u8),
}

static X2APIC: AtomicBool = AtomicBool::new(false);
static PAGE: AtomicU64 = AtomicU64::new(0xfee0_0000);

/// Whether the LAPIC is driven in x2APIC mode.
#[must_use]
pub fn is_x2apic() -> bool {
    X2APIC.load(Ordering::Relaxed)
}

const APIC_BASE: u32 = 0x1b;
const ENABLE: u64 = 1 << 11;
const EXTENDED: u64 = 1 << 10;

/// Chooses the mode, once, on the boot CPU.
pub(super) fn choose(force_xapic: bool) {
    let base = cpu::rdmsr(APIC_BASE);
    let page = base & 0xf_ffff_f000;
    if page >= 1 << 32 {
        verdict::fail(format_args!(
            "LAPIC page at {page:#x}, expected below 4 GiB"
        ));
    }
    PAGE.store(page, Ordering::Relaxed);
    let extended = base & EXTENDED != 0;
    if extended && force_xapic {
        crate::note!("apic=x ignored: the machine starts in x2APIC mode");
    }
    X2APIC.store(
        extended || cpu::features().x2apic && !force_xapic,
        Ordering::Relaxed,
    );
}

/// Turns this CPU's LAPIC on, with everything masked, and records its ids.
pub(super) fn enable() {
    let here = percpu::here();
    let x2apic = is_x2apic();
    let mode = if x2apic { ENABLE | EXTENDED } else { ENABLE };
    // SAFETY: decides only how the LAPIC is reached.
    unsafe { cpu::wrmsr(APIC_BASE, cpu::rdmsr(APIC_BASE) | mode) };
    if !x2apic {
        // Flat model: one bit for each of the first eight CPUs.
        write(Register::Dfr, u32::MAX);
        let bit = 1u32.checked_shl(CpuIndex::current().get()).unwrap_or(0) & 0xff;
        write(Register::Ldr, bit << 24);
    }
    write(Register::Svr, 0x100 | u32::from(SPURIOUS_VECTOR));
    write(Register::Tpr, 0);
    write(Register::LvtTimer, 1 << 16);
    write(Register::LvtLint0, 1 << 16);
    let (id, logical) = (read(Register::Id), read(Register::Ldr));
    here.apic_id
        .store(if x2apic { id } else { id >> 24 }, Ordering::Relaxed);
    here.logical_id.store(
        if x2apic { logical } else { logical >> 24 },
        Ordering::Relaxed,
    );
}

/// Reads a register.
#[must_use]
pub fn read(register: Register) -> u32 {
    let offset = register as u32;
    if is_x2apic() {
        return cpu::rdmsr(0x800 + (offset >> 4)) as u32;
    }
    let at = (PAGE.load(Ordering::Relaxed) + u64::from(offset)) as *const u32;
    // SAFETY: the page is mapped uncached and belongs to the LAPIC; reads have no side effect.
    unsafe { at.read_volatile() }
}

/// Writes a register.
pub fn write(register: Register, value: u32) {
    let offset = register as u32;
    if is_x2apic() {
        // SAFETY: LAPIC registers move no memory.
        return unsafe { cpu::wrmsr(0x800 + (offset >> 4), u64::from(value)) };
    }
    let at = (PAGE.load(Ordering::Relaxed) + u64::from(offset)) as *mut u32;
    // SAFETY: the page is mapped uncached and belongs to the LAPIC.
    unsafe { at.write_volatile(value) };
}

/// Ends the interrupt in service.
pub fn eoi() {
    write(Register::Eoi, 0);
}

/// Whether `vector` waits to be taken: its bit of the interrupt request register.
#[must_use]
pub fn is_requested(vector: u8) -> bool {
    has_bit(0x200, vector)
}

/// The bit of `vector` in the 256 bits of registers that begin at `offset`.
fn has_bit(offset: u32, vector: u8) -> bool {
    let word = u32::from(vector >> 5);
    let bit = 1 << (vector & 31);
    let value = if is_x2apic() {
        cpu::rdmsr(0x800 + (offset >> 4) + word) as u32
    } else {
        let at = PAGE.load(Ordering::Relaxed) + u64::from(offset + word * 16);
        // SAFETY: as in `read`.
        unsafe { (at as *const u32).read_volatile() }
    };
    value & bit != 0
}

/// Whether `vector` is being handled: its bit of the in-service register.
#[must_use]
pub fn is_in_service(vector: u8) -> bool {
    has_bit(0x100, vector)
}

/// Sends an IPI. Memory written before is seen by the handler.
pub fn send(target: Target, message: Message) {
    let command = match message {
        Message::Fixed(vector) => u32::from(vector),
        Message::Nmi => 0b100 << 8,
        Message::Init => 0b101 << 8,
        Message::Startup(page) => 0b110 << 8 | u32::from(page),
    } | 1 << 14; // level: assert
    let everyone = if is_x2apic() { u32::MAX } else { 0xff };
    match target {
        Target::Physical(cpu) => {
            command_to(percpu::of(cpu).apic_id.load(Ordering::Relaxed), command)
        }
        Target::PhysicalAll => command_to(everyone, command),
        Target::Logical(cpu) => command_to(
            percpu::of(cpu).logical_id.load(Ordering::Relaxed),
            command | 1 << 11,
        ),
        Target::ToSelf => command_to(0, command | 0b01 << 18),
        Target::All => command_to(0, command | 0b10 << 18),
        Target::Others => command_to(0, command | 0b11 << 18),
    }
}

/// Sends an IPI to all logical ids in `destination` (flat model: one bit a CPU; x2APIC: cluster and bits).
pub fn send_logical(destination: u32, vector: u8) {
    command_to(destination, 1 << 14 | 1 << 11 | u32::from(vector));
}

fn command_to(destination: u32, command: u32) {
    if is_x2apic() {
        // A WRMSR to the x2APIC does not wait for earlier stores; the fence does (Intel SDM vol. 3, "MSR Access in x2APIC Mode").
        cpu::fence();
        // SAFETY: an IPI moves no memory; start-up leads to the trampoline only.
        return unsafe { cpu::wrmsr(0x830, u64::from(destination) << 32 | u64::from(command)) };
    }
    // Delivery status: the last command has left. Bounded, since it is only a courtesy on all LAPICs with this page.
    for _ in 0..100_000 {
        if read(Register::Icr) & 1 << 12 == 0 {
            break;
        }
        cpu::pause();
    }
    write(Register::IcrHigh, destination << 24);
    write(Register::Icr, command);
}
