//! What belongs to one CPU: found through GS, never shared without an atomic.
//!
//! The first CPU's area is static, so that an exception in the first instructions of Rust can already
//! print. The others are made by [`new_area`] before their CPU starts and live for ever.
#![expect(unsafe_code, reason = "an area is found through GS, by its address")]

#[cfg(target_os = "none")]
use crate::run::counters::StandIns;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use lull_core::cstate::select::MwaitTest;
use lull_core::units::{CpuId, MAX_CPUS, Ticks};

use super::nmi::NmiState;
use super::tables::Tables;
use crate::mm::stack::Stack;

/// The area of one CPU. GS base points at it.
#[repr(C, align(128))]
pub struct PerCpu {
    /// Its own address: `mov rax, gs:[0]` finds the area.
    this: AtomicPtr<PerCpu>,
    /// TSC of the first interrupt or NMI entry since [`PerCpu::take_first_irq`]; 0 = none. Written by the entry stub.
    first_irq: AtomicU64,
    /// The last of these that was taken.
    last_first_irq: AtomicU64,
    /// Top of the main stack, for the trampoline.
    start_stack: AtomicU64,
    id: CpuId,
    apic_id: AtomicU32,
    online: AtomicBool,
    interrupts: AtomicU64,
    unexpected: AtomicU64,
    last_unexpected: AtomicU8,
    /// Requests to and answers from this CPU's NMI handler.
    pub nmi: NmiState,
    /// GDT and TSS, loaded by this CPU only.
    pub(super) tables: Tables,
    /// The stacks, for bounds of backtraces and for naming an overflow.
    stacks: spin::Once<Stacks>,
    /// What the self-test found on this CPU.
    mwait: spin::Once<MwaitTest>,
    /// How many locks this CPU holds; counted in debug builds. Its own.
    locks_held: AtomicU32,
    /// IA32_SPEC_CTRL while the CPU is in a state that wants it 0; 0 at all other times.
    spec_ctrl: AtomicU64,
    /// Written by the own CPU only.
    tiles_released: AtomicU64,
    spec_ctrl_cleared: AtomicU64,
    spec_ctrl_restored: AtomicU64,
}

#[cfg(target_os = "none")]
const SPEC_CTRL: u32 = 0x48;

/// Offset of the first-handler stamp from GS base, for the entry stub.
pub const FIRST_IRQ_OFFSET: usize = core::mem::offset_of!(PerCpu, first_irq);

/// Offset of the first stack pointer, for the trampoline.
pub const START_STACK_OFFSET: usize = core::mem::offset_of!(PerCpu, start_stack);

/// The four stacks of a CPU.
#[derive(Clone, Copy, Debug)]
pub struct Stacks {
    /// The stack that the dispatch loop runs on; interrupts are taken on it.
    pub main: Stack,
    /// IST 1.
    pub nmi: Stack,
    /// IST 2.
    pub double_fault: Stack,
    /// IST 3.
    pub machine_check: Stack,
}

impl Stacks {
    /// Each stack with its name.
    #[must_use]
    pub fn all(&self) -> [(&'static str, Stack); 4] {
        [
            ("main", self.main),
            ("NMI", self.nmi),
            ("double-fault", self.double_fault),
            ("machine-check", self.machine_check),
        ]
    }
}

impl PerCpu {
    pub(super) const fn new(index: u32) -> Self {
        Self {
            this: AtomicPtr::new(core::ptr::null_mut()),
            first_irq: AtomicU64::new(0),
            last_first_irq: AtomicU64::new(0),
            start_stack: AtomicU64::new(0),
            id: CpuId::new(index),
            apic_id: AtomicU32::new(u32::MAX),
            online: AtomicBool::new(false),
            interrupts: AtomicU64::new(0),
            unexpected: AtomicU64::new(0),
            last_unexpected: AtomicU8::new(0),
            nmi: NmiState::new(),
            tables: Tables::new(),
            stacks: spin::Once::new(),
            mwait: spin::Once::new(),
            locks_held: AtomicU32::new(0),
            spec_ctrl: AtomicU64::new(0),
            tiles_released: AtomicU64::new(0),
            spec_ctrl_cleared: AtomicU64::new(0),
            spec_ctrl_restored: AtomicU64::new(0),
        }
    }

