//! What passes, what is hidden, and that the ids agree.
use super::*;
use proptest::prelude::*;

/// A CPU with every bit set.
struct Everything;

impl RawCpuid for Everything {
    fn cpuid(&self, leaf: u32, subleaf: u32) -> Regs {
        match (leaf, subleaf) {
            (0, _) => [0x20, 1, 2, 3],
            (0x8000_0000, _) => [0x8000_00ff, 4, 5, 6],
            (0xd, 0) => [u32::MAX; 4],
            (0xd, 2) => [256, 576, u32::MAX, 0],
            (0xd, 5) => [64, 1088, 0, 0],
            (0xd, 9) => [8, 2688, 0, 0],
            _ => [u32::MAX; 4],
        }
    }
}

fn asker(index: u32, count: u32) -> Asker {
    let rate = TickRate::from_hz(2_893_202_123).expect("not zero");
    Asker {
        index,
        count,
        cr4: 0,
        xcr0: 1,
        apic: true,
        rate,
    }
}

fn ask(leaf: u32, subleaf: u32) -> Regs {
    cpuid(&Everything, &asker(2, 6), leaf, subleaf)
}

#[test]
fn the_hypervisor_names_itself_and_its_rates() {
    let [max, b, c, d] = ask(0x4000_0000, 0);
    assert_eq!(max, 0x4000_0010);
    assert_eq!([b, c, d].map(u32::to_le_bytes), [*b"Lull"; 3]);
    assert_eq!(ask(0x4000_0010, 0), [2_893_202, 2_893_202, 0, 0]);
    assert_eq!(ask(0x4000_0001, 0), [0; 4]);
    assert_eq!(ask(0x4000_0011, 0), [0; 4]);
}

#[test]
fn what_guests_cannot_have_is_hidden() {
    let [_, _, ecx, edx] = ask(1, 0);
    for (bit, name) in [
        (2, "DTES64"),
        (3, "MONITOR"),
        (5, "VMX"),
        (6, "SMX"),
        (7, "EIST"),
        (15, "PDCM"),
        (27, "OSXSAVE"),
    ] {
        assert_eq!(ecx & 1 << bit, 0, "{name}");
    }
    for (bit, name) in [
        (21, "x2APIC"),
        (24, "TSC-deadline"),
        (31, "hypervisor"),
        (0, "SSE3"),
        (28, "AVX"),
    ] {
        assert_ne!(ecx & 1 << bit, 0, "{name}");
    }
    for (bit, name) in [
        (21, "DS"),
        (22, "ACPI"),
        (29, "TM"),
        (31, "PBE"),
        (10, "reserved"),
        (18, "PSN"),
    ] {
        assert_eq!(edx & 1 << bit, 0, "{name}");
    }
    for bit in [0, 3, 4, 5, 6, 8, 9, 12, 13, 15, 16, 23, 24, 25, 26, 28] {
        assert_ne!(edx & 1 << bit, 0, "EDX bit {bit}");
    }
    let [_, ebx, ..] = ask(7, 0);
    for bit in [2, 4, 11, 12, 25] {
        assert_eq!(ebx & 1 << bit, 0, "SGX, HLE, RTM, PQM, PT: {bit}");
    }
    assert_ne!(ebx & 1 << 20, 0, "SMAP");
    assert_eq!(ask(7, 0)[2] & 1 << 16, 0, "57-bit linear addresses");
    for leaf in [
        5,
        9,
        0xa,
        0xf,
        0x10,
        0x12,
        0x14,
        0x17,
        0x8000_000a,
        0x8000_001b,
        0x8000_001f,
        0xc000_0000,
    ] {
        assert_eq!(ask(leaf, 0), [0; 4], "{leaf:#x}");
    }
    assert_eq!(ask(6, 0), [4, 0, 0, 0], "only ARAT");
    let [_, _, ecx, edx] = ask(0x8000_0001, 0);
    assert_eq!(
        ecx & (1 << 2 | 1 << 3 | 1 << 10 | 1 << 12 | 1 << 29),
        0,
        "SVM, extended APIC, IBS, SKINIT, MONITORX"
    );
    assert_eq!(
        edx & (1 << 20 | 1 << 29 | 1 << 11 | 1 << 27),
        1 << 20 | 1 << 29 | 1 << 11 | 1 << 27
    );
    assert_eq!(ask(0x8000_0007, 0), [0, 0, 0, 1 << 8]);
}

