//! Instructions of virtualization, which a guest does not have: #UD, whoever made the CPU.

use super::checks::Checks;
use super::run::Snippet;
use guest_tests::cpu;

/// Name, bytes. RAX points to memory that may be lost, RCX and RDX are zero.
const INSTRUCTIONS: [(&str, &[u8]); 24] = [
    ("vmxon", &[0xf3, 0x0f, 0xc7, 0x30]),
    ("vmxoff", &[0x0f, 0x01, 0xc4]),
    ("vmclear", &[0x66, 0x0f, 0xc7, 0x30]),
    ("vmptrld", &[0x0f, 0xc7, 0x30]),
    ("vmptrst", &[0x0f, 0xc7, 0x38]),
    ("vmread", &[0x0f, 0x78, 0xc8]),
    ("vmwrite", &[0x0f, 0x79, 0xc8]),
    ("vmlaunch", &[0x0f, 0x01, 0xc2]),
    ("vmresume", &[0x0f, 0x01, 0xc3]),
    ("vmcall", &[0x0f, 0x01, 0xc1]),
    ("vmfunc", &[0x0f, 0x01, 0xd4]),
    ("invept", &[0x66, 0x0f, 0x38, 0x80, 0x08]),
    ("invvpid", &[0x66, 0x0f, 0x38, 0x81, 0x08]),
    ("getsec", &[0x0f, 0x37]),
    ("vmrun", &[0x0f, 0x01, 0xd8]),
    ("vmmcall", &[0x0f, 0x01, 0xd9]),
    ("vmload", &[0x0f, 0x01, 0xda]),
    ("vmsave", &[0x0f, 0x01, 0xdb]),
    ("stgi", &[0x0f, 0x01, 0xdc]),
    ("clgi", &[0x0f, 0x01, 0xdd]),
    ("skinit", &[0x0f, 0x01, 0xde]),
    ("invlpga", &[0x0f, 0x01, 0xdf]),
    ("encls", &[0x0f, 0x01, 0xcf]),
    ("seamcall", &[0x66, 0x0f, 0x01, 0xcf]),
];

pub fn test(checks: &Checks) {
    const SKINIT: u32 = 1 << 12;
    const SGX: u32 = 1 << 2;
    let skinit = cpu::cpuid(0x8000_0001, 0).ecx & SKINIT != 0;
    let sgx = cpu::cpuid(7, 0).ebx & SGX != 0;
    for (name, bytes) in INSTRUCTIONS {
        // STGI without SVM enabled, and SKINIT itself, are there where SKINIT is offered (AMD APM vol. 3).
        if skinit && matches!(name, "stgi" | "skinit") || sgx && name == "encls" {
            continue;
        }
        // CR4.VMXE is clear, EFER.SVME too.
        let ran = Snippet::new(bytes).with(0x9000, 0, 0).run();
        checks.expect(format_args!("virt.{name}"), ran.trace().as_str(), "#UD+0");
    }
    if !cpu::features().monitor {
        for (name, bytes) in [
            ("monitor", [0x0f, 0x01, 0xc8]),
            ("mwait", [0x0f, 0x01, 0xc9]),
        ] {
            let ran = Snippet::new(&bytes).with(0x9000, 0, 0).run();
            checks.expect(format_args!("virt.{name}"), ran.trace().as_str(), "#UD+0");
        }
    }
}
