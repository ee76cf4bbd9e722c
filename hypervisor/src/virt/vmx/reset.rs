//! Start states of a vCPU, as VMCS fields (SDM vol. 3, table 11-1; Xen's PVH boot ABI).

use super::capability::Fixed;
use super::field::{Field, SegmentSlot};
use super::segment;
use super::vmcs::Vmcs;
use crate::virt::{Gpr, SegmentAttributes, StartState};

const CR0_PE: u64 = 1 << 0;
/// Extension type: reads as one, always.
const CR0_ET: u64 = 1 << 4;
const CR0_NE: u64 = 1 << 5;
const CR0_NW: u64 = 1 << 29;
const CR0_CD: u64 = 1 << 30;
const CR0_PG: u64 = 1 << 31;
const RFLAGS_RESET: u64 = 1 << 1;
const DR7_RESET: u64 = 0x400;
const PAT_RESET: u64 = 0x0007_0406_0007_0406;

const CODE: SegmentAttributes = SegmentAttributes::from_bits_retain(0x09b);
const DATA: SegmentAttributes = SegmentAttributes::from_bits_retain(0x093);
const LDT: SegmentAttributes = SegmentAttributes::from_bits_retain(0x082);
const BUSY_TSS: SegmentAttributes = SegmentAttributes::from_bits_retain(0x08b);
/// 32-bit, limit in pages.
const FLAT: SegmentAttributes = SegmentAttributes::from_bits_retain(0xc00);

/// Bits of CR0 that the guest cannot change by itself: NE, which VMX insists on, and the cache bits, which are the physical CPU's.
/// What the guest believes of them is in the read shadow.
pub fn cr0_mask(fixed: Fixed) -> u64 {
    // With unrestricted guest, PE and PG are the guest's.
    fixed.ones & !(CR0_PE | CR0_PG) | CR0_NE | CR0_NW | CR0_CD
}

/// CR0 as the processor has it while the guest believes in `value`.
pub fn real_cr0(fixed: Fixed, value: u64) -> u64 {
    value & !(CR0_NW | CR0_CD) | fixed.ones & !(CR0_PE | CR0_PG) | CR0_NE
}

/// Whether the processor would take `value` for CR0, as far as it can be told without the other registers.
pub fn cr0_is_legal(value: u64) -> bool {
    value >> 32 == 0
        && (value & CR0_PG == 0 || value & CR0_PE != 0)
        && (value & CR0_NW == 0 || value & CR0_CD != 0)
}

fn put(
    vmcs: &Vmcs,
    slot: SegmentSlot,
    selector: u16,
    attributes: SegmentAttributes,
    limit: u32,
    base: u64,
) {
    vmcs.write(slot.selector(), u64::from(selector));
    vmcs.write(slot.rights(), u64::from(segment::rights(attributes)));
    vmcs.write(slot.limit(), u64::from(limit));
    vmcs.write(slot.base(), base);
}

const DATA_SEGMENTS: [SegmentSlot; 5] = [
    SegmentSlot::Es,
    SegmentSlot::Ss,
    SegmentSlot::Ds,
    SegmentSlot::Fs,
    SegmentSlot::Gs,
];

/// Writes the start state into the guest-state area, and returns the general registers in encoding order.
///
/// CR0.CD and CR0.NW are clear, although power-up sets them: INIT leaves them as the firmware did, and a guest has none.
/// RDX is zero; real processors put their signature there.
pub fn reset(vmcs: &Vmcs, cr0: Fixed, cr4: Fixed, start: StartState) -> [u64; 16] {
    for slot in DATA_SEGMENTS {
        put(vmcs, slot, 0, DATA, 0xffff, 0);
    }
    put(vmcs, SegmentSlot::Cs, 0xf000, CODE, 0xffff, 0xffff_0000);
    put(vmcs, SegmentSlot::Ldtr, 0, LDT, 0xffff, 0);
    put(vmcs, SegmentSlot::Tr, 0, BUSY_TSS, 0xffff, 0);
    let mut guest_cr0 = CR0_ET;
    let mut rip = 0xfff0;
    let mut gprs = [0; 16];
    match start {
        StartState::WaitForSipi => {}
        StartState::Sipi { vector } => {
            let (selector, base) = (u16::from(vector) << 8, u64::from(vector) << 12);
            put(vmcs, SegmentSlot::Cs, selector, CODE, 0xffff, base);
            rip = 0;
        }
        StartState::Pvh { entry, start_info } => {
            for slot in DATA_SEGMENTS {
                put(vmcs, slot, 0x10, DATA.union(FLAT), u32::MAX, 0);
            }
            put(vmcs, SegmentSlot::Cs, 0x08, CODE.union(FLAT), u32::MAX, 0);
            put(vmcs, SegmentSlot::Tr, 0x18, BUSY_TSS, 0x67, 0);
            guest_cr0 |= CR0_PE;
            rip = u64::from(entry);
            gprs[Gpr::Rbx.index()] = u64::from(start_info);
        }
    }
    for (field, value) in [
        (Field::GDTR_LIMIT, 0xffff),
        (Field::GDTR_BASE, 0),
        (Field::IDTR_LIMIT, 0xffff),
        (Field::IDTR_BASE, 0),
        (Field::CR0, real_cr0(cr0, guest_cr0)),
        (Field::CR0_SHADOW, guest_cr0),
        (Field::CR3, 0),
        (Field::CR4, cr4.ones),
        (Field::CR4_SHADOW, 0),
        (Field::DR7, DR7_RESET),
        (Field::RFLAGS, RFLAGS_RESET),
        (Field::RIP, rip),
        (Field::RSP, 0),
        (Field::EFER, 0),
        (Field::PAT, PAT_RESET),
        (Field::DEBUGCTL, 0),
        (Field::SYSENTER_CS, 0),
        (Field::SYSENTER_ESP, 0),
        (Field::SYSENTER_EIP, 0),
        (Field::INTERRUPTIBILITY, 0),
        (Field::ACTIVITY, 0),
        (Field::PENDING_DEBUG, 0),
    ] {
        vmcs.write(field, value);
    }
    gprs
}

