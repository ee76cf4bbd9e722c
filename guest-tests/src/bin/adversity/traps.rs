//! Traps and interrupt shadows: INT3, INTO, ICEBP, INT n, single steps, breakpoints, STI and MOV SS.

use core::sync::atomic::{AtomicU64, Ordering};

use super::checks::Checks;
use super::run::{Bits, Snippet};
use guest_tests::lapic::{self, Message, Target};
use guest_tests::{cpu, timer};

const OF: u64 = 1 << 11;
const IF: u64 = 1 << 9;
/// A vector that this kernel sends to itself.
const SELF: u8 = 0x50;

pub fn test(checks: &Checks) {
    software(checks);
    steps(checks);
    breakpoints(checks);
    shadows(checks);
}

fn software(checks: &Checks) {
    let one = |name: &str, bits: Bits, bytes: &[u8], rflags: u64, expected: &str| {
        let ran = Snippet::new(bytes).bits(bits).rflags(rflags).run();
        checks.expect(
            format_args!("traps.{name}-{}", bits.name()),
            ran.trace().as_str(),
            expected,
        );
    };
    for bits in Bits::ALL {
        one("int3", bits, &[0xcc], 0, "#BP+1");
        one("int-3", bits, &[0xcd, 3], 0, "#BP+2");
        one("int3-prefixed", bits, &[0x66, 0x2e, 0xcc], 0, "#BP+3");
        one("icebp", bits, &[0xf1], 0, "#DB+1");
        one("int-80", bits, &[0xcd, 0x80], 0, "INT80+2");
        one("int-2", bits, &[0xcd, 2], 0, "NMI+2");
        if bits == Bits::B64 {
            one("into", bits, &[0xce], OF, "#UD+0");
        } else {
            one("into", bits, &[0xce], OF, "#OF+1");
            one("into-without-of", bits, &[0xce], 0, "nothing");
        }
    }
}

/// With RFLAGS.TF there is a #DB behind every instruction, those that a hypervisor emulates too.
fn steps(checks: &Checks) {
    let efer = cpu::rdmsr(0xc000_0080);
    let step = |name: &str, bits: Bits, bytes: &[u8], expected: &str| {
        let ran = Snippet::new(bytes)
            .bits(bits)
            .with(efer & 0xffff_ffff, 0xc000_0080, 0x80)
            .stepped()
            .run();
        checks.expect(
            format_args!("steps.{name}-{}", bits.name()),
            ran.trace().as_str(),
            expected,
        );
    };
    for bits in Bits::ALL {
        step("nop", bits, &[0x90, 0x90], "#DBs+1 #DBs+2");
        step("cpuid", bits, &[0x0f, 0xa2, 0x90], "#DBs+2 #DBs+3");
        step("rdmsr", bits, &[0x0f, 0x32, 0x90], "#DBs+2 #DBs+3");
        step("in", bits, &[0xec, 0x90], "#DBs+1 #DBs+2");
        step("out", bits, &[0xee, 0x90], "#DBs+1 #DBs+2");
        step("wbinvd", bits, &[0x0f, 0x09, 0x90], "#DBs+2 #DBs+3");
        step("pause", bits, &[0xf3, 0x90, 0x90], "#DBs+2 #DBs+3");
        step("sti", bits, &[0xfb, 0xfa, 0x90], "#DBs+1 #DBs+2 #DBs+3");
        // A single step behind MOV SS is not taken, nor made up for.
        step(
            "mov-ss",
            bits,
            &[0x8c, 0xd0, 0x8e, 0xd0, 0x90, 0x90],
            "#DBs+2 #DBs+5 #DBs+6",
        );
    }
    step("rdtsc", Bits::B64, &[0x0f, 0x31, 0x90], "#DBs+2 #DBs+3");
    // EFER: its old value.
    let ran = Snippet::new(&[0x0f, 0x30, 0x90])
        .with(efer & 0xffff_ffff, 0xc000_0080, efer >> 32)
        .stepped()
        .run();
    checks.expect(
        format_args!("steps.wrmsr-64"),
        ran.trace().as_str(),
        "#DBs+2 #DBs+3",
    );
    step("int3", Bits::B64, &[0xcc, 0x90], "#BP+1 #DBs+2");
    step("icebp", Bits::B64, &[0xf1, 0x90], "#DB+1 #DBs+2");
}

