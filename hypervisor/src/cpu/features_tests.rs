use super::*;
use raw_cpuid::CpuIdResult;

/// Leaves of QEMU 7.2 `-cpu max`, as read there.
#[derive(Clone)]
struct QemuMax;

impl CpuIdReader for QemuMax {
    fn cpuid2(&self, eax: u32, ecx: u32) -> CpuIdResult {
        let (eax, ebx, ecx, edx) = match (eax, ecx) {
            (0, _) => (0xD, 0x6874_7541, 0x444d_4163, 0x6974_6e65),
            // Family Fh, model 6Bh, stepping 1; APIC id 3; XSAVE, hypervisor, MONITOR.
            (1, _) => (0x0006_0FB1, 0x0300_0800, 1 << 31 | 1 << 26 | 1 << 3 | 1, 1),
            (5, _) => (0, 0, 3, 0),
            (6, _) => (1 << 2, 0, 0, 0),
            (7, 0) => (0, 1 << 20 | 1 << 7, 0, 0),
            (0xD, 0) => (0x207, 0x340, 0xA88, 1 << 30),
            (0xD, 1) => (1, 0, 0, 0),
            (0x4000_0000, _) => (0x4000_0001, 0x5447_4354, 0x4354_4743, 0x4743_5447),
            (0x8000_0000, _) => (0x8000_000A, 0x6874_7541, 0x444d_4163, 0x6974_6e65),
            (0x8000_0001, _) => (0, 0, 1 << 2, 1 << 29 | 1 << 27 | 1 << 26 | 1 << 20),
            (0x8000_0008, _) => (0x3028, 0, 0, 0),
            _ => (0, 0, 0, 0),
        };
        CpuIdResult { eax, ebx, ecx, edx }
    }
}

#[test]
fn recorded_leaves_are_read_as_they_are() {
    let f = Features::read(QemuMax);
    assert_eq!(&*f.vendor, "AuthenticAMD");
    assert_eq!(
        (f.family, f.model, f.stepping, f.initial_apic_id),
        (0xF, 0x6B, 1, 3)
    );
    assert_eq!(f.hypervisor.as_deref(), Some("TCGTCGTCGTCG"));
    assert!(f.monitor && f.arat && f.svm && f.smep && f.smap && f.nx && f.giant_pages && f.rdtscp);
    assert!(!f.nonstop_tsc && !f.tsc_deadline && !f.x2apic && !f.vmx);
    assert_eq!(
        f.mwait,
        MwaitLeaf {
            extensions: true,
            interrupt_break: true,
            ..MwaitLeaf::default()
        }
    );
    assert_eq!(
        f.xsave,
        Some(Xsave {
            components: 0x4000_0000_0000_0207,
            size: 0xA88,
            optimised: true
        })
    );
    assert_eq!(f.physical_bits, 40);
}

#[test]
fn what_the_outer_hypervisor_hides_is_named() {
    assert_eq!(
        &*Features::read(QemuMax).hidden(),
        "nonstop TSC, TSC-deadline"
    );
    assert_eq!(&*Features::default().hidden(), "");
}

#[test]
fn a_cpu_that_differs_from_the_first_says_in_what() {
    let first = Features::read(QemuMax);
    let other = Features {
        svm: false,
        smep: false,
        tsc_deadline: true,
        ..first
    };
    assert_eq!(&*other.lacks(&first), "SMEP, SVM");
    assert_eq!(&*first.lacks(&first), "");
}

#[test]
fn a_line_for_people() {
    assert_eq!(
        alloc::format!("{}", Features::read(QemuMax)),
        "AuthenticAMD family 0xf model 0x6b stepping 1 under TCGTCGTCGTCG: monitor arat nx 1gib-pages smep smap xsave svm"
    );
}