#[test]
fn osxsave_and_the_apic_bit_follow_the_guest() {
    let mut who = asker(0, 1);
    who.cr4 = CR4_OSXSAVE;
    who.apic = false;
    let [_, _, ecx, edx] = cpuid(&Everything, &who, 1, 0);
    assert_ne!(ecx & ECX1_OSXSAVE, 0);
    assert_eq!(edx & (EDX1_APIC | EDX1_HTT), 0);
    assert_eq!(cpuid(&Everything, &who, 0x8000_0001, 0)[3] & EDX1_APIC, 0);
}

#[test]
fn xsave_sizes_follow_xcr0() {
    let mut who = asker(0, 1);
    who.xcr0 = 7;
    let size = |who: &Asker| cpuid(&Everything, who, 0xd, 0);
    assert_eq!(size(&who)[0], 0xe7, "no MPX, no PKRU, no AMX");
    assert_eq!(size(&who)[1], 832);
    who.xcr0 = 3;
    assert_eq!(size(&who)[1], 576);
    assert_eq!(
        cpuid(&Everything, &who, 0xd, 1),
        [7, u32::MAX, 0, 0],
        "no XSAVES"
    );
    assert_eq!(cpuid(&Everything, &who, 0xd, 2), [256, 576, !1, 0]);
    assert_eq!(cpuid(&Everything, &who, 0xd, 9), [0; 4]);
    assert_eq!(cpuid(&Everything, &who, 0xd, 63), [0; 4]);
}

#[test]
fn every_leaf_with_an_id_says_the_same() {
    for count in [1, 2, 3, 64, 255] {
        for index in [0, count - 1] {
            let who = asker(index, count);
            let leaf = |l, s| cpuid(&Everything, &who, l, s);
            assert_eq!(
                (leaf(1, 0)[1] >> 24, leaf(1, 0)[1] >> 16 & 0xff),
                (index, count)
            );
            assert_eq!(
                (leaf(0xb, 0), leaf(0xb, 5)),
                ([0, 1, 0x100, index], [0, 0, 5, index])
            );
            let [shift, threads, level, id] = leaf(0xb, 1);
            assert_eq!((threads, level, id), (count, 0x201, index));
            assert!(
                count <= 1 << shift && id >> shift == 0,
                "all in one package"
            );
            assert_eq!(leaf(0x8000_001e, 0)[0], index);
            let ecx = leaf(0x8000_0008, 0)[2];
            assert_eq!((ecx & 0xff, ecx >> 12), (count - 1, shift));
            assert_eq!(leaf(4, 0)[0] >> 14 & 0xfff, 0, "caches are not shared");
            assert_eq!(leaf(4, 0)[0] >> 26, count.min(64) - 1);
        }
    }
}

/// A CPU that has next to nothing.
struct Nothing;

impl RawCpuid for Nothing {
    fn cpuid(&self, leaf: u32, _: u32) -> Regs {
        [if leaf == 0 { 1 } else { 0 }, 0, 0, 0]
    }
}

#[test]
fn leaves_beyond_the_cpus_own_are_zero_but_for_the_topology() {
    let who = asker(1, 2);
    assert_eq!(cpuid(&Nothing, &who, 0, 0)[0], 0xb);
    assert_eq!(cpuid(&Nothing, &who, 0xb, 1), [1, 2, 0x201, 1]);
    assert_eq!(cpuid(&Nothing, &who, 7, 0), [0; 4]);
    assert_eq!(cpuid(&Nothing, &who, 0x8000_0008, 0), [0; 4]);
    assert_ne!(cpuid(&Nothing, &who, 1, 0)[3] & EDX1_APIC, 0);
}

proptest! {
    #[test]
    fn no_leaf_panics(leaf in any::<u32>(), subleaf in any::<u32>(), xcr0 in any::<u64>(), count in 1u32..256) {
        let mut who = asker(count - 1, count);
        who.xcr0 = xcr0;
        for leaf in [leaf, leaf & 0x1f, 0x8000_0000 | leaf & 0x3f, 0x4000_0000 | leaf & 0x1f] {
            cpuid(&Everything, &who, leaf, subleaf & 0x3f);
            cpuid(&Everything, &who, leaf, subleaf);
        }
    }
}
