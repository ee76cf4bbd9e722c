//! The programs, and what must come of them.
#![expect(unsafe_code, reason = "seeds a register that must not reach a guest")]

use alloc::format;
use alloc::string::String;
use core::arch::asm;

use lull_core::wake::Events;

use super::Bench;
use crate::virt::{Exit, GateEvent, Gpr, Injection, StartState};

/// Real-mode programs start on this page.
const REAL_PAGE: u8 = 1;
const REAL: u64 = (REAL_PAGE as u64) << 12;
const HANDLER: u64 = 0x1800;
const FLAT: u64 = 0x2000;
const START_INFO: u32 = 0x7000;
const VECTOR: u8 = 0x20;
/// Guest-physical address without memory.
const HOLE: u64 = 0x8000_0000;
const CPUID: &[u8] = &[0x0f, 0xa2];
/// `inc` of all 16-bit registers but SP.
const INC_SEVEN: &[u8] = &[0x40, 0x41, 0x42, 0x43, 0x45, 0x46, 0x47];
const RDMSR: &[u8] = &[0x0f, 0x32];
const HLT: &[u8] = &[0xf4];
const PAUSE: &[u8] = &[0xf3, 0x90];
const VMMCALL: &[u8] = &[0x0f, 0x01, 0xd9];
const VMRUN: &[u8] = &[0x0f, 0x01, 0xd8];
const MONITOR: &[u8] = &[0x0f, 0x01, 0xc8];
const STI_NOP_NOP: &[u8] = &[0xfb, 0x90, 0x90];
const IRET: &[u8] = &[0xcf];
const OUT_E9_AX: &[u8] = &[0xe7, 0xe9];
const OUT_80_AL: &[u8] = &[0xe6, 0x80];
const OUT_80_EAX: &[u8] = &[0xe7, 0x80];
const MOV_EAX_HOLE: &[u8] = &[0xa1, 0, 0, 0, 0x80];
const MOV_HOLE_EAX: &[u8] = &[0xa3, 0, 0, 0, 0x80];
const JUMP_SELF: &[u8] = &[0xeb, 0xfe];
const UD2: &[u8] = &[0x0f, 0x0b];
/// `mov eax, 0x600; mov cr4, eax; movd eax, xmm0`.
const READ_XMM0: &[u8] = &[
    0xb8, 0, 0x06, 0, 0, 0x0f, 0x22, 0xe0, 0x66, 0x0f, 0x7e, 0xc0,
];
const NOP: &[u8] = &[0x90];
const STI: &[u8] = &[0xfb];
const WRMSR: &[u8] = &[0x0f, 0x30];
const WBINVD: &[u8] = &[0x0f, 0x09];
const INVD: &[u8] = &[0x0f, 0x08];
const RDPMC: &[u8] = &[0x0f, 0x33];
const INVLPGA: &[u8] = &[0x0f, 0x01, 0xdf];
const CLGI: &[u8] = &[0x0f, 0x01, 0xdd];
const XSETBV: &[u8] = &[0x0f, 0x01, 0xd1];
/// `mov eax, 0x40600; mov cr4, eax; xor ecx, ecx; xgetbv`.
const READ_XCR0: &[u8] = &[
    0xb8, 0, 0x06, 0x04, 0, 0x0f, 0x22, 0xe0, 0x31, 0xc9, 0x0f, 0x01, 0xd0,
];
/// 16-bit `pushf; pop ax; or ax, 0x100; push ax; popf`.
const SET_TF: &[u8] = &[0x9c, 0x58, 0x0d, 0x00, 0x01, 0x50, 0x9d];
const IDT_POINTER: u32 = 0x2800;
/// `lidt [0x2800]`.
const LIDT: &[u8] = &[0x0f, 0x01, 0x1d, 0x00, 0x28, 0, 0];
/// `mov eax, dr0`.
const READ_DR0: &[u8] = &[0x0f, 0x21, 0xc0];
/// `mov dr0, ebx`.
const WRITE_DR0: &[u8] = &[0x0f, 0x23, 0xc3];

