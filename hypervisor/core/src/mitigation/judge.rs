//! The verdicts.

use super::Verdict::{Mitigated, NotAffected, Vulnerable};
use super::{ArchCapabilities, Barriers, CpuFacts, Offers, Verdict, Vulnerability, in_order};
use crate::cstate::models::Vendor;

const OTHER_VENDOR: &str = "not of this vendor's CPUs";
const BY_CAPABILITIES: &str = "the CPU says so";
const OTHER_MODEL: &str = "not of this model";
const NO_SPECULATION: &str = "it executes in order";
const BUFFERS: &str = "VERW before each entry; hyper-threads are not kept apart";
const NO_VERW: &str = "the microcode gives VERW no such meaning";

/// How it stands with one vulnerability, with the barriers that are in force.
pub fn judge(cpu: &CpuFacts, v: Vulnerability, barriers: Barriers) -> Verdict {
    if in_order(&cpu.id) {
        return NotAffected(NO_SPECULATION);
    }
    if let Err(why) = affected(cpu, v) {
        return NotAffected(why);
    }
    let verw = |clears: bool| match (clears, barriers.contains(Barriers::VERW)) {
        (true, true) => Mitigated(BUFFERS),
        (true, false) => Vulnerable("VERW is switched off"),
        (false, _) => Vulnerable(NO_VERW),
    };
    let ibpb = barriers.contains(Barriers::IBPB);
    match v {
        Vulnerability::SpectreV1 => Vulnerable(
            "registers are cleared at exits and bounds are checked, but not against speculation",
        ),
        Vulnerability::Meltdown => {
            Mitigated("guests have address spaces of their own, under stage 2")
        }
        Vulnerability::SpectreV2 if ibpb => Vulnerable(
            "IBPB and RSB fill between guests; the hypervisor's own indirect branches are open",
        ),
        Vulnerability::SpectreV2 => Vulnerable("no IBPB"),
        Vulnerability::Retbleed | Vulnerability::Its if ibpb => {
            Vulnerable("IBPB between guests; the hypervisor's own branches are open")
        }
        Vulnerability::Srso if ibpb && cpu.offers.contains(Offers::IBPB_BRTYPE) => {
            Vulnerable("IBPB between guests; the hypervisor's own returns are open")
        }
        Vulnerability::Retbleed | Vulnerability::Its | Vulnerability::Srso => Vulnerable("no IBPB"),
        Vulnerability::Bhi => Vulnerable("the branch history is not cleared at exits"),
        Vulnerability::Ssb => {
            Vulnerable("within a guest only: stores are bypassed, and guests cannot change that")
        }
        Vulnerability::L1tf if cpu.arch.contains(ArchCapabilities::SKIP_L1DFL_VMENTRY) => {
            Mitigated("the hypervisor below flushes the L1 cache")
        }
        Vulnerability::L1tf if barriers.contains(Barriers::L1D_FLUSH) => {
            Mitigated("L1D flush before each entry; hyper-threads are not kept apart")
        }
        Vulnerability::L1tf => Vulnerable("no L1D flush"),
        Vulnerability::Mds | Vulnerability::Taa => verw(clears_buffers(cpu)),
        Vulnerability::MmioStaleData => {
            verw(clears_buffers(cpu) || cpu.arch.contains(ArchCapabilities::FB_CLEAR))
        }
        Vulnerability::Rfds => verw(cpu.arch.contains(ArchCapabilities::RFDS_CLEAR)),
        Vulnerability::Tsa => verw(cpu.offers.contains(Offers::TSA_VERW)),
        Vulnerability::Srbds if cpu.offers.contains(Offers::SRBDS_CTRL) => {
            Mitigated("by microcode")
        }
        Vulnerability::Gds if cpu.arch.contains(ArchCapabilities::GDS_CTRL) => {
            Mitigated("by microcode")
        }
        Vulnerability::Srbds | Vulnerability::Gds => Vulnerable("the microcode is too old"),
    }
}

