//! GDT, TSS and IDT: one GDT and TSS per CPU, one IDT for all.
//!
//! Only its own CPU loads and uses a [`Tables`]; the IDT is filled once by the first CPU, before the
//! others start. NMI, double fault and machine check run on stacks of their own (IST 1, 2, 3), since they
//! may hit with any stack pointer.
#![expect(unsafe_code, reason = "descriptor tables are loaded by address")]

use core::arch::asm;
use core::cell::UnsafeCell;

use super::descriptors::{CODE, DATA, TSS, gate, tss_descriptor};
use super::percpu::Stacks;

/// IST slot (1-based) of NMI.
pub const IST_NMI: u8 = 1;
/// IST slot of the double fault.
pub const IST_DOUBLE_FAULT: u8 = 2;
/// IST slot of the machine check.
pub const IST_MACHINE_CHECK: u8 = 3;

/// 64-bit task state segment. Intel SDM vol. 3, figure 9-11.
#[repr(C, packed(4))]
#[derive(Clone, Copy)]
struct TaskState {
    _reserved0: u32,      // 0x00
    rsp: [u64; 3],        // 0x04
    _reserved1: u64,      // 0x1c
    ist: [u64; 7],        // 0x24
    _reserved2: [u32; 2], // 0x5c
    _reserved3: u16,      // 0x64
    io_map_base: u16,     // 0x66
}

const _: () =
    assert!(size_of::<TaskState>() == 104 && core::mem::offset_of!(TaskState, ist) == 0x24);

/// The descriptor tables of one CPU.
pub struct Tables {
    gdt: UnsafeCell<[u64; 5]>,
    tss: UnsafeCell<TaskState>,
}

impl Tables {
    pub(super) const fn new() -> Self {
        Self {
            gdt: UnsafeCell::new([
                0,
                0x00AF_9B00_0000_FFFF, // code: 64-bit, present, accessed
                0x00CF_9300_0000_FFFF, // data: writable, present, accessed
                0,
                0,
            ]),
            tss: UnsafeCell::new(TaskState {
                _reserved0: 0,
                rsp: [0; 3],
                _reserved1: 0,
                ist: [0; 7],
                _reserved2: [0; 2],
                _reserved3: 0,
                io_map_base: 104,
            }),
        }
    }
}

#[repr(C, align(4096))]
struct Idt(UnsafeCell<[[u64; 2]; 256]>);
// SAFETY: written only by `fill_idt`, on the first CPU before any other runs; afterwards the CPUs only read it.
unsafe impl Sync for Idt {}
static IDT: Idt = Idt(UnsafeCell::new([[0; 2]; 256]));

// SAFETY: the entry stubs of cpu/asm/trap_entry.s; only the address is used.
unsafe extern "C" {
    static lull_trap_stubs: u8;
}

#[repr(C, packed)]
struct TablePointer {
    limit: u16,
    base: u64,
}

/// Fills the IDT; `with_ist` once the IST stacks of this CPU are in its TSS.
pub fn fill_idt(with_ist: bool) {
    let stubs = (&raw const lull_trap_stubs).addr() as u64;
    for vector in 0..256u64 {
        let ist = match (with_ist, vector) {
            (true, 2) => IST_NMI,
            (true, 8) => IST_DOUBLE_FAULT,
            (true, 18) => IST_MACHINE_CHECK,
            _ => 0,
        };
        // SAFETY: one CPU runs, with interrupts off (see `Idt`).
        unsafe { (*IDT.0.get())[vector as usize] = gate(stubs + 16 * vector, ist) };
    }
}

/// Address of the entry of `vector`: what its gate in the IDT leads to.
pub fn stub(vector: u8) -> u64 {
    (&raw const lull_trap_stubs).addr() as u64 + 16 * u64::from(vector)
}

impl Tables {
    /// Points the IST slots at these stacks. Before [`Self::load`], or on the running CPU itself.
    pub(in crate::cpu) fn set_stacks(&self, stacks: &Stacks) {
        // SAFETY: only the owning CPU, or the one that makes this area before the owner starts, comes here.
        let tss = unsafe { &mut *self.tss.get() };
        let mut ist = tss.ist;
        ist[usize::from(IST_NMI) - 1] = stacks.nmi.top();
        ist[usize::from(IST_DOUBLE_FAULT) - 1] = stacks.double_fault.top();
        ist[usize::from(IST_MACHINE_CHECK) - 1] = stacks.machine_check.top();
        tss.ist = ist;
    }

    /// Loads GDT, segments, TSS and IDT on the CPU that runs this; it must own this area.
    pub(in crate::cpu) fn load(&self) {
        let tss = tss_descriptor(
            self.tss.get().addr() as u64,
            size_of::<TaskState>() as u64 - 1,
        );
        let gdt = TablePointer {
            limit: 5 * 8 - 1,
            base: self.gdt.get().addr() as u64,
        };
        let idt = TablePointer {
            limit: 256 * 16 - 1,
            base: IDT.0.get().addr() as u64,
        };
        // SAFETY: the tables live for ever; the new selectors mean what the old ones meant; the TSS
        // descriptor is written afresh (not busy) before LTR.
        unsafe {
            (*self.gdt.get())[3] = tss[0];
            (*self.gdt.get())[4] = tss[1];
            asm!(
                "lgdt [{gdt}]",
                "push {code}",
                "lea {scratch}, [rip + 2f]",
                "push {scratch}",
                "retfq",
                "2:",
                "mov ds, {data:x}",
                "mov es, {data:x}",
                "mov ss, {data:x}",
                "ltr {tss:x}",
                "lidt [{idt}]",
                gdt = in(reg) &raw const gdt,
                idt = in(reg) &raw const idt,
                code = const CODE,
                scratch = out(reg) _,
                data = in(reg) u32::from(DATA),
                tss = in(reg) u32::from(TSS),
            );
        }
    }
}