/// Registers in and out, the plain exits, an interrupt through the window, in real mode.
pub fn real_mode(b: &mut Bench<'_>, _: &mut Bench<'_>) -> Result<(), String> {
    b.start(
        StartState::Sipi { vector: REAL_PAGE },
        REAL,
        &[
            VMMCALL,
            VMMCALL,
            INC_SEVEN,
            VMMCALL,
            CPUID,
            OUT_E9_AX,
            RDMSR,
            PAUSE,
            STI_NOP_NOP,
            HLT,
            UD2,
        ],
    )?;
    b.put(HANDLER, &[OUT_80_AL, IRET])?;
    b.put(u64::from(VECTOR) * 4, &[&[0x00, 0x18, 0, 0]])?;
    b.put(6 * 4, &[&[0x40, 0x18, 0, 0]])?;
    b.put(HANDLER + 0x40, &[HLT])?;

    b.pass(VMMCALL, &Exit::Hypercall)?;
    for register in Gpr::ALL {
        b.check("register of a new vCPU", b.vcpu.gpr(register), 0)?;
        b.vcpu
            .set_gpr(register, 0x1111_1111_1111_0000 + register.index() as u64);
    }
    b.pass(VMMCALL, &Exit::Hypercall)?;
    for register in Gpr::ALL {
        b.check(
            "register after a round trip",
            b.vcpu.gpr(register),
            0x1111_1111_1111_0000 + register.index() as u64,
        )?;
    }
    b.pass(VMMCALL, &Exit::Hypercall)?;
    for register in Gpr::ALL {
        // INC changed the lower half of the first eight, but not of RSP, nor of those that this mode cannot name.
        let changed = register.index() < 8 && register != Gpr::Rsp;
        let wanted = 0x1111_1111_1111_0000 + register.index() as u64 + u64::from(changed);
        b.check(
            "register that the guest changed",
            b.vcpu.gpr(register),
            wanted,
        )?;
    }
    b.pass(CPUID, &Exit::Cpuid)?;
    b.vcpu.set_gpr(Gpr::Rax, 0x1234);
    let printed = b.out(0xe9, 2)?;
    b.check("AX at OUT", printed, 0x1234)?;
    b.pass(RDMSR, &Exit::Rdmsr)?;
    b.pass(PAUSE, &Exit::Pause)?;

    b.vcpu.set_gpr(Gpr::Rsp, 0x900);
    b.check(
        "interruptible with IF=0",
        u64::from(b.vcpu.interruptible()),
        0,
    )?;
    b.vcpu.want_window(true);
    b.expect(&Exit::InterruptWindow)?;
    b.check(
        "interruptible in the window",
        u64::from(b.vcpu.interruptible()),
        1,
    )?;
    b.vcpu.inject(Injection::Interrupt(VECTOR));
    b.out(0x80, 1)?;
    b.check("rip in the handler", b.vcpu.rip(), HANDLER + 2)?;
    b.check(
        "injection pending after delivery",
        u64::from(b.vcpu.injection_pending()),
        0,
    )?;
    b.pass(HLT, &Exit::Hlt)?;
    b.check("IF after IRET", b.vcpu.rflags() >> 9 & 1, 1)?;
    // #UD by the guest's own doing, through its own table.
    b.expect(&Exit::Hlt)?;
    b.check("rip in the #UD handler", b.vcpu.rip(), HANDLER + 0x40)?;
    b.stop();
    Ok(())
}

