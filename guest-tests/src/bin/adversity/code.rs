//! Code that changes under the CPU: its own next instruction, a callee, an instruction that the hypervisor emulates.
#![expect(unsafe_code, reason = "writes code")]

use super::checks::Checks;
use super::run::{self, Bits, Snippet};
use guest_tests::cpu;

pub fn test(checks: &Checks) {
    next_instruction(checks);
    callee(checks);
    emulated(checks);
}

/// `mov byte [rbx], al; mov cl, 0`: the second has the new immediate (SDM vol. 3, "Self-Modifying Code": the same linear
/// address needs no serialising instruction on these processors).
fn next_instruction(checks: &Checks) {
    let at = run::code_area() + 0x100 + 3;
    let mut good = true;
    for value in 1..=200u64 {
        let ran = Snippet::new(&[0x88, 0x03, 0xb1, 0x00])
            .with(value, 0, 0)
            .and(at, 0, 0)
            .run();
        let [_, rcx, ..] = ran.registers;
        good &= ran.is_plain() && rcx & 0xff == value;
    }
    checks.holds(format_args!("code.next-instruction"), good);
}

/// An immediate in a callee, changed a thousand times, in both pages that it lies in.
fn callee(checks: &Checks) {
    let area = run::code_area();
    // mov eax, imm32; then UD2. The immediate crosses the border of a page.
    let at = 4096 - 3;
    let snippet = Snippet::new(&[0xb8, 0, 0, 0, 0]).at(at);
    let _ = snippet.run();
    let mut good = true;
    for value in 0..1000u32 {
        let value = value.wrapping_mul(0x9e37_79b9);
        // SAFETY: the immediate of an instruction in the code area.
        unsafe { ((area + at as u64 + 1) as *mut u32).write_unaligned(value) };
        let ran = snippet.execute(area + at as u64);
        let [rax, ..] = ran.registers;
        good &= ran.is_plain() && rax == u64::from(value);
    }
    checks.holds(format_args!("code.callee"), good);
}

/// One place that is CPUID, RDMSR, IN and CPUID with prefixes in turn: each time the emulated one is the one that is there.
fn emulated(checks: &Checks) {
    let base = cpu::rdmsr(0x1b);
    let leaf = cpu::cpuid(0, 0);
    let forms: [(&[u8], u64); 5] = [
        (&[0x0f, 0xa2, 0x90, 0x90, 0x90], u64::from(leaf.eax)),
        (&[0x0f, 0x32, 0x90, 0x90, 0x90], base & 0xffff_ffff),
        (&[0xec, 0x90, 0x90, 0x90, 0x90], 0xff),
        (&[0x2e, 0x3e, 0x64, 0x0f, 0xa2], u64::from(leaf.eax)),
        (&[0x66, 0x66, 0x0f, 0x32, 0x90], base & 0xffff_ffff),
    ];
    let mut good = true;
    for round in 0..200usize {
        for (bytes, expected) in forms {
            // RAX and RCX: leaf 0, or the number of an MSR, or nothing.
            let rax = 0;
            let rcx = if bytes.contains(&0x32) { 0x1b } else { 0 };
            let ran = Snippet::new(bytes)
                .bits(Bits::ALL[round % 3])
                .at(4096 - 1 - round % 5)
                .with(rax, rcx, 0x1234)
                .run();
            let [found, ..] = ran.registers;
            good &= ran.is_plain() && found == expected;
        }
    }
    checks.holds(format_args!("code.emulated"), good);
}
