//! What a CPU says of itself.

use crate::cstate::models::Identity;

bitflags::bitflags! {
    /// IA32_ARCH_CAPABILITIES (SDM vol. 4, table 2-2): what the CPU does not have, or has another way for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct ArchCapabilities: u64 {
        /// No Meltdown, no L1TF.
        const RDCL_NO = 1 << 0;
        /// Enhanced IBRS.
        const IBRS_ALL = 1 << 1;
        /// Returns use indirect predictions when the return stack is empty.
        const RSBA = 1 << 2;
        /// The outer hypervisor flushes the L1 cache.
        const SKIP_L1DFL_VMENTRY = 1 << 3;
        /// No SSB.
        const SSB_NO = 1 << 4;
        /// No MDS.
        const MDS_NO = 1 << 5;
        /// No TAA.
        const TAA_NO = 1 << 8;
        /// No MMIO stale data, first part.
        const SBDR_SSDP_NO = 1 << 13;
        /// Second part.
        const FBSDP_NO = 1 << 14;
        /// Third part.
        const PSDP_NO = 1 << 15;
        /// VERW clears fill buffers.
        const FB_CLEAR = 1 << 17;
        /// No BHI.
        const BHI_NO = 1 << 20;
        /// GDS is mitigated by microcode.
        const GDS_CTRL = 1 << 25;
        /// No GDS.
        const GDS_NO = 1 << 26;
        /// No RFDS.
        const RFDS_NO = 1 << 27;
        /// VERW clears register files.
        const RFDS_CLEAR = 1 << 28;
        /// No ITS.
        const ITS_NO = 1 << 62;
        /// Others, which do not matter here.
        const _ = !0;
    }
}

bitflags::bitflags! {
    /// Bits of CPUID.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Offers: u32 {
        /// IBPB: leaf 7 EDX bit 26, or 8000_0008h EBX bit 12.
        const IBPB = 1 << 0;
        /// VERW clears buffers: leaf 7 EDX bit 10.
        const MD_CLEAR = 1 << 1;
        /// IA32_FLUSH_CMD: leaf 7 EDX bit 28.
        const L1D_FLUSH = 1 << 2;
        /// SRBDS is mitigated by microcode: leaf 7 EDX bit 9.
        const SRBDS_CTRL = 1 << 3;
        /// Transactional memory: leaf 7 EBX bit 11.
        const RTM = 1 << 4;
        /// No SRSO: 8000_0021h EAX bit 29.
        const SRSO_NO = 1 << 5;
        /// IBPB clears return predictions too: 8000_0021h EAX bit 28.
        const IBPB_BRTYPE = 1 << 6;
        /// VERW clears what TSA reads: 8000_0021h EAX bit 5.
        const TSA_VERW = 1 << 7;
        /// No TSA by the store queue: 8000_0021h ECX bit 1.
        const TSA_SQ_NO = 1 << 8;
        /// No TSA by the L1 cache: 8000_0021h ECX bit 2.
        const TSA_L1_NO = 1 << 9;
    }
}

/// One CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuFacts {
    /// Which it is.
    pub id: Identity,
    /// What CPUID offers.
    pub offers: Offers,
    /// Empty where there is no such register.
    pub arch: ArchCapabilities,
}

impl CpuFacts {
    /// From the leaves: EBX and EDX of leaf 7, EBX of leaf 8000_0008h, EAX and ECX of leaf 8000_0021h; zeros where there is none.
    pub fn new(id: Identity, leaf7: [u32; 2], ext8: u32, ext21: [u32; 2], arch: u64) -> Self {
        let bit = |word: u32, bit: u32, flag: Offers| {
            if word >> bit & 1 != 0 {
                flag
            } else {
                Offers::empty()
            }
        };
        let [ebx, edx] = leaf7;
        let [eax21, ecx21] = ext21;
        Self {
            id,
            offers: bit(edx, 26, Offers::IBPB)
                | bit(ext8, 12, Offers::IBPB)
                | bit(edx, 10, Offers::MD_CLEAR)
                | bit(edx, 28, Offers::L1D_FLUSH)
                | bit(edx, 9, Offers::SRBDS_CTRL)
                | bit(ebx, 11, Offers::RTM)
                | bit(eax21, 29, Offers::SRSO_NO)
                | bit(eax21, 28, Offers::IBPB_BRTYPE)
                | bit(eax21, 5, Offers::TSA_VERW)
                | bit(ecx21, 1, Offers::TSA_SQ_NO)
                | bit(ecx21, 2, Offers::TSA_L1_NO),
            arch: ArchCapabilities::from_bits_retain(arch),
        }
    }
}