/// Nested faults, instructions that guests do not have, a triple fault, in flat 32-bit mode.
pub fn flat_mode(b: &mut Bench<'_>, _: &mut Bench<'_>) -> Result<(), String> {
    let entry = StartState::Pvh {
        entry: FLAT as u32,
        start_info: START_INFO,
    };
    b.start(
        entry,
        FLAT,
        &[
            OUT_80_EAX,
            MOV_EAX_HOLE,
            OUT_80_EAX,
            MOV_HOLE_EAX,
            MONITOR,
            VMRUN,
            UD2,
        ],
    )?;
    b.out(0x80, 4)?;
    b.check(
        "EBX at a PVH entry",
        b.vcpu.gpr(Gpr::Rbx),
        u64::from(START_INFO),
    )?;
    let read = Exit::NestedFault {
        gpa: HOLE,
        write: false,
        fetch: false,
        present: false,
        page_walk: false,
    };
    b.expect(&read)?;
    b.vcpu.set_gpr(Gpr::Rax, 0x55aa_1234);
    b.step_over(MOV_EAX_HOLE);
    let value = b.out(0x80, 4)?;
    b.check("value read from the hole", value, 0x55aa_1234)?;
    let write = Exit::NestedFault {
        gpa: HOLE,
        write: true,
        fetch: false,
        present: false,
        page_walk: false,
    };
    b.pass(MOV_HOLE_EAX, &write)?;
    b.pass(MONITOR, &Exit::Monitor)?;
    // The processor looks at the address before it looks at the intercept.
    b.vcpu.set_gpr(Gpr::Rax, 0x3000);
    b.expect(&Exit::Undefined)?;
    // No descriptor table: #UD becomes a double fault, then a triple one.
    b.vcpu.inject(Injection::UD);
    b.expect(&Exit::TripleFault)?;
    b.stop();
    Ok(())
}

/// What another vCPU, or the hypervisor, left in registers that are not switched at every exit.
pub fn nothing_leaks(b: &mut Bench<'_>, other: &mut Bench<'_>) -> Result<(), String> {
    const SECRET: u32 = 0x5ec2_e700;
    let entry = StartState::Pvh {
        entry: FLAT as u32,
        start_info: 0,
    };
    let program = [
        READ_XMM0, OUT_80_EAX, READ_DR0, OUT_80_EAX, WRITE_DR0, HLT, READ_DR0, OUT_80_EAX,
    ];
    // SAFETY: the hypervisor keeps nothing in XMM0; CR4.OSFXSR is set on every CPU that runs guests.
    unsafe { asm!("movd xmm0, {0:e}", in(reg) SECRET, options(nostack, nomem, preserves_flags)) };
    b.start(entry, FLAT, &program)?;
    let xmm0 = b.out(0x80, 4)?;
    b.check("XMM0 of a new vCPU", xmm0, 0)?;
    let dr0 = b.out(0x80, 4)?;
    b.check("DR0 of a new vCPU", dr0, 0)?;
    b.vcpu.set_gpr(Gpr::Rbx, u64::from(SECRET));
    b.pass(HLT, &Exit::Hlt)?;
    b.stop();

    other.start(entry, FLAT, &program)?;
    other.out(0x80, 4)?;
    let dr0 = other.out(0x80, 4)?;
    other.check("DR0 that another vCPU has set", dr0, 0)?;
    other.stop();

    b.load();
    let dr0 = b.out(0x80, 4)?;
    b.check("DR0 after a switch and back", dr0, u64::from(SECRET))?;
    b.stop();
    Ok(())
}

/// The gate: closed by a pending event; a physical interrupt ends a guest that has interrupts off, and is taken.
pub fn gate(b: &mut Bench<'_>, raise: Option<&dyn Fn()>) -> Result<(), String> {
    let entry = StartState::Pvh {
        entry: FLAT as u32,
        start_info: 0,
    };
    b.start(entry, FLAT, &[JUMP_SELF])?;
    b.events |= b.word.take();
    b.word.post_local(Events::CALL);
    let mut stamps = 0;
    let exit = b.vcpu.enter(b.word, &mut |_: GateEvent| stamps += 1);
    b.checks += 1;
    if exit != Exit::Event {
        return Err(format!("{exit:?} instead of a closed gate"));
    }
    b.check("stamps at a closed gate", stamps, 0)?;
    b.check(
        "events kept",
        u64::from(b.word.take().bits()),
        u64::from(Events::CALL.bits()),
    )?;
    if let Some(raise) = raise {
        let mut stamps = [None; 2];
        raise();
        let exit = b.vcpu.enter(b.word, &mut |event: GateEvent| {
            stamps[usize::from(event == GateEvent::Left)] = Some(event)
        });
        b.checks += 1;
        if exit != Exit::Event || stamps != [Some(GateEvent::Entering), Some(GateEvent::Left)] {
            return Err(format!(
                "{exit:?} with {stamps:?} instead of an exit by the physical interrupt"
            ));
        }
    }
    b.stop();
    Ok(())
}

