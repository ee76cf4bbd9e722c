//! The virtual machine control block (AMD APM vol. 2, appendix B): layout only.

use zerocopy::FromZeros;

/// Control area, bytes 0x000 to 0x3ff of the VMCB (table B-1).
#[derive(FromZeros)]
#[repr(C)]
pub struct Control {
    /// 0x000: reads (low half) and writes (high half) of control registers.
    pub intercept_cr: u32,
    /// 0x004: reads (low half) and writes (high half) of debug registers.
    pub intercept_dr: u32,
    /// 0x008: exceptions by vector.
    pub intercept_exceptions: u32,
    /// 0x00c: see [`misc1`].
    pub intercept_misc1: u32,
    /// 0x010: see [`misc2`].
    pub intercept_misc2: u32,
    /// 0x014: see [`misc3`].
    pub intercept_misc3: u32,
    _018: [u8; 0x24],
    /// 0x03c: ticks between two PAUSE instructions from which on they count as separate loops.
    pub pause_filter_threshold: u16,
    /// 0x03e: PAUSE instructions let through before an exit.
    pub pause_filter_count: u16,
    /// 0x040: physical address of the I/O permission map.
    pub iopm_base: u64,
    /// 0x048: physical address of the MSR permission map.
    pub msrpm_base: u64,
    /// 0x050: added to the TSC when the guest reads it.
    pub tsc_offset: u64,
    /// 0x058: address space identifier, not 0.
    pub asid: u32,
    /// 0x05c: see [`TlbControl`].
    pub tlb_control: u8,
    _05d: [u8; 3],
    /// 0x060: virtual interrupt control, see [`vintr`].
    pub vintr: u64,
    /// 0x068: bit 0 interrupt shadow, bit 1 guest interrupt mask (read-only).
    pub interrupt_shadow: u64,
    /// 0x070: why the guest stopped.
    pub exit_code: u64,
    /// 0x078: details of the exit.
    pub exit_info1: u64,
    /// 0x080: more details.
    pub exit_info2: u64,
    /// 0x088: the event whose delivery the exit interrupted, as `event_inj`.
    pub exit_int_info: u64,
    /// 0x090: bit 0 enables nested paging.
    pub nested_control: u64,
    /// 0x098: AVIC.
    pub avic_apic_bar: u64,
    /// 0x0a0: GHCB.
    pub ghcb: u64,
    /// 0x0a8: event to deliver at entry, see `event.rs`.
    pub event_inj: u64,
    /// 0x0b0: root of the nested page tables.
    pub nested_cr3: u64,
    /// 0x0b8: bit 0 LBR virtualization, bit 1 virtual VMLOAD and VMSAVE.
    pub virt_ext: u64,
    /// 0x0c0: see [`clean`].
    pub clean: u32,
    _0c4: u32,
    /// 0x0c8: address of the next instruction (with NRIP save).
    pub next_rip: u64,
    /// 0x0d0: instruction bytes fetched (with decode assists).
    pub fetched: u8,
    /// 0x0d1: the bytes.
    pub instruction: [u8; 15],
    /// 0x0e0: AVIC, VMSA and what may come.
    _0e0: [u8; 0x320],
}

/// A segment register in the save area.
#[derive(FromZeros, Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SegmentReg {
    /// 0x0.
    pub selector: u16,
    /// 0x2: 12 bits of attributes.
    pub attributes: u16,
    /// 0x4.
    pub limit: u32,
    /// 0x8.
    pub base: u64,
}

