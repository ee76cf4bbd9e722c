//! Does what is legal and seldom done, and what is not legal, and looks at every exception frame.
//!
//! `test=` names the groups (comma-separated; all by default):
//!
//! | group | |
//! |---|---|
//! | `virt` | instructions of virtualization: #UD |
//! | `reserved` | reserved bits of CR0, CR3, CR4, CR8, DR6, DR7, EFER, XCR0 and other MSRs: #GP |
//! | `traps` | INT3, INTO, ICEBP, INT n; single steps over everything that is emulated; breakpoints; the shadows of STI and MOV SS |
//! | `nmi` | NMIs while NMIs are blocked |
//! | `code` | self-modifying code |
//! | `lengths` | emulated instructions with up to 15 bytes, across pages, in 64, 32 and 16 bits |
//! | `modes` | real mode with far jumps, paging off, 32-bit, PAE, 4-level; 1 GiB pages |
//!
//! `end=` is the last act: `port` (default); `halt`: HLT with interrupts off, after `PASS`; `cx16`: LOCK CMPXCHG16B on the
//! LAPIC's page after `PASS`, then the exit port if it lives.
//!
//! `below=auto|manual|qemu|bochs`: whose known departures from the manuals are let pass. `auto` knows QEMU by CPUID.
//!
//! Figures: `checks`, `departures`, `length_runs`.
#![no_std]
#![no_main]

mod checks;
mod code;
mod lengths;
mod modes;
mod nmi;
mod reserved;
mod run;
mod traps;
mod virt;

use checks::Checks;
use guest_tests::departures::Below;
use guest_tests::host::Host;
use guest_tests::{Machine, cpu, note, print, trap, verdict};
use run::Snippet;

guest_tests::guest_test! {
    name: "adversity",
    summary: "reserved bits, foreign opcodes, prefixes, shadows, paging modes",
    cmdline: "",
    vcpus: 1,
    memory_mib: 16,
    end: Port,
    main: main,
    ap: trap::no_ap,
    interrupt: trap::no_interrupts,
}

type Group = (&'static str, fn(&Checks, Host));

const GROUPS: [Group; 7] = [
    ("virt", |checks, _| virt::test(checks)),
    ("reserved", |checks, _| reserved::test(checks)),
    ("traps", |checks, _| traps::test(checks)),
    ("nmi", |checks, _| nmi::test(checks)),
    ("code", |checks, _| code::test(checks)),
    ("lengths", lengths::test),
    ("modes", |checks, _| modes::test(checks)),
];

fn main(machine: &Machine<'_>) {
    let options = &machine.options;
    let wanted = options.text("test");
    let end = options.choice("end", &["port", "halt", "cx16"], 0);
    let below = match options.choice("below", &["auto", "manual", "qemu", "bochs"], 0) {
        1 => Below::Silicon,
        2 => Below::Qemu,
        3 => Below::Bochs,
        _ if machine.host == Host::Tcg || is_qemu() => Below::Qemu,
        _ => Below::Silicon,
    };
    options.report_unknown();
    for word in wanted
        .unwrap_or("")
        .split(',')
        .filter(|word| !word.is_empty())
    {
        if GROUPS.iter().all(|(name, _)| *name != word) {
            note!("test={word} is unknown, ignored");
        }
    }
    run::init();
    let checks = Checks::new(below);
    for (name, test) in GROUPS {
        if wanted.is_none_or(|list| list.split(',').any(|word| word == name)) {
            print!("adversity: {name}");
            test(&checks, machine.host);
        }
    }
    checks.finish();
    match end {
        1 => {
            verdict::pass();
            print!("adversity: halting with interrupts off");
            cpu::stop();
        }
        2 => {
            verdict::pass();
            print!("adversity: LOCK CMPXCHG16B on the LAPIC's page");
            // LVT error and what follows: RAX, RDX, RBX, RCX.
            let ran = Snippet::new(&[0xf0, 0x48, 0x0f, 0xc7, 0x0f])
                .with(0, 0, 0)
                .and(0, 0, 0xfee0_0370)
                .run();
            print!("adversity: {}", ran.trace().as_str());
        }
        _ => {}
    }
}

/// The name of the CPU, which a hypervisor passes on, begins with QEMU's.
fn is_qemu() -> bool {
    let leaf = cpu::cpuid(0x8000_0002, 0);
    [leaf.eax, leaf.ebx] == [u32::from_le_bytes(*b"QEMU"), u32::from_le_bytes(*b" TCG")]
}
