//! What this processor's AMD-V offers (AMD APM vol. 3, CPUID 8000_000Ah).

use alloc::string::String;
use core::fmt::Write;

use bitflags::bitflags;
use raw_cpuid::CpuIdReader;

use super::npt::MaxPage;

bitflags! {
    /// CPUID 8000_000Ah EDX.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SvmFlags: u32 {
        /// Nested paging.
        const NESTED_PAGING = 1 << 0;
        /// VM_CR can be locked.
        const LOCK = 1 << 2;
        /// The address of the next instruction is saved.
        const NRIPS = 1 << 3;
        /// Clean bits.
        const CLEAN_BITS = 1 << 5;
        /// The TLB can be flushed for one ASID.
        const FLUSH_BY_ASID = 1 << 6;
        /// Instruction bytes and operands are saved.
        const DECODE_ASSISTS = 1 << 7;
        /// PAUSE filter.
        const PAUSE_FILTER = 1 << 10;
        /// PAUSE filter threshold.
        const PAUSE_THRESHOLD = 1 << 12;
    }
}

/// Why there is no AMD-V to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSvm {
    /// CPUID does not offer it.
    Absent,
    /// It is there, but without nested paging.
    NoNestedPaging,
}

/// What is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SvmFeatures {
    /// Number of ASIDs, with the host's.
    pub asids: u32,
    /// Feature bits.
    pub flags: SvmFlags,
    /// Largest page.
    pub max_page: MaxPage,
    /// RDTSCP, and with it TSC_AUX.
    pub tsc_aux: bool,
    /// RDPRU.
    pub rdpru: bool,
    /// INVLPGB and TLBSYNC.
    pub invlpgb: bool,
    /// MCOMMIT.
    pub mcommit: bool,
    /// Width of a physical address in bits.
    pub physical_bits: u32,
    /// EVENTINJ may deliver an external interrupt twice: QEMU's emulator does, if anything makes it leave translated code (the
    /// end of a time slice, another CPU's interrupt) before the guest's next exception or exit. Of the other types it delivers
    /// each event once.
    pub doubles_injections: bool,
}

/// EBX of CPUID 4000_0000h under QEMU's emulator: the first four letters of "TCGTCGTCGTCG".
const TCG: u32 = u32::from_le_bytes(*b"TCGT");
const HYPERVISOR: u32 = 0x4000_0000;
const EXTENDED_MAX: u32 = 0x8000_0000;
const EXTENDED_FEATURES: u32 = 0x8000_0001;
const SIZES: u32 = 0x8000_0008;
const SVM: u32 = 0x8000_000a;

impl SvmFeatures {
    /// Whether exits tell where the next instruction is.
    #[inline]
    pub fn saves_next_rip(&self) -> bool {
        self.flags.contains(SvmFlags::NRIPS)
    }

    /// Reads CPUID. Only feature bits count: emulators offer AMD-V under any vendor's name.
    pub fn read(cpuid: &impl CpuIdReader) -> Result<Self, NoSvm> {
        let last = cpuid.cpuid1(EXTENDED_MAX).eax;
        if !(SVM..0x8001_0000).contains(&last) {
            return Err(NoSvm::Absent);
        }
        let extended = cpuid.cpuid1(EXTENDED_FEATURES);
        if extended.ecx & (1 << 2) == 0 {
            return Err(NoSvm::Absent);
        }
        let svm = cpuid.cpuid1(SVM);
        let flags = SvmFlags::from_bits_retain(svm.edx);
        if !flags.contains(SvmFlags::NESTED_PAGING) {
            return Err(NoSvm::NoNestedPaging);
        }
        let sizes = cpuid.cpuid1(SIZES);
        Ok(Self {
            asids: svm.ebx,
            flags,
            max_page: if extended.edx & (1 << 26) != 0 {
                MaxPage::Size1G
            } else {
                MaxPage::Size2M
            },
            tsc_aux: extended.edx & (1 << 27) != 0,
            rdpru: sizes.ebx & (1 << 4) != 0,
            invlpgb: sizes.ebx & (1 << 3) != 0,
            mcommit: sizes.ebx & (1 << 8) != 0,
            physical_bits: match sizes.eax & 0xff {
                bits @ 32..=52 => bits,
                _ => 36,
            },
            doubles_injections: cpuid.cpuid1(1).ecx >> 31 == 1
                && cpuid.cpuid1(HYPERVISOR).ebx == TCG,
        })
    }

