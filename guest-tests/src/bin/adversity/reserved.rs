//! Reserved bits and forbidden combinations in control registers and MSRs: #GP(0), and nothing changes.

use super::checks::Checks;
use super::run::{Bits, Snippet};
use guest_tests::departures::Below;
use guest_tests::{cpu, note};

/// MOV to a control register, and back to what was there: the second is not reached if the first faults.
const MOV_CR0: [u8; 6] = [0x0f, 0x22, 0xc0, 0x0f, 0x22, 0xc1];
const MOV_CR3: [u8; 6] = [0x0f, 0x22, 0xd8, 0x0f, 0x22, 0xd9];
const MOV_CR4: [u8; 6] = [0x0f, 0x22, 0xe0, 0x0f, 0x22, 0xe1];
const MOV_CR8: [u8; 8] = [0x44, 0x0f, 0x22, 0xc0, 0x44, 0x0f, 0x22, 0xc1];
const MOV_DR6: [u8; 6] = [0x0f, 0x23, 0xf0, 0x0f, 0x23, 0xf1];
const MOV_DR7: [u8; 6] = [0x0f, 0x23, 0xf8, 0x0f, 0x23, 0xf9];
/// WRMSR, then the old value from RSI and RDI.
const WRMSR_AND_BACK: [u8; 8] = [0x0f, 0x30, 0x89, 0xf0, 0x89, 0xfa, 0x0f, 0x30];
const XSETBV: [u8; 3] = [0x0f, 0x01, 0xd1];
/// MOV RAX from a control register.
const READ_CR0: [u8; 3] = [0x0f, 0x20, 0xc0];
const READ_CR3: [u8; 3] = [0x0f, 0x20, 0xd8];
const READ_CR4: [u8; 3] = [0x0f, 0x20, 0xe0];

const GP: &str = "#GP+0";

fn read(bytes: &[u8]) -> u64 {
    let [value, ..] = Snippet::new(bytes).run().registers;
    value
}

pub fn test(checks: &Checks) {
    control_registers(checks);
    msrs(checks);
    extended_control(checks);
}

fn control_registers(checks: &Checks) {
    const PE: u64 = 1;
    const NW: u64 = 1 << 29;
    const CD: u64 = 1 << 30;
    let (cr0, cr3, cr4) = (read(&READ_CR0), read(&READ_CR3), read(&READ_CR4));
    let refused = |name: &str, code: &[u8], bad: u64, good: u64, dangerous: bool| {
        if dangerous && checks.below() == Below::Qemu {
            note!("reserved.{name} is not tried: QEMU takes it, and the guest is lost");
            return;
        }
        let ran = Snippet::new(code).with(bad, good, 0).run();
        checks.expect(format_args!("reserved.{name}"), ran.trace().as_str(), GP);
    };
    refused("cr0-bit-63", &MOV_CR0, cr0 | 1 << 63, cr0, false);
    refused("cr0-nw-without-cd", &MOV_CR0, cr0 & !CD | NW, cr0, false);
    refused("cr0-pg-without-pe", &MOV_CR0, cr0 & !PE, cr0, true);
    let width = (cpu::cpuid(0x8000_0008, 0).eax & 0xff).clamp(36, 52);
    if width < 52 {
        refused("cr3-above-width", &MOV_CR3, cr3 | 1 << 51, cr3, true);
    }
    refused("cr3-bit-62", &MOV_CR3, cr3 | 1 << 62, cr3, true);
    refused("cr4-bit-31", &MOV_CR4, cr4 | 1 << 31, cr4, true);
    refused("cr4-bit-63", &MOV_CR4, cr4 | 1 << 63, cr4, true);
    refused("cr4-la57-in-long-mode", &MOV_CR4, cr4 ^ 1 << 12, cr4, true);
    refused("cr4-without-pae", &MOV_CR4, cr4 & !(1 << 5), cr4, true);
    for (name, bit, offered) in [
        ("vmxe", 13, cpu::cpuid(1, 0).ecx >> 5 & 1),
        ("smxe", 14, cpu::cpuid(1, 0).ecx >> 6 & 1),
        ("pke", 22, cpu::cpuid(7, 0).ecx >> 3 & 1),
        ("cet", 23, cpu::cpuid(7, 0).ecx >> 7 & 1),
    ] {
        if offered == 0 && checks.below() != Below::Qemu {
            refused_bit(checks, name, cr4, bit);
        }
    }
    refused("cr8-bit-4", &MOV_CR8, 0x10, 0, false);
    refused("cr8-bit-63", &MOV_CR8, 1 << 63, 0, false);
    refused("dr6-bit-32", &MOV_DR6, 1 << 32, 0xffff_0ff0, false);
    refused("dr7-bit-32", &MOV_DR7, 1 << 32 | 0x400, 0x400, false);
    checks.holds(
        format_args!("reserved.control-registers-unchanged"),
        (read(&READ_CR0), read(&READ_CR3), read(&READ_CR4)) == (cr0, cr3, cr4),
    );
}

/// A bit of CR4 for a feature that CPUID does not name.
fn refused_bit(checks: &Checks, name: &str, cr4: u64, bit: u32) {
    let ran = Snippet::new(&MOV_CR4).with(cr4 | 1 << bit, cr4, 0).run();
    checks.expect(
        format_args!("reserved.cr4-{name}-not-offered"),
        ran.trace().as_str(),
        GP,
    );
}

/// Makes of what a register holds a value that it must not take.
type Spoil = fn(u64) -> u64;