/// The barriers that this CPU needs and has.
pub fn needed(cpu: &CpuFacts) -> Barriers {
    use Vulnerability as V;
    let has = |v| !in_order(&cpu.id) && affected(cpu, v).is_ok();
    let mut barriers = Barriers::empty();
    if has(V::SpectreV2) {
        barriers |= Barriers::RSB_FILL;
        barriers.set(Barriers::IBPB, cpu.offers.contains(Offers::IBPB));
    }
    let fill_buffers = cpu.arch.contains(ArchCapabilities::FB_CLEAR);
    let verw = ((has(V::Mds) || has(V::Taa)) && clears_buffers(cpu))
        || (has(V::MmioStaleData) && (clears_buffers(cpu) || fill_buffers))
        || (has(V::Rfds) && cpu.arch.contains(ArchCapabilities::RFDS_CLEAR))
        || (has(V::Tsa) && cpu.offers.contains(Offers::TSA_VERW));
    barriers.set(Barriers::VERW, verw);
    let flush = has(V::L1tf)
        && cpu.offers.contains(Offers::L1D_FLUSH)
        && !cpu.arch.contains(ArchCapabilities::SKIP_L1DFL_VMENTRY);
    barriers.set(Barriers::L1D_FLUSH, flush);
    barriers
}

fn clears_buffers(cpu: &CpuFacts) -> bool {
    cpu.offers.contains(Offers::MD_CLEAR)
}

/// Whether the CPU has it, or why not. A vendor that nothing is known of has them all.
fn affected(cpu: &CpuFacts, v: Vulnerability) -> Result<(), &'static str> {
    match cpu.id.vendor {
        Vendor::Intel => intel(cpu, v),
        Vendor::Amd | Vendor::Hygon => amd(cpu, v),
        _ => Ok(()),
    }
}

fn unless(not: bool, why: &'static str) -> Result<(), &'static str> {
    if not { Err(why) } else { Ok(()) }
}

fn amd(cpu: &CpuFacts, v: Vulnerability) -> Result<(), &'static str> {
    use Vulnerability as V;
    let family = cpu.id.family;
    match v {
        V::SpectreV1 | V::SpectreV2 => Ok(()),
        V::Ssb => unless(family < 0x15, OTHER_MODEL),
        V::Retbleed => unless(!(0x15..=0x18).contains(&family), OTHER_MODEL),
        V::Srso if cpu.offers.contains(Offers::SRSO_NO) => Err(BY_CAPABILITIES),
        V::Srso => unless(!(0x17..=0x19).contains(&family), OTHER_MODEL),
        V::Tsa if cpu.offers.contains(Offers::TSA_SQ_NO | Offers::TSA_L1_NO) => {
            Err(BY_CAPABILITIES)
        }
        V::Tsa => unless(family != 0x19, OTHER_MODEL),
        V::Bhi
        | V::Meltdown
        | V::L1tf
        | V::Mds
        | V::Taa
        | V::MmioStaleData
        | V::Rfds
        | V::Srbds
        | V::Gds
        | V::Its => Err(OTHER_VENDOR),
    }
}