/// State save area, bytes 0x400 upwards of the VMCB (table B-2); offsets count from its start.
#[derive(FromZeros)]
#[repr(C)]
pub struct Save {
    /// 0x000.
    pub es: SegmentReg,
    /// 0x010.
    pub cs: SegmentReg,
    /// 0x020.
    pub ss: SegmentReg,
    /// 0x030.
    pub ds: SegmentReg,
    /// 0x040: by VMLOAD.
    pub fs: SegmentReg,
    /// 0x050: by VMLOAD.
    pub gs: SegmentReg,
    /// 0x060.
    pub gdtr: SegmentReg,
    /// 0x070: by VMLOAD.
    pub ldtr: SegmentReg,
    /// 0x080.
    pub idtr: SegmentReg,
    /// 0x090: by VMLOAD.
    pub tr: SegmentReg,
    _0a0: [u8; 0x2b],
    /// 0x0cb: current privilege level.
    pub cpl: u8,
    _0cc: u32,
    /// 0x0d0.
    pub efer: u64,
    _0d8: [u8; 0x70],
    /// 0x148.
    pub cr4: u64,
    /// 0x150.
    pub cr3: u64,
    /// 0x158.
    pub cr0: u64,
    /// 0x160.
    pub dr7: u64,
    /// 0x168.
    pub dr6: u64,
    /// 0x170.
    pub rflags: u64,
    /// 0x178.
    pub rip: u64,
    _180: [u8; 0x58],
    /// 0x1d8.
    pub rsp: u64,
    /// 0x1e0: shadow stacks.
    pub s_cet: u64,
    /// 0x1e8: shadow stacks.
    pub ssp: u64,
    /// 0x1f0: shadow stacks.
    pub isst_addr: u64,
    /// 0x1f8.
    pub rax: u64,
    /// 0x200: this and what follows up to `sysenter_eip` by VMLOAD.
    pub star: u64,
    /// 0x208.
    pub lstar: u64,
    /// 0x210.
    pub cstar: u64,
    /// 0x218.
    pub sfmask: u64,
    /// 0x220.
    pub kernel_gs_base: u64,
    /// 0x228.
    pub sysenter_cs: u64,
    /// 0x230.
    pub sysenter_esp: u64,
    /// 0x238.
    pub sysenter_eip: u64,
    /// 0x240.
    pub cr2: u64,
    _248: [u8; 0x20],
    /// 0x268: the guest's PAT under nested paging.
    pub g_pat: u64,
    /// 0x270: debug control, with LBR virtualization only.
    pub dbgctl: u64,
    /// 0x278: last branch records, unused.
    pub lbr: [u64; 4],
    _298: [u8; 0x48],
    /// 0x2e0: speculation control, where the processor virtualizes it.
    pub spec_ctrl: u64,
    _2e8: [u8; 0x918],
}

/// The whole page.
#[derive(FromZeros)]
#[repr(C, align(4096))]
pub struct Vmcb {
    /// 0x000.
    pub control: Control,
    /// 0x400.
    pub save: Save,
}

macro_rules! assert_layout {
    ($type:ty, size $size:literal, $($field:ident @ $offset:literal),+ $(,)?) => {
        const _: () = {
            assert!(core::mem::size_of::<$type>() == $size);
            $(assert!(core::mem::offset_of!($type, $field) == $offset);)+
        };
    };
}

assert_layout!(Control, size 0x400,
    intercept_cr @ 0x000, intercept_dr @ 0x004, intercept_exceptions @ 0x008, intercept_misc1 @ 0x00c,
    intercept_misc2 @ 0x010, intercept_misc3 @ 0x014, pause_filter_threshold @ 0x03c, pause_filter_count @ 0x03e,
    iopm_base @ 0x040, msrpm_base @ 0x048, tsc_offset @ 0x050, asid @ 0x058, tlb_control @ 0x05c, vintr @ 0x060,
    interrupt_shadow @ 0x068, exit_code @ 0x070, exit_info1 @ 0x078, exit_info2 @ 0x080, exit_int_info @ 0x088,
    nested_control @ 0x090, avic_apic_bar @ 0x098, ghcb @ 0x0a0, event_inj @ 0x0a8, nested_cr3 @ 0x0b0,
    virt_ext @ 0x0b8, clean @ 0x0c0, next_rip @ 0x0c8, fetched @ 0x0d0, instruction @ 0x0d1);
assert_layout!(SegmentReg, size 0x10, selector @ 0x0, attributes @ 0x2, limit @ 0x4, base @ 0x8);
assert_layout!(Save, size 0xc00,
    es @ 0x000, cs @ 0x010, ss @ 0x020, ds @ 0x030, fs @ 0x040, gs @ 0x050, gdtr @ 0x060, ldtr @ 0x070, idtr @ 0x080,
    tr @ 0x090, cpl @ 0x0cb, efer @ 0x0d0, cr4 @ 0x148, cr3 @ 0x150, cr0 @ 0x158, dr7 @ 0x160, dr6 @ 0x168,
    rflags @ 0x170, rip @ 0x178, rsp @ 0x1d8, s_cet @ 0x1e0, ssp @ 0x1e8, isst_addr @ 0x1f0, rax @ 0x1f8,
    star @ 0x200, lstar @ 0x208, cstar @ 0x210, sfmask @ 0x218, kernel_gs_base @ 0x220, sysenter_cs @ 0x228,
    sysenter_esp @ 0x230, sysenter_eip @ 0x238, cr2 @ 0x240, g_pat @ 0x268, dbgctl @ 0x270, lbr @ 0x278,
    spec_ctrl @ 0x2e0);
assert_layout!(Vmcb, size 0x1000, control @ 0x000, save @ 0x400);

