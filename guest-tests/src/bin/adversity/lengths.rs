//! Every instruction that a hypervisor emulates, with every number of prefixes up to 15 bytes in all, with the border of a
//! page behind each of its bytes, in 64-, 32- and 16-bit code: it is done, once, and the next one runs. One byte more is #GP.

use core::fmt::Write;

use super::checks::Checks;
use super::run::{self, Bits, Snippet, Trace};
use guest_tests::{cpu, figure, host::Host, lapic, paging};

/// The longest instruction.
const LONGEST: usize = 15;

/// Prefixes that change nothing: overrides of segments that are there (FS and GS may be null), and operand sizes where memory is
const SEGMENTS: [u8; 4] = [0x2e, 0x36, 0x3e, 0x26];
const SEGMENTS_AND_SIZES: [u8; 8] = [0x2e, 0x66, 0x36, 0x3e, 0x66, 0x26, 0x64, 0x65];

struct Instruction {
    name: &'static str,
    bytes: &'static [u8],
    /// Whether an operand-size prefix may stand before it.
    sizes: bool,
    registers: fn() -> [u64; 3],
    expected: &'static str,
    /// Only in 64-bit code.
    long: bool,
}

const fn done(
    name: &'static str,
    bytes: &'static [u8],
    registers: fn() -> [u64; 3],
) -> Instruction {
    Instruction {
        name,
        bytes,
        sizes: true,
        registers,
        expected: "nothing",
        long: false,
    }
}

const fn plain(mut instruction: Instruction) -> Instruction {
    instruction.sizes = false;
    instruction
}

const fn refused(name: &'static str, bytes: &'static [u8]) -> Instruction {
    Instruction {
        name,
        bytes,
        sizes: false,
        registers: || [0; 3],
        expected: "#UD+0",
        long: false,
    }
}

const EFER: u64 = 0xc000_0080;
/// A port without a device.
const PORT: u64 = 0x80;

fn efer() -> [u64; 3] {
    let value = cpu::rdmsr(0xc000_0080);
    [value & 0xffff_ffff, EFER, value >> 32]
}

static INSTRUCTIONS: [Instruction; 16] = [
    done("cpuid", &[0x0f, 0xa2], || [0, 0, 0]),
    done("rdmsr", &[0x0f, 0x32], || [0, 0x1b, 0]),
    done("wrmsr", &[0x0f, 0x30], efer),
    done("in-al-dx", &[0xec], || [0, 0, PORT]),
    done("in-eax-dx", &[0xed], || [0, 0, PORT]),
    done("in-al-imm", &[0xe4, 0x80], || [0; 3]),
    done("out-dx-al", &[0xee], || [0, 0, PORT]),
    done("out-dx-eax", &[0xef], || [0, 0, PORT]),
    done("out-imm-al", &[0xe6, 0x80], || [0; 3]),
    plain(done("outsb", &[0x6e], || [0, 0, PORT])),
    plain(done("rep-outsb", &[0xf3, 0x6e], || [0, 3, PORT])),
    plain(done("wbinvd", &[0x0f, 0x09], || [0; 3])),
    plain(done("pause", &[0xf3, 0x90], || [0; 3])),
    refused("vmmcall", &[0x0f, 0x01, 0xd9]),
    refused("vmcall", &[0x0f, 0x01, 0xc1]),
    Instruction {
        long: true,
        ..done("mov-cr8", &[0x44, 0x0f, 0x22, 0xc0], || [0; 3])
    },
];

pub fn test(checks: &Checks, host: Host) {
    let mut runs = 0u64;
    for instruction in &INSTRUCTIONS {
        for bits in Bits::ALL {
            if instruction.long && bits != Bits::B64 {
                continue;
            }
            let trace = in_all_places(instruction, bits, &mut runs);
            checks.expect(
                format_args!("lengths.{}-{}", instruction.name, bits.name()),
                trace.as_str(),
                "as expected",
            );
        }
    }
    at_the_end_of_memory(checks);
    if !lapic::is_x2apic() {
        page_accesses(checks);
    }
    // On silicon INVD throws away what others have written.
    if host == Host::Lull {
        let ran = Snippet::new(&[0x2e, 0x0f, 0x08]).run();
        checks.expect(
            format_args!("lengths.invd"),
            ran.trace().as_str(),
            "nothing",
        );
    }
    figure!("length_runs", runs, "runs");
}

