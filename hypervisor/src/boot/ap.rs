//! The trampoline of the other CPUs: a code page and a parameter page below 1 MiB.
//!
//! [`install`] copies the code; [`prepare`] makes area and stacks of one CPU and enters them under its APIC id.
//! A CPU that starts takes its area out of the table by an exchange: one that answers late, or twice, finds
//! its own area or none, never another's. So all CPUs may be started at once, in any order.
//!
//! Called by the boot CPU only. The code page is executable and not writable, the parameters the reverse.
#![expect(unsafe_code, reason = "code is copied to where CPUs start")]

use core::fmt;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};

use lull_core::units::CpuId;

use crate::cpu::percpu::{self, PerCpu, Stacks};
use crate::cpu::regs;
use crate::mm::frames::FRAME;
use crate::mm::paging::Access;
use crate::mm::{self, MmError, Range};

core::arch::global_asm!(
    include_str!("asm/ap_trampoline.s"),
    start_stack = const percpu::START_STACK_OFFSET,
    options(att_syntax)
);

// SAFETY: labels of the trampoline; only their addresses are used.
unsafe extern "C" {
    static lull_ap_trampoline: u8;
    static lull_ap_trampoline_end: u8;
    static lull_ap_protected: u8;
    static lull_ap_long: u8;
}

/// APIC ids that the table has room for: what 8 bits can name.
const IDS: usize = 256;

/// The parameter page. Offsets are used by `asm/ap_trampoline.s`, each plus 0x1000.
#[repr(C)]
struct Parameters {
    gdt_limit: u16,          // 0x00
    gdt_base: [u16; 2],      // 0x02
    _pad0: u16,              // 0x06
    protected: FarPointer,   // 0x08
    long: FarPointer,        // 0x10
    cr4: u32,                // 0x18
    cr3: u32,                // 0x1c
    efer: u32,               // 0x20
    _pad1: u32,              // 0x24
    entry: u64,              // 0x28
    _pad2: [u64; 2],         // 0x30
    areas: [AtomicU64; IDS], // 0x40
    gdt: [u64; 4],           // 0x840
}

#[repr(C)]
struct FarPointer {
    offset: u32,
    selector: u16,
    _pad: u16,
}

const _: () = assert!(
    offset_of!(Parameters, protected) == 0x08
        && offset_of!(Parameters, long) == 0x10
        && offset_of!(Parameters, cr4) == 0x18
        && offset_of!(Parameters, entry) == 0x28
        && offset_of!(Parameters, areas) == 0x40
        && size_of::<Parameters>() <= FRAME as usize
);

/// Selector of 32-bit code in the trampoline's GDT.
const CODE32: u16 = 24;
/// Selector of 64-bit code, the same as in every later GDT.
const CODE64: u16 = 8;

/// Address of the code page; 0 = not installed.
static PAGE: AtomicU64 = AtomicU64::new(0);

/// Why a CPU cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApError {
    /// [`install`] was not called, or failed.
    NotInstalled,
    /// No room below 1 MiB, or no memory for stacks.
    Memory(MmError),
    /// The APIC id does not fit into 8 bits.
    ApicId(u32),
    /// The CPU, or its APIC id, has an area already.
    Twice(CpuId),
}

impl fmt::Display for ApError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInstalled => f.write_str("the start-up code is not installed"),
            Self::Memory(e) => write!(f, "no memory to start it: {e}"),
            Self::ApicId(id) => write!(f, "APIC id {id}: only ids below {IDS} can be started"),
            Self::Twice(cpu) => write!(f, "{cpu} was prepared already"),
        }
    }
}

impl core::error::Error for ApError {}

impl From<MmError> for ApError {
    fn from(e: MmError) -> Self {
        Self::Memory(e)
    }
}

/// Bytes of the stack that the dispatch loop of a CPU runs on.
pub const MAIN_STACK: u64 = 64 << 10;
/// Bytes of each of the stacks for NMI, double fault and machine check.
pub const IST_STACK: u64 = 16 << 10;

/// Makes the three IST stacks of a CPU, beside its main stack.
///
/// # Errors
/// No memory.
pub fn make_stacks(main: crate::mm::stack::Stack) -> Result<Stacks, MmError> {
    Ok(Stacks {
        main,
        nmi: mm::new_stack(IST_STACK)?,
        double_fault: mm::new_stack(IST_STACK)?,
        machine_check: mm::new_stack(IST_STACK)?,
    })
}