/// Bit of `intercept_cr`: writes of CR8 (the upper half is for writes).
pub const INTERCEPT_CR8_WRITE: u32 = 1 << (16 + 8);

/// Bits of `intercept_misc1`.
pub mod misc1 {
    /// Physical interrupt.
    pub const INTR: u32 = 1 << 0;
    /// Physical NMI.
    pub const NMI: u32 = 1 << 1;
    /// Physical INIT.
    pub const INIT: u32 = 1 << 3;
    /// Virtual interrupt about to be taken.
    pub const VINTR: u32 = 1 << 4;
    /// RDPMC.
    pub const RDPMC: u32 = 1 << 15;
    /// CPUID.
    pub const CPUID: u32 = 1 << 18;
    /// IRET.
    pub const IRET: u32 = 1 << 20;
    /// INVD.
    pub const INVD: u32 = 1 << 22;
    /// PAUSE.
    pub const PAUSE: u32 = 1 << 23;
    /// HLT.
    pub const HLT: u32 = 1 << 24;
    /// INVLPGA.
    pub const INVLPGA: u32 = 1 << 26;
    /// Port I/O, by the permission map.
    pub const IO: u32 = 1 << 27;
    /// RDMSR and WRMSR, by the permission map.
    pub const MSR: u32 = 1 << 28;
    /// Shutdown (triple fault).
    pub const SHUTDOWN: u32 = 1 << 31;
}

/// Bits of `intercept_misc2`.
pub mod misc2 {
    /// VMRUN; the processor insists on it.
    pub const VMRUN: u32 = 1 << 0;
    /// VMMCALL.
    pub const VMMCALL: u32 = 1 << 1;
    /// VMLOAD.
    pub const VMLOAD: u32 = 1 << 2;
    /// VMSAVE.
    pub const VMSAVE: u32 = 1 << 3;
    /// STGI.
    pub const STGI: u32 = 1 << 4;
    /// CLGI.
    pub const CLGI: u32 = 1 << 5;
    /// SKINIT.
    pub const SKINIT: u32 = 1 << 6;
    /// WBINVD and WBNOINVD.
    pub const WBINVD: u32 = 1 << 9;
    /// MONITOR.
    pub const MONITOR: u32 = 1 << 10;
    /// MWAIT, always.
    pub const MWAIT: u32 = 1 << 11;
    /// XSETBV.
    pub const XSETBV: u32 = 1 << 13;
    /// RDPRU.
    pub const RDPRU: u32 = 1 << 14;
}

/// Bits of `intercept_misc3`.
pub mod misc3 {
    /// INVLPGB, always.
    pub const INVLPGB: u32 = 1 << 0;
    /// INVLPGB that the guest is not allowed.
    pub const INVLPGB_ILLEGAL: u32 = 1 << 1;
    /// MCOMMIT.
    pub const MCOMMIT: u32 = 1 << 3;
    /// TLBSYNC.
    pub const TLBSYNC: u32 = 1 << 4;
}

/// Fields of `vintr`.
pub mod vintr {
    /// CR8 of the guest.
    pub const TPR: u64 = 0xf;
    /// A virtual interrupt is pending.
    pub const IRQ: u64 = 1 << 8;
    /// Priority of the virtual interrupt.
    pub const PRIORITY_SHIFT: u32 = 16;
    /// Mask of the priority.
    pub const PRIORITY: u64 = 0xf << PRIORITY_SHIFT;
    /// The virtual interrupt ignores the task priority.
    pub const IGNORE_TPR: u64 = 1 << 20;
    /// The guest's IF and CR8 do not govern physical interrupts.
    pub const MASKING: u64 = 1 << 24;
    /// Where the vector of the virtual interrupt begins.
    pub const VECTOR_SHIFT: u32 = 32;
    /// Mask of the vector.
    pub const VECTOR: u64 = 0xff << VECTOR_SHIFT;
}

/// Groups of fields that the processor may keep from the last entry (AMD APM vol. 2, 15.15.3).
pub mod clean {
    /// Intercepts, TSC offset, pause filter.
    pub const INTERCEPTS: u32 = 1 << 0;
    /// Addresses of the permission maps.
    pub const PERMISSION_MAPS: u32 = 1 << 1;
    /// Nested paging: root, PAT.
    pub const NESTED: u32 = 1 << 4;
}

/// Values of `tlb_control`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TlbControl {
    /// Keep all.
    Keep = 0,
    /// Flush the whole TLB, all ASIDs.
    FlushAll = 1,
    /// Flush what belongs to the ASID of this VMCB (where offered).
    FlushAsid = 3,
}