    /// Which CPU this is: 0 is the one that booted.
    #[must_use]
    pub fn id(&self) -> CpuId {
        self.id
    }

    /// Local APIC id; `u32::MAX` until it is known.
    #[must_use]
    pub fn apic_id(&self) -> u32 {
        self.apic_id.load(Ordering::Relaxed)
    }

    /// Records the local APIC id, once the CPU or the MADT has told it.
    pub fn set_apic_id(&self, id: u32) {
        self.apic_id.store(id, Ordering::Relaxed);
    }

    /// Does this CPU run with the others? Set once, by the CPU itself.
    #[must_use]
    pub fn is_online(&self) -> bool {
        self.online.load(Ordering::Acquire)
    }

    /// This CPU has been counted in: a panic waits for it to stop.
    pub fn set_online(&self) {
        self.online.store(true, Ordering::Release);
    }

    /// TSC stamp of the first interrupt or NMI entered since the last call, and forgets it.
    #[inline]
    pub fn take_first_irq(&self) -> Option<Ticks> {
        // Mostly there is none, and a locked instruction costs more than a look.
        if self.first_irq.load(Ordering::Relaxed) == 0 {
            return None;
        }
        match self.first_irq.swap(0, Ordering::Relaxed) {
            0 => None,
            tsc => {
                self.last_first_irq.store(tsc, Ordering::Relaxed);
                Some(Ticks::new(tsc))
            }
        }
    }

    /// The stamp that [`take_first_irq`](Self::take_first_irq) last gave: of the handler that ended the last sleep, if one did. For its own CPU.
    #[must_use]
    pub fn last_first_irq(&self) -> Ticks {
        Ticks::new(self.last_first_irq.load(Ordering::Relaxed))
    }

    /// Where a debug build counts the locks that this CPU holds.
    #[must_use]
    pub fn locks_held(&'static self) -> &'static AtomicU32 {
        &self.locks_held
    }

    /// Interrupts taken so far.
    #[must_use]
    pub fn interrupts(&self) -> u64 {
        self.interrupts.load(Ordering::Relaxed)
    }

    /// Interrupts without a handler so far, and the vector of the last one.
    #[must_use]
    pub fn unexpected(&self) -> (u64, u8) {
        (
            self.unexpected.load(Ordering::Relaxed),
            self.last_unexpected.load(Ordering::Relaxed),
        )
    }

    pub(super) fn count_interrupt(&self) {
        // Only this CPU writes it, with interrupts off.
        self.interrupts.store(
            self.interrupts.load(Ordering::Relaxed) + 1,
            Ordering::Relaxed,
        );
    }

    pub(super) fn count_unexpected(&self, vector: u8) {
        self.unexpected.store(
            self.unexpected.load(Ordering::Relaxed) + 1,
            Ordering::Relaxed,
        );
        self.last_unexpected.store(vector, Ordering::Relaxed);
    }

    /// What the MWAIT self-test found on this CPU; nothing works until it has run.
    #[must_use]
    pub fn mwait_test(&self) -> MwaitTest {
        self.mwait.get().copied().unwrap_or_default()
    }

    /// Keeps the result of the self-test. The first call counts.
    pub fn set_mwait_test(&self, found: MwaitTest) {
        self.mwait.call_once(|| found);
    }

    /// Writes 0 to IA32_SPEC_CTRL, and keeps what it was: a sleeping thread with restrictions slows its sibling.
    ///
    /// On the own CPU, with interrupts off.
    #[cfg(target_os = "none")]
    pub fn lay_down_spec_ctrl(&self) {
        let Ok(value @ 1..) = super::safe::rdmsr(SPEC_CTRL) else {
            return;
        };
        // SAFETY: 0 lifts restrictions of speculation only; this CPU runs nothing but its way into the sleep until they are back.
        if unsafe { super::safe::wrmsr(SPEC_CTRL, 0) }.is_ok() {
            self.spec_ctrl.store(value, Ordering::Relaxed);
            count(&self.spec_ctrl_cleared);
        }
    }

    /// Puts back what [`Self::lay_down_spec_ctrl`] took.
    #[cfg(target_os = "none")]
    pub fn take_up_spec_ctrl(&self) {
        let value = self.spec_ctrl.swap(0, Ordering::Relaxed);
        if value != 0 {
            // SAFETY: the value was there before. A CPU that took 0 takes it back.
            if unsafe { super::safe::wrmsr(SPEC_CTRL, value) }.is_ok() {
                count(&self.spec_ctrl_restored);
            }
        }
    }

    /// Releases AMX tiles, if this CPU has any, which would keep it out of deep states.
    #[cfg(target_os = "none")]
    pub fn release_tiles(&self) {
        if super::safe::release_tiles() {
            count(&self.tiles_released);
        }
    }

    /// What was done around its sleeps.
    #[cfg(target_os = "none")]
    pub fn around_sleeps(&self) -> StandIns {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StandIns {
            tiles_released: read(&self.tiles_released),
            spec_ctrl_cleared: read(&self.spec_ctrl_cleared),
            spec_ctrl_restored: read(&self.spec_ctrl_restored),
            ..StandIns::default()
        }
    }

    /// The stacks, once they are made.
    #[must_use]
    pub fn stacks(&self) -> Option<&Stacks> {
        self.stacks.get()
    }

    /// Gives a CPU its stacks: one that has not started yet, or the boot CPU to itself. The first call counts.
    pub fn give_stacks(&self, stacks: Stacks) {
        self.stacks.call_once(|| {
            self.tables.set_stacks(&stacks);
            self.start_stack.store(stacks.main.top(), Ordering::Release);
            stacks
        });
    }
}

/// One more, of what only the own CPU counts.
#[cfg(target_os = "none")]
fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// All areas, by CPU index.
static AREAS: [AtomicPtr<PerCpu>; MAX_CPUS] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_CPUS];

static BOOT_AREA: PerCpu = PerCpu::new(0);

// SAFETY: everything that another CPU reads is atomic; `tables` is touched by its own CPU only.
unsafe impl Sync for PerCpu {}
// SAFETY: as above.
unsafe impl Send for PerCpu {}

/// The area of the CPU that booted.
pub fn boot_area() -> &'static PerCpu {
    enlist(&BOOT_AREA);
    &BOOT_AREA
}