#[cfg(test)]
mod tests {
    use super::*;

    const CR0: Fixed = Fixed {
        ones: 0x8000_0021,
        may: 0xffff_ffff,
    };
    const CR4: Fixed = Fixed {
        ones: 0x2000,
        may: 0x0037_67ff,
    };

    fn started(start: StartState) -> (Vmcs, [u64; 16]) {
        let vmcs = Vmcs::new(1);
        vmcs.make_current();
        let gprs = reset(&vmcs, CR0, CR4, start);
        (vmcs, gprs)
    }

    fn shown(vmcs: &Vmcs, slot: SegmentSlot) -> [u64; 4] {
        [slot.selector(), slot.rights(), slot.limit(), slot.base()].map(|field| vmcs.read(field))
    }

    #[test]
    fn pvh_is_flat_32_bit_without_paging() {
        let (vmcs, gprs) = started(StartState::Pvh {
            entry: 0x10_0020,
            start_info: 0x7000,
        });
        assert_eq!(
            (vmcs.read(Field::CR0), vmcs.read(Field::CR0_SHADOW)),
            (0x31, 0x11)
        );
        assert_eq!(
            (vmcs.read(Field::CR4), vmcs.read(Field::CR4_SHADOW)),
            (0x2000, 0)
        );
        assert_eq!((vmcs.read(Field::RIP), gprs[3]), (0x10_0020, 0x7000));
        assert_eq!(gprs.iter().filter(|&&value| value != 0).count(), 1);
        assert_eq!(shown(&vmcs, SegmentSlot::Cs), [8, 0xc09b, 0xffff_ffff, 0]);
        assert_eq!(shown(&vmcs, SegmentSlot::Ss), [16, 0xc093, 0xffff_ffff, 0]);
        assert_eq!(shown(&vmcs, SegmentSlot::Tr), [0x18, 0x8b, 0x67, 0]);
    }

    #[test]
    fn sipi_starts_at_its_page_in_real_mode() {
        let (vmcs, gprs) = started(StartState::Sipi { vector: 0x9a });
        assert_eq!(
            shown(&vmcs, SegmentSlot::Cs),
            [0x9a00, 0x9b, 0xffff, 0x9_a000]
        );
        assert_eq!((vmcs.read(Field::RIP), vmcs.read(Field::CR0) & 1), (0, 0));
        assert_eq!(gprs, [0; 16]);
    }

    #[test]
    fn init_is_the_reset_vector() {
        let (vmcs, _) = started(StartState::WaitForSipi);
        assert_eq!(
            vmcs.read(SegmentSlot::Cs.base()) + vmcs.read(Field::RIP),
            0xffff_fff0
        );
        assert_eq!(
            (vmcs.read(Field::DR7), vmcs.read(Field::PAT)),
            (0x400, PAT_RESET)
        );
    }

    #[test]
    fn the_guest_may_believe_in_caches_that_are_off() {
        assert_eq!(cr0_mask(CR0), 0x6000_0020);
        assert_eq!(real_cr0(CR0, 0x6000_0010), 0x30);
        assert_eq!(real_cr0(CR0, 0x8000_0011), 0x8000_0031);
        for (value, legal) in [
            (0x6000_0010, true),
            (0x2000_0010, false),
            (0x8000_0010, false),
            (0x1_0000_0011, false),
            (0x8000_0011, true),
        ] {
            assert_eq!(cr0_is_legal(value), legal, "{value:#x}");
        }
    }
}