    /// For one log line: what is used, and what is missing.
    pub fn describe(&self) -> String {
        let mut line = String::new();
        let page = if self.max_page == MaxPage::Size1G {
            "1 GiB"
        } else {
            "2 MiB"
        };
        let _ = write!(
            line,
            "nested paging (pages up to {page}), {} ASIDs",
            self.asids
        );
        for (offered, lead) in [(true, "; with"), (false, "; without")] {
            let mut lead = lead;
            for (flag, name) in [
                (SvmFlags::NRIPS, "NRIP save"),
                (SvmFlags::DECODE_ASSISTS, "decode assists"),
                (SvmFlags::CLEAN_BITS, "clean bits"),
                (SvmFlags::FLUSH_BY_ASID, "flush by ASID"),
                (SvmFlags::PAUSE_FILTER, "pause filter"),
            ] {
                if self.flags.contains(flag) == offered {
                    let _ = write!(line, "{lead} {name}");
                    lead = ",";
                }
            }
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use raw_cpuid::CpuIdResult;

    use super::*;

    fn machine(last: u32, ecx: u32, edx: u32, svm_edx: u32) -> impl CpuIdReader {
        move |leaf: u32, _: u32| match leaf {
            EXTENDED_MAX => CpuIdResult {
                eax: last,
                ebx: 0,
                ecx: 0,
                edx: 0,
            },
            EXTENDED_FEATURES => CpuIdResult {
                eax: 0,
                ebx: 0,
                ecx,
                edx,
            },
            SIZES => CpuIdResult {
                eax: 0x3028,
                ebx: 0,
                ecx: 0,
                edx: 0,
            },
            SVM => CpuIdResult {
                eax: 1,
                ebx: 16,
                ecx: 0,
                edx: svm_edx,
            },
            // Another vendor's name must not matter.
            0 => CpuIdResult {
                eax: 13,
                ebx: 0x756e_6547,
                ecx: 0x6c65_746e,
                edx: 0x4965_6e69,
            },
            _ => CpuIdResult {
                eax: 0,
                ebx: 0,
                ecx: 0,
                edx: 0,
            },
        }
    }

    #[test]
    fn an_emulator_with_nested_paging_only() {
        let features = SvmFeatures::read(&machine(
            0x8000_000a,
            1 << 2,
            1 << 26 | 1 << 27,
            0x1001_0001,
        ))
        .unwrap();
        assert_eq!(
            (features.asids, features.physical_bits, features.max_page),
            (16, 40, MaxPage::Size1G)
        );
        assert!(features.tsc_aux && !features.rdpru);
        assert_eq!(
            features.describe(),
            "nested paging (pages up to 1 GiB), 16 ASIDs; without NRIP save, decode assists, clean bits, flush by ASID, pause filter"
        );
    }

    #[test]
    fn a_real_machine_has_more() {
        let features = SvmFeatures::read(&machine(0x8000_001f, 1 << 2, 0, 0x44f)).unwrap();
        assert_eq!(
            features.describe(),
            "nested paging (pages up to 2 MiB), 16 ASIDs; with NRIP save, flush by ASID, pause filter; \
             without decode assists, clean bits"
        );
    }

    #[test]
    fn says_what_is_missing() {
        assert_eq!(
            SvmFeatures::read(&machine(0x8000_0008, 1 << 2, 0, 1)),
            Err(NoSvm::Absent)
        );
        assert_eq!(
            SvmFeatures::read(&machine(0x8000_000a, 0, 0, 1)),
            Err(NoSvm::Absent)
        );
        assert_eq!(
            SvmFeatures::read(&machine(0x8000_000a, 1 << 2, 0, 0)),
            Err(NoSvm::NoNestedPaging)
        );
    }
}
