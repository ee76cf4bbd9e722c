//! Verdicts and barriers of CPUs that people know.

use super::Vulnerability as V;
use super::*;

fn cpu(vendor: Vendor, family: u16, model: u8, stepping: u8) -> CpuFacts {
    let id = Identity {
        vendor,
        family,
        model,
        stepping,
    };
    CpuFacts {
        id,
        ..CpuFacts::default()
    }
}

fn with(mut cpu: CpuFacts, offers: Offers, arch: ArchCapabilities) -> CpuFacts {
    cpu.offers = offers;
    cpu.arch = arch;
    cpu
}

/// Vulnerabilities that a CPU has, whatever is done about them.
fn has(cpu: &CpuFacts) -> Vec<V> {
    let none = Barriers::empty();
    let not = |v: &V| matches!(judge(cpu, *v, none), Verdict::NotAffected(_));
    V::ALL.into_iter().filter(|v| !not(v)).collect()
}

use ArchCapabilities as Arch;
use Barriers as B;

const MICROCODE: Offers = Offers::IBPB
    .union(Offers::MD_CLEAR)
    .union(Offers::L1D_FLUSH);

#[test]
fn skylake_server() {
    let new = with(
        cpu(Vendor::Intel, 6, 0x55, 4),
        MICROCODE | Offers::RTM,
        Arch::empty(),
    );
    assert_eq!(
        has(&new),
        [
            V::SpectreV1,
            V::SpectreV2,
            V::Meltdown,
            V::Ssb,
            V::L1tf,
            V::Mds,
            V::Taa,
            V::MmioStaleData,
            V::Retbleed,
            V::Gds
        ]
    );
    let all = barriers(&new, Policy::Auto);
    assert_eq!(all, B::IBPB | B::RSB_FILL | B::VERW | B::L1D_FLUSH);
    assert!(matches!(judge(&new, V::L1tf, all), Verdict::Mitigated(_)));
    assert!(matches!(judge(&new, V::Mds, all), Verdict::Mitigated(_)));
    assert!(matches!(judge(&new, V::Gds, all), Verdict::Vulnerable(_)));
    // Before the microcode of 2018 there is nothing to do it with.
    let old = with(new, Offers::RTM, Arch::empty());
    let few = barriers(&old, Policy::Auto);
    assert_eq!(few, B::RSB_FILL);
    assert!(matches!(judge(&old, V::L1tf, few), Verdict::Vulnerable(_)));
    assert_eq!(
        judge(&old, V::Mds, few),
        Verdict::Vulnerable("the microcode gives VERW no such meaning")
    );
}

#[test]
fn cascade_lake_has_less_of_it() {
    let arch = Arch::RDCL_NO | Arch::IBRS_ALL | Arch::SKIP_L1DFL_VMENTRY | Arch::MDS_NO;
    let cpu = with(
        cpu(Vendor::Intel, 6, 0x55, 7),
        MICROCODE | Offers::RTM,
        arch,
    );
    assert_eq!(
        has(&cpu),
        [
            V::SpectreV1,
            V::SpectreV2,
            V::Ssb,
            V::Taa,
            V::Bhi,
            V::MmioStaleData,
            V::Retbleed,
            V::Gds,
            V::Its
        ]
    );
    assert_eq!(
        barriers(&cpu, Policy::Auto),
        B::IBPB | B::RSB_FILL | B::VERW
    );
    let no_tsx = with(
        cpu,
        MICROCODE,
        arch | Arch::SBDR_SSDP_NO | Arch::FBSDP_NO | Arch::PSDP_NO,
    );
    assert_eq!(barriers(&no_tsx, Policy::Auto), B::IBPB | B::RSB_FILL);
}

#[test]
fn sapphire_rapids_needs_only_the_branch_barrier() {
    let arch = Arch::RDCL_NO | Arch::IBRS_ALL | Arch::MDS_NO | Arch::TAA_NO | Arch::GDS_NO;
    let cpu = with(
        cpu(Vendor::Intel, 6, 0x8f, 8),
        MICROCODE | Offers::RTM,
        arch,
    );
    assert_eq!(has(&cpu), [V::SpectreV1, V::SpectreV2, V::Ssb, V::Bhi]);
    assert_eq!(barriers(&cpu, Policy::Auto), B::IBPB | B::RSB_FILL);
}

