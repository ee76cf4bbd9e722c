use alloc::collections::BTreeMap;
use alloc::string::ToString;

use raw_cpuid::CpuIdResult;

use super::*;

/// A processor's MSRs, to be changed.
pub type Fake = BTreeMap<u32, u64>;

/// CPUID of a processor with VMX and RDTSCP.
pub fn cpuid(leaf: u32, _: u32) -> CpuIdResult {
    let (ecx, edx, eax) = match leaf {
        1 => (1 << 5, 0, 0),
        0x8000_0000 => (0, 0, 0x8000_0008),
        0x8000_0001 => (0, 1 << 27, 0),
        _ => (0, 0, 0),
    };
    CpuIdResult {
        eax,
        ebx: 0,
        ecx,
        edx,
    }
}

/// A server of the Skylake generation: everything but a few later controls.
pub fn skylake() -> Fake {
    let all = 0xffff_ffff_u64 << 32;
    Fake::from([
        (msr::IA32_FEATURE_CONTROL, 5),
        (MSR_BASIC, 0x00da_0400_0000_0004),
        (msr::IA32_VMX_PINBASED_CTLS, 0x0000_00ff_0000_0016),
        (msr::IA32_VMX_TRUE_PINBASED_CTLS, 0x0000_00ff_0000_0016),
        (msr::IA32_VMX_PROCBASED_CTLS, 0xfff9_fffe_0401_e172),
        (msr::IA32_VMX_TRUE_PROCBASED_CTLS, 0xfff9_fffe_0400_6172),
        (msr::IA32_VMX_PROCBASED_CTLS2, all),
        (msr::IA32_VMX_EXIT_CTLS, 0x01ff_ffff_0003_6dff),
        (msr::IA32_VMX_TRUE_EXIT_CTLS, 0x01ff_ffff_0003_6dfb),
        (msr::IA32_VMX_ENTRY_CTLS, 0x0003_ffff_0000_11ff),
        (msr::IA32_VMX_TRUE_ENTRY_CTLS, 0x0003_ffff_0000_11fb),
        (msr::IA32_VMX_MISC, 0x7004_c1e7),
        (msr::IA32_VMX_CR0_FIXED0, 0x8000_0021),
        (msr::IA32_VMX_CR0_FIXED1, 0xffff_ffff),
        (msr::IA32_VMX_CR4_FIXED0, 0x2000),
        (msr::IA32_VMX_CR4_FIXED1, 0x0037_67ff),
        (msr::IA32_VMX_EPT_VPID_CAP, 0x0f01_0633_4141),
    ])
}

fn read(fake: &Fake) -> Result<Capabilities, NoVmx> {
    Capabilities::read(&cpuid, &|msr| fake.get(&msr).copied())
}

fn changed(msr: u32, change: impl FnOnce(&mut u64)) -> Result<Capabilities, NoVmx> {
    let mut fake = skylake();
    change(fake.get_mut(&msr).unwrap());
    read(&fake)
}

/// A control that may not be set any more.
fn without(msr: u32, bit: u32) -> Result<Capabilities, NoVmx> {
    changed(msr, |value| *value &= !(u64::from(bit) << 32))
}

#[test]
fn a_server_has_it_all() {
    let found = read(&skylake()).unwrap();
    assert_eq!(found.revision, 4);
    assert_eq!(found.timer_shift, Some(7));
    assert_eq!(found.invvpid, Some(Invvpid::SingleContext));
    assert_eq!(found.max_page, MaxPage::Size1G);
    assert!(found.string_io_info && found.accessed_dirty && found.tsc_aux && found.tpr_shadow());
    assert_eq!(found.dropped, Vec::<&str>::new());
    // External interrupts, NMIs, virtual NMIs, preemption timer, and what the processor insists on.
    assert_eq!(found.pin, 0x7f);
    assert_eq!(
        found.primary & PrimaryControls::CR3_LOAD_EXITING.bits(),
        0,
        "only the true controls let it be off"
    );
    assert_eq!(
        found.describe(true),
        "EPT (pages up to 1 GiB), unrestricted guest; with VPID, preemption timer, TPR shadow, virtual x2APIC, posted interrupts, PAUSE-loop exiting, accessed and dirty flags"
    );
}

#[test]
fn firmware_that_switches_it_off_is_told_from_one_that_left_it_open() {
    let control = |value| firmware(&|_| Some(value));
    assert_eq!(control(5), Ok(Firmware::Allows));
    assert_eq!(control(7), Ok(Firmware::Allows));
    assert_eq!(control(0), Ok(Firmware::LeftOpen));
    assert_eq!(
        control(4),
        Ok(Firmware::LeftOpen),
        "not locked: VMXON would fault"
    );
    assert_eq!(control(1), Err(NoVmx::SwitchedOff));
    assert_eq!(control(3), Err(NoVmx::OnlyInSmx));
    assert!(firmware(&|_| None).is_err());
    assert!(NoVmx::SwitchedOff.to_string().contains("locked"));
    assert!(NoVmx::OnlyInSmx.to_string().contains("measured launch"));
}