/// Makes the area of a CPU that has not started yet. `None` if it has one, or is out of range.
pub fn new_area(cpu: CpuId) -> Option<&'static PerCpu> {
    let slot = AREAS.get(cpu.index())?;
    if !slot.load(Ordering::Acquire).is_null() {
        return None;
    }
    let area: &'static PerCpu = Box::leak(Box::new(PerCpu::new(cpu.get())));
    enlist(area);
    Some(area)
}

fn enlist(area: &'static PerCpu) {
    let address = core::ptr::from_ref(area).cast_mut();
    area.this.store(address, Ordering::Relaxed);
    if let Some(slot) = AREAS.get(area.id().index()) {
        slot.store(address, Ordering::Release);
    }
}

/// The area of `cpu`, if it has one.
#[must_use]
pub fn get(cpu: CpuId) -> Option<&'static PerCpu> {
    let address = AREAS.get(cpu.index())?.load(Ordering::Acquire);
    // SAFETY: null or an area from `enlist`, which lives for ever.
    unsafe { address.as_ref() }
}

/// Every CPU that has an area, in order of index.
pub fn all() -> impl Iterator<Item = &'static PerCpu> {
    (0..MAX_CPUS as u32).filter_map(|i| get(CpuId::new(i)))
}

/// The area of the CPU that runs this. Callers keep interrupts off, as all of Lull does.
#[must_use]
#[inline]
pub fn this() -> &'static PerCpu {
    let address: *const PerCpu;
    // SAFETY: GS base points at this CPU's area from the first lines of Rust on (`cpu::init_boot_cpu`,
    // `cpu::init_this_cpu`), and its first word is its own address.
    unsafe {
        core::arch::asm!("mov {}, gs:[0]", out(reg) address, options(nostack, preserves_flags, readonly));
        &*address
    }
}

const _: () =
    assert!(core::mem::offset_of!(PerCpu, this) == 0 && size_of::<AtomicPtr<PerCpu>>() == 8);