#[test]
fn alder_lake_has_rfds() {
    let arch = Arch::RDCL_NO | Arch::IBRS_ALL | Arch::MDS_NO | Arch::RFDS_CLEAR;
    let cpu = with(cpu(Vendor::Intel, 6, 0x97, 2), MICROCODE, arch);
    assert!(has(&cpu).contains(&V::Rfds));
    assert_eq!(
        barriers(&cpu, Policy::Auto),
        B::IBPB | B::RSB_FILL | B::VERW
    );
    assert_eq!(
        barriers(&with(cpu, MICROCODE, arch | Arch::RFDS_NO), Policy::Auto),
        B::IBPB | B::RSB_FILL
    );
}

#[test]
fn zen() {
    let zen1 = with(cpu(Vendor::Amd, 0x17, 1, 1), Offers::IBPB, Arch::empty());
    assert_eq!(
        has(&zen1),
        [V::SpectreV1, V::SpectreV2, V::Ssb, V::Retbleed, V::Srso]
    );
    assert_eq!(barriers(&zen1, Policy::Auto), B::IBPB | B::RSB_FILL);
    let zen4 = cpu(Vendor::Amd, 0x19, 0x11, 1);
    let zen4 = with(
        zen4,
        Offers::IBPB | Offers::IBPB_BRTYPE | Offers::TSA_VERW,
        Arch::empty(),
    );
    assert_eq!(
        has(&zen4),
        [V::SpectreV1, V::SpectreV2, V::Ssb, V::Srso, V::Tsa]
    );
    assert_eq!(
        barriers(&zen4, Policy::Auto),
        B::IBPB | B::RSB_FILL | B::VERW
    );
    let zen5 = with(
        cpu(Vendor::Amd, 0x1a, 0x44, 0),
        Offers::IBPB | Offers::SRSO_NO,
        Arch::empty(),
    );
    assert_eq!(has(&zen5), [V::SpectreV1, V::SpectreV2, V::Ssb]);
}

#[test]
fn what_executes_in_order_has_none_and_what_nobody_knows_has_all() {
    let bonnell = cpu(Vendor::Intel, 6, 0x1c, 2);
    assert!(has(&bonnell).is_empty());
    assert_eq!(barriers(&bonnell, Policy::Auto), B::empty());
    let unknown = with(cpu(Vendor::Other, 9, 9, 9), MICROCODE, Arch::empty());
    assert_eq!(has(&unknown), V::ALL);
    assert_eq!(barriers(&unknown, Policy::Auto), B::all());
}

#[test]
fn an_option_has_the_last_word() {
    let cpu = with(cpu(Vendor::Intel, 6, 0x55, 4), MICROCODE, Arch::empty());
    assert_eq!(barriers(&cpu, Policy::Off), B::empty());
    assert_eq!(
        judge(&cpu, V::Mds, B::empty()),
        Verdict::Vulnerable("VERW is switched off")
    );
    assert_eq!(barriers(&CpuFacts::default(), Policy::Force), B::all());
}

#[test]
fn leaves_are_read_as_the_manuals_have_them() {
    let id = Identity::default();
    let facts = CpuFacts::new(
        id,
        [1 << 11, 1 << 26 | 1 << 10 | 1 << 28 | 1 << 9],
        0,
        [0, 0],
        1 << 62 | 1,
    );
    assert_eq!(facts.offers, MICROCODE | Offers::SRBDS_CTRL | Offers::RTM);
    assert_eq!(facts.arch, Arch::RDCL_NO | Arch::ITS_NO);
    let facts = CpuFacts::new(id, [0, 0], 1 << 12, [1 << 29 | 1 << 28 | 1 << 5, 0b110], 0);
    let amd = Offers::SRSO_NO
        | Offers::IBPB_BRTYPE
        | Offers::TSA_VERW
        | Offers::TSA_SQ_NO
        | Offers::TSA_L1_NO;
    assert_eq!(facts.offers, Offers::IBPB | amd);
}
