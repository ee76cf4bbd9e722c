//! Start states of a vCPU, as register contents (AMD APM vol. 2, table 14-1; Xen's PVH boot ABI).

use crate::virt::{Gpr, SegmentAttributes, StartState};

use super::vmcb::{Save, SegmentReg};

/// EFER.SVME: the processor insists on it, the guest never sees it.
pub const EFER_SVME: u64 = 1 << 12;
const CR0_PE: u64 = 1 << 0;
/// Extension type: reads as one, always.
const CR0_ET: u64 = 1 << 4;
const RFLAGS_RESET: u64 = 1 << 1;
const DR6_RESET: u64 = 0xffff_0ff0;
const DR7_RESET: u64 = 0x400;
const PAT_RESET: u64 = 0x0007_0406_0007_0406;

const CODE: SegmentAttributes = SegmentAttributes::from_bits_retain(0x09b);
const DATA: SegmentAttributes = SegmentAttributes::from_bits_retain(0x093);
const LDT: SegmentAttributes = SegmentAttributes::from_bits_retain(0x082);
const BUSY_TSS: SegmentAttributes = SegmentAttributes::from_bits_retain(0x08b);
/// 32-bit, limit in pages.
const FLAT: SegmentAttributes = SegmentAttributes::from_bits_retain(0xc00);

const fn segment(
    selector: u16,
    attributes: SegmentAttributes,
    limit: u32,
    base: u64,
) -> SegmentReg {
    SegmentReg {
        selector,
        attributes: attributes.bits(),
        limit,
        base,
    }
}

/// Writes the start state into the save area, and returns the other general registers in encoding order.
///
/// CR0.CD and CR0.NW are clear, although power-up sets them: INIT leaves them as the firmware did, and a guest has none.
/// RDX is zero; real processors put their signature there.
pub fn reset(save: &mut Save, start: StartState) -> [u64; 16] {
    let real_data = segment(0, DATA, 0xffff, 0);
    (save.es, save.ss, save.ds, save.fs, save.gs) =
        (real_data, real_data, real_data, real_data, real_data);
    save.cs = segment(0xf000, CODE, 0xffff, 0xffff_0000);
    save.gdtr = segment(0, SegmentAttributes::empty(), 0xffff, 0);
    save.idtr = save.gdtr;
    save.ldtr = segment(0, LDT, 0xffff, 0);
    save.tr = segment(0, BUSY_TSS, 0xffff, 0);
    save.cpl = 0;
    save.efer = EFER_SVME;
    (save.cr0, save.cr2, save.cr3, save.cr4) = (CR0_ET, 0, 0, 0);
    (save.dr6, save.dr7) = (DR6_RESET, DR7_RESET);
    save.rflags = RFLAGS_RESET;
    (save.rip, save.rsp, save.rax) = (0xfff0, 0, 0);
    (
        save.star,
        save.lstar,
        save.cstar,
        save.sfmask,
        save.kernel_gs_base,
    ) = (0, 0, 0, 0, 0);
    (save.sysenter_cs, save.sysenter_esp, save.sysenter_eip) = (0, 0, 0);
    (
        save.s_cet,
        save.ssp,
        save.isst_addr,
        save.dbgctl,
        save.spec_ctrl,
    ) = (0, 0, 0, 0, 0);
    save.g_pat = PAT_RESET;

    let mut gprs = [0; 16];
    match start {
        StartState::WaitForSipi => {}
        StartState::Sipi { vector } => {
            save.cs = segment(
                u16::from(vector) << 8,
                CODE,
                0xffff,
                u64::from(vector) << 12,
            );
            save.rip = 0;
        }
        StartState::Pvh { entry, start_info } => {
            let flat_data = segment(0x10, DATA.union(FLAT), u32::MAX, 0);
            (save.es, save.ss, save.ds, save.fs, save.gs) =
                (flat_data, flat_data, flat_data, flat_data, flat_data);
            save.cs = segment(0x08, CODE.union(FLAT), u32::MAX, 0);
            save.tr = segment(0x18, BUSY_TSS, 0x67, 0);
            save.cr0 |= CR0_PE;
            save.rip = u64::from(entry);
            gprs[Gpr::Rbx.index()] = u64::from(start_info);
        }
    }
    gprs
}

#[cfg(test)]
mod tests {
    use super::super::page::zeroed;
    use super::super::vmcb::Vmcb;
    use super::*;

    fn started(start: StartState) -> (alloc::boxed::Box<Vmcb>, [u64; 16]) {
        let mut vmcb = zeroed::<Vmcb>();
        vmcb.save.star = 99;
        vmcb.save.kernel_gs_base = 99;
        let gprs = reset(&mut vmcb.save, start);
        (vmcb, gprs)
    }

    #[test]
    fn pvh_is_flat_32_bit_without_paging() {
        let (vmcb, gprs) = started(StartState::Pvh {
            entry: 0x10_0020,
            start_info: 0x7000,
        });
        let save = &vmcb.save;
        assert_eq!(
            (save.cr0, save.cr4, save.rflags, save.efer),
            (0x11, 0, 2, 0x1000)
        );
        assert_eq!((save.rip, gprs[3]), (0x10_0020, 0x7000));
        assert_eq!(gprs.iter().filter(|&&value| value != 0).count(), 1);
        assert_eq!(
            save.cs,
            SegmentReg {
                selector: 8,
                attributes: 0xc9b,
                limit: u32::MAX,
                base: 0
            }
        );
        assert_eq!(
            save.ds,
            SegmentReg {
                selector: 0x10,
                attributes: 0xc93,
                limit: u32::MAX,
                base: 0
            }
        );
        assert_eq!((save.ss, save.es), (save.ds, save.ds));
        assert_eq!(
            (save.tr.base, save.tr.limit, save.tr.attributes),
            (0, 0x67, 0x8b)
        );
        assert_eq!(
            (save.star, save.kernel_gs_base),
            (0, 0),
            "nothing stays from before"
        );
    }

    #[test]
    fn sipi_starts_at_its_page_in_real_mode() {
        let (vmcb, gprs) = started(StartState::Sipi { vector: 0x9a });
        assert_eq!(
            vmcb.save.cs,
            SegmentReg {
                selector: 0x9a00,
                attributes: 0x9b,
                limit: 0xffff,
                base: 0x9_a000
            }
        );
        assert_eq!((vmcb.save.rip, vmcb.save.cr0 & 1), (0, 0));
        assert_eq!(gprs, [0; 16]);
    }

    #[test]
    fn init_is_the_reset_vector() {
        let (vmcb, _) = started(StartState::WaitForSipi);
        assert_eq!(vmcb.save.cs.base + vmcb.save.rip, 0xffff_fff0);
        assert_eq!(
            (vmcb.save.dr6, vmcb.save.dr7, vmcb.save.g_pat),
            (0xffff_0ff0, 0x400, 0x0007_0406_0007_0406)
        );
    }
}