/// Sets breakpoint 0, runs, and clears it.
fn with_breakpoint(snippet: &Snippet<'_>, address: u64, kind: u64) -> super::run::Ran {
    const SET_DR0: [u8; 3] = [0x0f, 0x23, 0xc0];
    const SET_DR7: [u8; 3] = [0x0f, 0x23, 0xf8];
    let _ = Snippet::new(&SET_DR0).with(address, 0, 0).at(0x800).run();
    let _ = Snippet::new(&SET_DR7)
        .with(0x402 | kind << 16, 0, 0)
        .at(0x800)
        .run();
    let ran = snippet.run();
    let _ = Snippet::new(&SET_DR7).with(0x400, 0, 0).at(0x800).run();
    ran
}

const EXECUTE: u64 = 0b0000;
const WRITE_8: u64 = 0b1001;
const ACCESS_8: u64 = 0b1011;

static WATCHED: AtomicU64 = AtomicU64::new(0x10);

fn breakpoints(checks: &Checks) {
    let area = super::run::code_area() + 0x100;
    let watched = WATCHED.as_ptr() as u64;
    let one = |name: &str, bytes: &[u8], address: u64, kind: u64, expected: &str| {
        let snippet = Snippet::new(bytes).with(0x10, 0, 0).and(watched, 0, 0);
        checks.expect(
            format_args!("breakpoints.{name}"),
            with_breakpoint(&snippet, address, kind).trace().as_str(),
            expected,
        );
    };
    // On an instruction: a fault before it, once, since the handler sets RF.
    one("nop", &[0x90, 0x90], area + 1, EXECUTE, "#DB0+1");
    one("cpuid", &[0x90, 0x0f, 0xa2], area + 1, EXECUTE, "#DB0+1");
    // On data: a trap behind it.
    one(
        "write",
        &[0x48, 0x89, 0x03, 0x90],
        watched,
        WRITE_8,
        "#DB0+3",
    );
    one(
        "read-not-watched",
        &[0x48, 0x8b, 0x03, 0x90],
        watched,
        WRITE_8,
        "nothing",
    );
    one(
        "read",
        &[0x48, 0x8b, 0x0b, 0x90],
        watched,
        ACCESS_8,
        "#DB0+3",
    );
    // MOV SS holds it back over one instruction (CVE-2018-8897), also over one that a hypervisor emulates.
    WATCHED.store(0x10, Ordering::SeqCst);
    one(
        "mov-ss",
        &[0x8e, 0x13, 0x90, 0x90],
        watched,
        ACCESS_8,
        "#DB0+3",
    );
    let watched_cpuid: &[u8] = &[0x8e, 0x13, 0x0f, 0xa2, 0x90];
    let snippet = Snippet::new(watched_cpuid).with(0, 0, 0).and(watched, 0, 0);
    checks.expect(
        format_args!("breakpoints.mov-ss-cpuid"),
        with_breakpoint(&snippet, watched, ACCESS_8)
            .trace()
            .as_str(),
        "#DB0+4",
    );
}

/// With an interrupt pending: where it is taken.
fn shadows(checks: &Checks) {
    timer::cancel();
    let one = |name: &str, bits: Bits, bytes: &[u8], rflags: u64, expected: &str| {
        lapic::send(Target::ToSelf, Message::Fixed(SELF));
        let ran = Snippet::new(bytes)
            .bits(bits)
            .with(0, 0, 0x80)
            .rflags(rflags)
            .run();
        checks.expect(
            format_args!("shadow.{name}-{}", bits.name()),
            ran.trace().as_str(),
            expected,
        );
        // Whatever was not taken is taken now.
        let _ = Snippet::new(&[0xfb, 0x90, 0x90, 0xfa]).run();
    };
    for bits in Bits::ALL {
        one("open", bits, &[0x90], IF, "INT50+0");
        one("sti", bits, &[0xfb, 0x90, 0x90, 0xfa], 0, "INT50+2");
        one(
            "sti-cpuid",
            bits,
            &[0xfb, 0x0f, 0xa2, 0x90, 0xfa],
            0,
            "INT50+3",
        );
        one("sti-in", bits, &[0xfb, 0xec, 0x90, 0xfa], 0, "INT50+2");
        one("sti-cli", bits, &[0xfb, 0xfa, 0x90], 0, "nothing");
        one("sti-hlt", bits, &[0xfb, 0xf4, 0x90, 0xfa], 0, "INT50+2");
        one(
            "sti-hlt-prefixed",
            bits,
            &[0xfb, 0x66, 0x2e, 0xf4, 0x90, 0xfa],
            0,
            "INT50+4",
        );
    }
}