/// NMI and its masking, #DB, task priority, an interrupt whose delivery faults.
pub fn events(b: &mut Bench<'_>, other: &mut Bench<'_>) -> Result<(), String> {
    let program = [SET_TF, NOP, NOP, STI, NOP, HLT, HLT, NOP, NOP];
    b.start(StartState::Sipi { vector: REAL_PAGE }, REAL, &program)?;
    b.put(HANDLER, &[VMMCALL, IRET])?;
    for vector in [1, 2, u64::from(VECTOR)] {
        b.put(vector * 4, &[&[0x00, 0x18, 0, 0]])?;
    }
    b.vcpu.set_gpr(Gpr::Rsp, 0x900);

    b.vcpu.inject(Injection::Nmi);
    b.pass(VMMCALL, &Exit::Hypercall)?;
    b.check(
        "NMI ready in the NMI handler",
        u64::from(b.vcpu.nmi_ready()),
        0,
    )?;
    // The trap flag is set by POPF, and traps after the instruction that follows.
    b.expect(&Exit::Exception {
        vector: 1,
        error: 0,
    })?;
    b.check("rip at #DB", b.vcpu.rip(), (SET_TF.len() + 1) as u64)?;
    b.check(
        "NMI ready after its handler",
        u64::from(b.vcpu.nmi_ready()),
        1,
    )?;
    b.vcpu.inject(Injection::Exception {
        vector: 1,
        error: None,
    });
    b.pass(VMMCALL, &Exit::Hypercall)?;
    // IRET brings the trap flag back: it traps again, after the next instruction. Then the handler clears it.
    b.expect(&Exit::Exception {
        vector: 1,
        error: 0,
    })?;
    b.vcpu.inject(Injection::Exception {
        vector: 1,
        error: None,
    });
    b.expect(&Exit::Hypercall)?;
    let sp = b.vcpu.gpr(Gpr::Rsp);
    let flags = b.memory.read_u16(sp + 4).map_err(|out| format!("{out}"))?;
    b.check("flags pushed for #DB", u64::from(flags & 0x300), 0x100)?;
    b.memory
        .write(sp + 4, &(flags & !0x100).to_le_bytes())
        .map_err(|out| format!("{out}"))?;
    b.step_over(VMMCALL);

    // Class 4 waits below task priority 5, and passes at 3.
    b.vcpu.set_cr8(5);
    b.vcpu.want_window_below(4);
    b.pass(HLT, &Exit::Hlt)?;
    b.check("CR8 after an exit", u64::from(b.vcpu.cr8()), 5)?;
    b.vcpu.set_cr8(3);
    b.vcpu.want_window_below(4);
    b.expect(&Exit::InterruptWindow)?;
    b.vcpu.inject(Injection::Interrupt(VECTOR));
    b.pass(VMMCALL, &Exit::Hypercall)?;
    b.pass(HLT, &Exit::Hlt)?;
    b.stop();

    // An interrupt whose descriptor table lies in the hole: it stays due, however often.
    let entry = StartState::Pvh {
        entry: FLAT as u32,
        start_info: 0,
    };
    other.start(entry, FLAT, &[LIDT, STI, NOP, HLT])?;
    other.put(
        u64::from(IDT_POINTER),
        &[&[0xff, 0x07], &(HOLE as u32).to_le_bytes()],
    )?;
    other.expect(&Exit::Hlt)?;
    other.vcpu.inject(Injection::Interrupt(VECTOR));
    for _ in 0..2 {
        let exit = other.exit();
        let Exit::NestedFault {
            gpa,
            present: false,
            ..
        } = exit
        else {
            return Err(format!(
                "{exit:?} instead of a fault in the delivery of an interrupt"
            ));
        };
        other.check(
            "address of the gate",
            gpa & !0xf,
            (HOLE + u64::from(VECTOR) * 8) & !0xf,
        )?;
        other.check(
            "injection pending",
            u64::from(other.vcpu.injection_pending()),
            1,
        )?;
        other.check("interruptible", u64::from(other.vcpu.interruptible()), 0)?;
    }
    other.stop();
    Ok(())
}