/// Models of family 6.
mod model {
    /// Silvermont, Airmont.
    pub const SILVERMONT: &[u8] = &[0x37, 0x4a, 0x4c, 0x4d, 0x5a, 0x5d, 0x75];
    /// Goldmont, Goldmont Plus.
    pub const GOLDMONT: &[u8] = &[0x5c, 0x5f, 0x7a];
    /// Knights Landing, Knights Mill.
    pub const KNIGHTS: &[u8] = &[0x57, 0x85];
    /// Ivy Bridge to Comet Lake, clients.
    pub const SRBDS: &[u8] = &[
        0x3a, 0x3c, 0x45, 0x46, 0x3d, 0x47, 0x4e, 0x5e, 0x8e, 0x9e, 0xa5, 0xa6, 0x7e, 0x8a, 0x96,
        0x9c,
    ];
    /// Haswell-X to Rocket Lake, Tremont.
    pub const MMIO: &[u8] = &[
        0x3f, 0x4f, 0x56, 0x55, 0x4e, 0x5e, 0x8e, 0x9e, 0x7e, 0x6c, 0x6a, 0xa5, 0xa6, 0x8a, 0xa7,
        0x86, 0x96, 0x9c,
    ];
    /// Skylake to Rocket Lake.
    pub const RETBLEED: &[u8] = &[
        0x55, 0x4e, 0x5e, 0x8e, 0x9e, 0x66, 0x7e, 0xa5, 0xa6, 0x8a, 0xa7,
    ];
    /// Skylake to Tiger Lake.
    pub const GDS: &[u8] = &[
        0x55, 0x4e, 0x5e, 0x8e, 0x9e, 0x7e, 0x6c, 0x6a, 0xa5, 0xa6, 0x8c, 0x8d, 0xa7,
    ];
    /// Ice Lake to Tiger Lake, Comet Lake, Rocket Lake.
    pub const ITS: &[u8] = &[0x7e, 0x6c, 0x6a, 0xa5, 0xa6, 0x8c, 0x8d, 0xa7];
    /// Those of which only later steppings have ITS: model, first stepping.
    pub const ITS_FROM: &[(u8, u8)] = &[(0x55, 6), (0x8e, 0xc), (0x9e, 0xd)];
    /// Goldmont, Tremont, Gracemont, and hybrids with it.
    pub const RFDS: &[u8] = &[
        0x5c, 0x5f, 0x7a, 0x86, 0x96, 0x9c, 0xbe, 0x97, 0x9a, 0xb7, 0xba, 0xbf,
    ];
}

fn intel(cpu: &CpuFacts, v: Vulnerability) -> Result<(), &'static str> {
    use ArchCapabilities as Arch;
    use Vulnerability as V;
    let (number, six) = (cpu.id.model, cpu.id.family == 6);
    let is = |models: &[u8]| six && models.contains(&number);
    let says = |bits: Arch| unless(cpu.arch.contains(bits), BY_CAPABILITIES);
    let of = |models: &[u8]| unless(!is(models), OTHER_MODEL);
    match v {
        V::SpectreV1 | V::SpectreV2 => Ok(()),
        V::Meltdown => says(Arch::RDCL_NO),
        V::L1tf => {
            says(Arch::RDCL_NO)?;
            let not = is(model::SILVERMONT) || is(model::GOLDMONT) || is(model::KNIGHTS);
            unless(not, OTHER_MODEL)
        }
        V::Ssb => {
            says(Arch::SSB_NO)?;
            unless(is(model::SILVERMONT) || is(model::KNIGHTS), OTHER_MODEL)
        }
        V::Mds => {
            says(Arch::MDS_NO)?;
            unless(is(model::GOLDMONT), OTHER_MODEL)
        }
        V::Taa => {
            says(Arch::TAA_NO)?;
            let transactions = cpu.offers.contains(Offers::RTM);
            unless(!transactions, "it has no transactional memory")
        }
        V::MmioStaleData => {
            says(Arch::SBDR_SSDP_NO | Arch::FBSDP_NO | Arch::PSDP_NO)?;
            of(model::MMIO)
        }
        V::Rfds => {
            says(Arch::RFDS_NO)?;
            of(model::RFDS)
        }
        V::Srbds => of(model::SRBDS),
        V::Retbleed => of(model::RETBLEED),
        V::Gds => {
            says(Arch::GDS_NO)?;
            of(model::GDS)
        }
        V::Its => {
            says(Arch::ITS_NO)?;
            let late = |&(late, first): &(u8, u8)| number == late && cpu.id.stepping >= first;
            unless(
                !(is(model::ITS) || six && model::ITS_FROM.iter().any(late)),
                OTHER_MODEL,
            )
        }
        V::Bhi => {
            says(Arch::BHI_NO)?;
            let open = cpu.arch.contains(Arch::IBRS_ALL);
            unless(!open, "it has no enhanced IBRS to get around")
        }
        V::Srso | V::Tsa => Err(OTHER_VENDOR),
    }
}