/// Puts the trampoline into two free pages below 1 MiB, and gives the SIPI vector that names them.
///
/// # Errors
/// There are no two such pages.
pub fn install() -> Result<u8, ApError> {
    if let Some(vector) = sipi_vector() {
        return Ok(vector);
    }
    let pages = mm::allocate_below(2 * FRAME, FRAME, 0x10_0000).map_err(MmError::from)?;
    let base = pages.start;
    let code = &raw const lull_ap_trampoline;
    let offset_of_label = |label: *const u8| (label.addr() - code.addr()) as u32;
    let len = offset_of_label(&raw const lull_ap_trampoline_end) as usize;
    let base32 = base as u32;
    let far = |offset, selector| FarPointer {
        offset: base32 + offset,
        selector,
        _pad: 0,
    };
    let gdt_base = base32 + FRAME as u32 + offset_of!(Parameters, gdt) as u32;
    let parameters = Parameters {
        gdt_limit: 4 * 8 - 1,
        gdt_base: [gdt_base as u16, (gdt_base >> 16) as u16],
        _pad0: 0,
        protected: far(offset_of_label(&raw const lull_ap_protected), CODE32),
        long: far(offset_of_label(&raw const lull_ap_long), CODE64),
        cr4: regs::cr4() as u32 & !regs::CR4_NOT_YET as u32,
        cr3: mm::root() as u32,
        efer: EFER_START,
        _pad1: 0,
        entry: crate::init::ap_entry as *const () as u64,
        _pad2: [0; 2],
        areas: [const { AtomicU64::new(0) }; IDS],
        gdt: [
            0,
            0x00AF_9B00_0000_FFFF, // 64-bit code
            0x00CF_9300_0000_FFFF, // data
            0x00CF_9B00_0000_FFFF, // 32-bit code
        ],
    };
    assert!(len <= FRAME as usize, "the trampoline is one page");
    // SAFETY: both pages are ours, mapped and writable, and no CPU runs there yet.
    unsafe {
        core::ptr::copy_nonoverlapping(
            code,
            core::ptr::with_exposed_provenance_mut(base as usize),
            len,
        );
        parameters_at(base).write(parameters);
    }
    mm::set_access(Range::new(base, FRAME), Some(Access::Code))?;
    PAGE.store(base, Ordering::Release);
    Ok((base / FRAME) as u8)
}

/// EFER bits that a CPU needs before paging: long mode and no-execute.
const EFER_START: u32 = 1 << 8 | 1 << 11;

fn parameters_at(base: u64) -> *mut Parameters {
    core::ptr::with_exposed_provenance_mut((base + FRAME) as usize)
}

/// The vector of the SIPI that starts a CPU in the trampoline, once it is installed.
#[must_use]
pub fn sipi_vector() -> Option<u8> {
    match PAGE.load(Ordering::Acquire) {
        0 => None,
        page => Some((page / FRAME) as u8),
    }
}

/// Makes area and stacks of `cpu`, and lets the CPU with this APIC id have them.
///
/// # Errors
/// See [`ApError`].
pub fn prepare(cpu: CpuId, apic_id: u32) -> Result<&'static PerCpu, ApError> {
    let page = PAGE.load(Ordering::Acquire);
    if page == 0 {
        return Err(ApError::NotInstalled);
    }
    let id = usize::try_from(apic_id)
        .ok()
        .filter(|id| *id < IDS)
        .ok_or(ApError::ApicId(apic_id))?;
    // SAFETY: `install` wrote the parameters; the table in them is atomic, and nothing else of them is touched.
    let slot = unsafe {
        &(&raw const (*parameters_at(page)).areas)
            .as_ref()
            .ok_or(ApError::NotInstalled)?[id]
    };
    if slot.load(Ordering::Acquire) != 0 {
        return Err(ApError::Twice(cpu));
    }
    let stacks = make_stacks(mm::new_stack(MAIN_STACK)?)?;
    let area = percpu::new_area(cpu).ok_or(ApError::Twice(cpu))?;
    area.set_apic_id(apic_id);
    area.give_stacks(stacks);
    slot.store(
        core::ptr::from_ref(area).expose_provenance() as u64,
        Ordering::Release,
    );
    Ok(area)
}

/// Takes back the permission to start: a CPU that answers from now on stops in the trampoline. Tells whether it was
/// in time; if not, the CPU is on its way.
pub fn withdraw(apic_id: u32) -> bool {
    let page = PAGE.load(Ordering::Acquire);
    if page == 0 || apic_id as usize >= IDS {
        return false;
    }
    // SAFETY: as in `prepare`.
    unsafe { (&raw const (*parameters_at(page)).areas).as_ref() }
        .and_then(|areas| areas.get(apic_id as usize))
        .is_some_and(|slot| slot.swap(0, Ordering::AcqRel) != 0)
}