fn msrs(checks: &Checks) {
    const EFER: u64 = 0xc000_0080;
    const NOT_CANONICAL: u64 = 1 << 47;
    let cases: [(&str, u64, Spoil); 12] = [
        ("efer-bit-63", EFER, |efer| efer | 1 << 63),
        ("efer-bit-9", EFER, |efer| efer | 1 << 9),
        ("efer-lme-while-paging", EFER, |efer| efer & !(1 << 8)),
        ("apic-base-bit-0", 0x1b, |base| base | 1),
        ("pat-type-2", 0x277, |_| 0x0007_0402_0007_0406),
        ("pat-type-8", 0x277, |_| 0x0807_0406_0007_0406),
        ("fs-base", 0xc000_0100, |_| NOT_CANONICAL),
        ("gs-base", 0xc000_0101, |_| NOT_CANONICAL),
        ("kernel-gs-base", 0xc000_0102, |_| NOT_CANONICAL),
        ("lstar", 0xc000_0082, |_| NOT_CANONICAL),
        ("sysenter-eip", 0x176, |_| NOT_CANONICAL),
        ("sysenter-esp", 0x175, |_| NOT_CANONICAL),
    ];
    for (name, msr, bad) in cases {
        let Ok(number) = u32::try_from(msr) else {
            continue;
        };
        let old = cpu::rdmsr(number);
        let value = bad(old);
        let ran = Snippet::new(&WRMSR_AND_BACK)
            .with(value & 0xffff_ffff, msr, value >> 32)
            .and(0, old & 0xffff_ffff, old >> 32)
            .run();
        checks.expect(format_args!("reserved.{name}"), ran.trace().as_str(), GP);
        checks.holds(
            format_args!("reserved.{name}-unchanged"),
            cpu::rdmsr(number) == old,
        );
    }
    const SVM: u32 = 1 << 2;
    if cpu::cpuid(0x8000_0001, 0).ecx & SVM == 0 {
        let old = cpu::rdmsr(0xc000_0080);
        let ran = Snippet::new(&WRMSR_AND_BACK)
            .with(old & 0xffff_ffff | 1 << 12, EFER, old >> 32)
            .and(0, old & 0xffff_ffff, old >> 32)
            .run();
        checks.expect(
            format_args!("reserved.efer-svme-not-offered"),
            ran.trace().as_str(),
            GP,
        );
    }
}

fn extended_control(checks: &Checks) {
    const XSAVE: u32 = 1 << 26;
    const OSXSAVE: u64 = 1 << 18;
    let cr4 = read(&READ_CR4);
    let offered = cpu::cpuid(1, 0).ecx & XSAVE != 0;
    if cr4 & OSXSAVE == 0 {
        let ran = Snippet::new(&XSETBV).with(1, 0, 0).run();
        checks.expect(
            format_args!("reserved.xsetbv-without-osxsave"),
            ran.trace().as_str(),
            "#UD+0",
        );
    }
    if !offered {
        let ran = Snippet::new(&MOV_CR4).with(cr4 | OSXSAVE, cr4, 0).run();
        checks.expect(
            format_args!("reserved.cr4-osxsave-not-offered"),
            ran.trace().as_str(),
            GP,
        );
        return;
    }
    // From here on with OSXSAVE; the last snippet takes it back.
    let ran = Snippet::new(&[0x0f, 0x22, 0xe0])
        .with(cr4 | OSXSAVE, 0, 0)
        .run();
    checks.expect(
        format_args!("reserved.cr4-osxsave"),
        ran.trace().as_str(),
        "nothing",
    );
    let leaf = cpu::cpuid(0xd, 0);
    let supported = u64::from(leaf.edx) << 32 | u64::from(leaf.eax);
    // Restores 1, or what was there: XCR0 is 1 after reset.
    let set = |name: &str, value: u64, index: u64, bits: Bits, expected: &str| {
        let ran = Snippet::new(&XSETBV)
            .bits(bits)
            .with(value & 0xffff_ffff, index, value >> 32)
            .run();
        checks.expect(
            format_args!("reserved.{name}"),
            ran.trace().as_str(),
            expected,
        );
    };
    set("xcr0-empty", 0, 0, Bits::B64, GP);
    set("xcr0-without-x87", 2, 0, Bits::B64, GP);
    set("xcr0-bit-62", 1 << 62 | 1, 0, Bits::B64, GP);
    set("xcr0-bit-63", 1 << 63 | 1, 0, Bits::B64, GP);
    if supported >> 2 & 1 != 0 {
        set("xcr0-avx-without-sse", 5, 0, Bits::B64, GP);
        set("xcr0-avx", 7, 0, Bits::B64, "nothing");
    }
    if supported >> 5 & 7 == 7 {
        set("xcr0-opmask-alone", 0x27, 0, Bits::B64, GP);
    }
    if supported >> 3 & 3 == 3 {
        set("xcr0-bndregs-alone", 0xb, 0, Bits::B64, GP);
    }
    set("xcr1", 1, 1, Bits::B64, GP);
    set("xcr0-in-32-bit-code", 3, 0, Bits::B32, "nothing");
    set("xcr0-in-16-bit-code", 1, 0, Bits::B16, "nothing");
    let [low, _, high, ..] = Snippet::new(&[0x0f, 0x01, 0xd0]).run().registers;
    checks.holds(format_args!("reserved.xcr0-read"), (low, high) == (1, 0));
    let _ = Snippet::new(&[0x0f, 0x22, 0xe0]).with(cr4, 0, 0).run();
}