/// XSETBV exits, the guest's own XCR0 is in force in the guest only.
pub fn extended_state<'a>(b: &mut Bench<'a>, other: &mut Bench<'a>) -> Result<(), String> {
    if b.vcpu.set_xcr0(3).is_err() {
        return Ok(()); // no XSAVE on this machine
    }
    let entry = StartState::Pvh {
        entry: FLAT as u32,
        start_info: 0,
    };
    let program = [READ_XCR0, OUT_80_EAX, XSETBV, HLT, READ_XCR0, OUT_80_EAX];
    for bench in [b, other] {
        bench.start(entry, FLAT, &program)?;
        let xcr0 = bench.out(0x80, 4)?;
        bench.check("XCR0 of a new vCPU", xcr0, 1)?;
        bench.vcpu.set_gpr(Gpr::Rax, 3);
        // QEMU does not intercept XSETBV: there the next exit is the one behind it, and XCR0 must be followed all the same.
        let mut exit = bench.exit();
        if exit == Exit::Xsetbv {
            let accepted = bench.vcpu.set_xcr0(3).is_ok();
            bench.check("XCR0 is accepted", u64::from(accepted), 1)?;
            bench.step_over(XSETBV);
            exit = bench.exit();
        }
        if exit != Exit::Hlt {
            return Err(format!("{exit:?} instead of XSETBV or HLT"));
        }
        bench.step_over(HLT);
        bench.check("XCR0 after XSETBV", bench.vcpu.xcr0(), 3)?;
        bench.stop();
        bench.load();
        let xcr0 = bench.out(0x80, 4)?;
        bench.check("XCR0 after a switch and back", xcr0, 3)?;
        bench.stop();
    }
    Ok(())
}

/// MSRs of the guest's own need no exit, others do; instructions that are never the guest's.
pub fn msrs(b: &mut Bench<'_>, _: &mut Bench<'_>) -> Result<(), String> {
    const STAR: u32 = 0xc000_0081;
    const EFER: u64 = 0xc000_0080;
    let entry = StartState::Pvh {
        entry: FLAT as u32,
        start_info: 0,
    };
    b.start(
        entry,
        FLAT,
        &[
            VMMCALL, WRMSR, VMMCALL, WRMSR, WBINVD, INVD, RDPMC, INVLPGA, CLGI,
        ],
    )?;
    b.pass(VMMCALL, &Exit::Hypercall)?;
    for (register, value) in [
        (Gpr::Rcx, u64::from(STAR)),
        (Gpr::Rax, 0x1234),
        (Gpr::Rdx, 0x5678),
    ] {
        b.vcpu.set_gpr(register, value);
    }
    b.pass(VMMCALL, &Exit::Hypercall)?;
    b.check(
        "STAR as the guest wrote it",
        b.vcpu.get_msr(STAR).unwrap_or(0),
        0x0000_5678_0000_1234,
    )?;
    b.vcpu.set_gpr(Gpr::Rcx, EFER);
    b.pass(WRMSR, &Exit::Wrmsr)?;
    b.pass(WBINVD, &Exit::CacheFlush)?;
    b.pass(INVD, &Exit::CacheFlush)?;
    b.pass(RDPMC, &Exit::Rdpmc)?;
    b.pass(INVLPGA, &Exit::Undefined)?;
    b.pass(CLGI, &Exit::Undefined)?;
    b.stop();
    Ok(())
}