/// What went otherwise than expected in the first place where something did.
fn in_all_places(instruction: &Instruction, bits: Bits, runs: &mut u64) -> Trace {
    let prefixes: &[u8] = if instruction.sizes {
        &SEGMENTS_AND_SIZES
    } else {
        &SEGMENTS
    };
    let [rax, rcx, rdx] = (instruction.registers)();
    let buffer = run::code_area() + 0x2800;
    for count in 0..=LONGEST + 1 - instruction.bytes.len() {
        let len = count + instruction.bytes.len();
        let mut bytes = [0u8; LONGEST + 1];
        let all = prefixes.iter().cycle().take(count).chain(instruction.bytes);
        bytes.iter_mut().zip(all).for_each(|(to, &byte)| *to = byte);
        let bytes = bytes.get(..len).unwrap_or_default();
        let expected = if len > LONGEST {
            "#GP+0"
        } else {
            instruction.expected
        };
        for split in 0..=len {
            *runs += 1;
            let ran = Snippet::new(bytes)
                .bits(bits)
                .at(4096 - split)
                .with(rax, rcx, rdx)
                .and(0, buffer, buffer)
                .run();
            let trace = ran.trace();
            if trace.as_str() != expected {
                let mut report = Trace::new();
                let _ = write!(
                    report,
                    "{} with {count} prefixes, {split} before the border",
                    trace.as_str()
                );
                return report;
            }
        }
    }
    let mut good = Trace::new();
    let _ = good.write_str("as expected");
    good
}

/// The instruction ends with the last byte that is mapped.
#[expect(unsafe_code, reason = "writes code behind a mapping of its own")]
fn at_the_end_of_memory(checks: &Checks) {
    const PHYSICAL: u64 = 8 << 20;
    const SIZE: u64 = 2 << 20;
    let base = paging::map_spare(PHYSICAL) as u64;
    for (name, bytes) in [
        ("cpuid", &[0x0fu8, 0xa2] as &[u8]),
        ("rdmsr", &[0x0f, 0x32]),
        ("in", &[0xec]),
        ("wbinvd", &[0x0f, 0x09]),
    ] {
        let start = base + SIZE - bytes.len() as u64;
        for (offset, &byte) in bytes.iter().enumerate() {
            // SAFETY: memory of this guest where nothing lies, mapped just now.
            unsafe { ((start + offset as u64) as *mut u8).write_volatile(byte) };
        }
        let ran = Snippet::new(bytes).with(0, 0x1b, PORT).execute(start);
        let mut expected = Trace::new();
        let _ = write!(expected, "#PF(10)+{}", bytes.len());
        // The error code says "fetch" only where NX is on.
        let trace = ran.trace();
        let mut plain = Trace::new();
        let _ = write!(plain, "#PF+{}", bytes.len());
        let good = trace.as_str() == plain.as_str() || trace.as_str() == expected.as_str();
        checks.holds(format_args!("lengths.{name}-at-the-end"), good);
    }
    let _ = paging::map_spare(0);
}

/// Moves to and from the LAPIC's page.
fn page_accesses(checks: &Checks) {
    const ID: u64 = 0xfee0_0020;
    const TPR: u64 = 0xfee0_0080;
    let forms: [(&str, &[u8], u64); 6] = [
        ("mov-load", &[0x8b, 0x03], ID),
        ("mov-load-prefixed", &[0x3e, 0x3e, 0x3e, 0x8b, 0x03], ID),
        ("mov-store", &[0x89, 0x03], TPR),
        ("mov-store-imm", &[0xc7, 0x03, 0, 0, 0, 0], TPR),
        (
            "mov-store-long",
            &[
                0x2e, 0x2e, 0x2e, 0x2e, 0x2e, 0x2e, 0xc7, 0x83, 0, 0, 0, 0, 0, 0, 0, 0,
            ],
            TPR,
        ),
        ("xchg", &[0x87, 0x03], TPR),
    ];
    for (name, bytes, address) in forms {
        for bits in [Bits::B64, Bits::B32] {
            let expected = if bytes.len() > LONGEST {
                "#GP+0"
            } else {
                "nothing"
            };
            for split in 0..=bytes.len() {
                let ran = Snippet::new(bytes)
                    .bits(bits)
                    .at(4096 - split)
                    .and(address, 0, 0)
                    .run();
                checks.expect(
                    format_args!("lengths.page-{name}-{}", bits.name()),
                    ran.trace().as_str(),
                    expected,
                );
            }
        }
    }
}