#[test]
fn a_control_that_is_missing_is_named() {
    for (msr, bit, words) in [
        (msr::IA32_VMX_PROCBASED_CTLS2, 1 << 1, "without EPT"),
        (msr::IA32_VMX_TRUE_PROCBASED_CTLS, 1 << 31, "without EPT"),
        (
            msr::IA32_VMX_PROCBASED_CTLS2,
            1 << 7,
            "without unrestricted guest",
        ),
        (
            msr::IA32_VMX_TRUE_PROCBASED_CTLS,
            1 << 28,
            "\"use MSR bitmaps\"",
        ),
        (
            msr::IA32_VMX_TRUE_PROCBASED_CTLS,
            1 << 2,
            "\"interrupt-window exiting\"",
        ),
        (msr::IA32_VMX_TRUE_PINBASED_CTLS, 1 << 5, "\"virtual NMIs\""),
        (
            msr::IA32_VMX_TRUE_EXIT_CTLS,
            1 << 15,
            "\"acknowledge interrupt on exit\"",
        ),
        (
            msr::IA32_VMX_TRUE_ENTRY_CTLS,
            1 << 15,
            "\"load IA32_EFER (entry)\"",
        ),
    ] {
        let why = without(msr, bit).unwrap_err().to_string();
        assert!(
            why.contains(words) && why.contains("Lull needs"),
            "{msr:#x} {bit:#x}: {why}"
        );
    }
}

#[test]
fn without_true_controls_guests_would_exit_at_every_change_of_cr3() {
    let why = changed(MSR_BASIC, |basic| *basic &= !BASIC_TRUE_CONTROLS).unwrap_err();
    assert_eq!(
        why,
        NoVmx::Control(Refused::CannotClear("CR3-load exiting"))
    );
}

#[test]
fn what_is_only_useful_is_replaced() {
    let found = without(msr::IA32_VMX_TRUE_PROCBASED_CTLS, 1 << 21).unwrap();
    assert!(!found.tpr_shadow());
    let cr8 = PrimaryControls::CR8_LOAD_EXITING | PrimaryControls::CR8_STORE_EXITING;
    assert_eq!(found.primary & cr8.bits(), cr8.bits());
    assert!(found.describe(false).ends_with("; without use TPR shadow"));

    let found = without(msr::IA32_VMX_PROCBASED_CTLS2, 1 << 10).unwrap();
    let pause = PrimaryControls::PAUSE_EXITING.bits();
    assert_eq!(found.primary & pause, pause);

    let found = without(msr::IA32_VMX_TRUE_PINBASED_CTLS, 1 << 6).unwrap();
    assert_eq!(found.timer_shift, None);

    let found = changed(msr::IA32_VMX_EPT_VPID_CAP, |cap| *cap &= !EPT_INVVPID).unwrap();
    assert_eq!(found.invvpid, None);
    assert_eq!(
        found.secondary & SecondaryControls::ENABLE_VPID.bits(),
        0,
        "no tags without a way to drop them"
    );
    let found = changed(msr::IA32_VMX_EPT_VPID_CAP, |cap| {
        *cap &= !EPT_INVVPID_SINGLE
    });
    assert_eq!(found.unwrap().invvpid, Some(Invvpid::AllContexts));
}

#[test]
fn ept_must_have_what_the_tables_use() {
    for (bit, words) in [
        (EPT_FOUR_LEVELS, "four levels"),
        (EPT_WRITE_BACK, "write-back"),
        (EPT_2M, "2 MiB"),
        (EPT_INVEPT, "INVEPT"),
        (EPT_INVEPT_ALL, "INVEPT"),
    ] {
        let why = changed(msr::IA32_VMX_EPT_VPID_CAP, |cap| *cap &= !bit).unwrap_err();
        assert!(why.to_string().contains(words), "{bit:#x}: {why}");
    }
}

#[test]
fn a_msr_that_is_missing_is_named() {
    for (msr, name) in [
        (MSR_BASIC, "IA32_VMX_BASIC"),
        (msr::IA32_VMX_PROCBASED_CTLS2, "IA32_VMX_PROCBASED_CTLS2"),
        (msr::IA32_VMX_MISC, "IA32_VMX_MISC"),
        (msr::IA32_VMX_CR4_FIXED1, "IA32_VMX_CR4_FIXED1"),
    ] {
        let mut fake = skylake();
        fake.remove(&msr);
        assert_eq!(read(&fake), Err(NoVmx::NoMsr { name }));
    }
    let nothing = |_: u32, _: u32| CpuIdResult {
        eax: 0,
        ebx: 0,
        ecx: 0,
        edx: 0,
    };
    let none = Capabilities::read(&nothing, &|_: u32| Some(0));
    assert_eq!(none, Err(NoVmx::Absent));
}

#[test]
fn cpus_of_one_machine_must_be_alike() {
    let first = read(&skylake()).unwrap();
    assert!(first.covers(&first));
    let less = without(msr::IA32_VMX_PROCBASED_CTLS2, 1 << 10).unwrap();
    assert!(!less.covers(&first));
}
