//! A few dozen instructions of guest code on the CPU that runs this, with every exit checked: does virtualization really work here?
//!
//! Knows the trait only, not the vendor. Each part is a fresh vCPU; its program is written out as bytes, so that the length of every
//! instruction is known.
#![expect(
    unsafe_code,
    reason = "seeds registers that must not reach a guest, gives the test's memory back"
)]

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use core::arch::asm;

use lull_core::units::CpuId;
use lull_core::wake::{Events, WakeWord};

use super::{
    Backend, Exit, GateEvent, Gpr, GuestMemory, Injection, IoExit, Stage2, StartState, VirtCpu,
};

const MEMORY: u64 = GuestMemory::ALIGN;
/// Real-mode programs start on this page.
const REAL_PAGE: u8 = 1;
const REAL: u64 = (REAL_PAGE as u64) << 12;
const HANDLER: u64 = 0x1800;
const FLAT: u64 = 0x2000;
const START_INFO: u32 = 0x7000;
const VECTOR: u8 = 0x20;
/// Guest-physical address without memory.
const HOLE: u64 = 0x8000_0000;
/// Exits by physical interrupts that are accepted before the one expected.
const PATIENCE: usize = 1000;

const CPUID: &[u8] = &[0x0f, 0xa2];
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
/// `mov eax, dr0`.
const READ_DR0: &[u8] = &[0x0f, 0x21, 0xc0];
/// `mov dr0, ebx`.
const WRITE_DR0: &[u8] = &[0x0f, 0x23, 0xc3];

struct Bench<'a> {
    vcpu: Box<dyn VirtCpu>,
    memory: &'a GuestMemory,
    word: &'a WakeWord,
    cpu: CpuId,
    checks: u32,
}

impl<'a> Bench<'a> {
    fn new(
        backend: &Backend,
        stage2: &Stage2,
        memory: &'a GuestMemory,
        word: &'a WakeWord,
        cpu: CpuId,
    ) -> Self {
        Self {
            vcpu: backend.new_vcpu(stage2),
            memory,
            word,
            cpu,
            checks: 0,
        }
    }

    /// Writes a program and loads the vCPU at its start.
    fn start(&mut self, start: StartState, at: u64, program: &[&[u8]]) -> Result<(), String> {
        self.put(at, program)?;
        self.vcpu.reset(start);
        self.vcpu.load(self.cpu);
        Ok(())
    }

    fn put(&self, mut at: u64, program: &[&[u8]]) -> Result<(), String> {
        for instruction in program {
            self.memory
                .write(at, instruction)
                .map_err(|out| format!("{out}"))?;
            at += instruction.len() as u64;
        }
        Ok(())
    }

    fn check(&mut self, what: &str, got: u64, wanted: u64) -> Result<(), String> {
        self.checks += 1;
        if got == wanted {
            Ok(())
        } else {
            Err(format!("{what}: {got:#x} instead of {wanted:#x}"))
        }
    }

    /// Runs to the next exit that is not of a physical interrupt.
    fn exit(&mut self) -> Exit {
        for _ in 0..PATIENCE {
            let _ = self.word.take();
            match self.vcpu.enter(self.word, &mut |_| ()) {
                Exit::Event | Exit::Handled => {}
                exit => return exit,
            }
        }
        Exit::Event
    }

    fn expect(&mut self, wanted: &Exit) -> Result<(), String> {
        let got = self.exit();
        self.checks += 1;
        if got == *wanted {
            Ok(())
        } else {
            Err(format!(
                "{got:?} instead of {wanted:?} at rip {:#x}",
                self.vcpu.rip()
            ))
        }
    }

    fn step_over(&mut self, instruction: &[u8]) {
        self.vcpu
            .advance(self.vcpu.rip() + instruction.len() as u64);
    }

    /// The exit of `instruction`, stepped over.
    fn pass(&mut self, instruction: &[u8], wanted: &Exit) -> Result<(), String> {
        self.expect(wanted)?;
        self.step_over(instruction);
        Ok(())
    }

    /// An OUT; gives what was written.
    fn out(&mut self, port: u16, size: u8) -> Result<u64, String> {
        let exit = self.exit();
        let Exit::Io(IoExit {
            port: got_port,
            size: got_size,
            write: true,
            string: false,
            next_rip: Some(next),
            ..
        }) = exit
        else {
            return Err(format!(
                "{exit:?} instead of OUT to {port:#x} at rip {:#x}",
                self.vcpu.rip()
            ));
        };
        self.check("port", u64::from(got_port), u64::from(port))?;
        self.check("size of OUT", u64::from(got_size), u64::from(size))?;
        self.check("next rip of OUT", next, self.vcpu.rip() + 2)?;
        self.vcpu.advance(next);
        Ok(self.vcpu.gpr(Gpr::Rax) & (u64::MAX >> (64 - 8 * u32::from(size))))
    }
}

/// Registers in and out, the plain exits, an interrupt through the window, in real mode.
fn real_mode(b: &mut Bench<'_>) -> Result<(), String> {
    b.start(
        StartState::Sipi { vector: REAL_PAGE },
        REAL,
        &[
            VMMCALL,
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
    b.vcpu.unload();
    Ok(())
}

/// Nested faults, instructions that guests do not have, a triple fault, in flat 32-bit mode.
fn flat_mode(b: &mut Bench<'_>) -> Result<(), String> {
    b.memory.fill(0, 0x800, 0).map_err(|out| format!("{out}"))?;
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
    b.vcpu.unload();
    Ok(())
}

/// What another vCPU, or the hypervisor, left in registers that are not switched at every exit.
fn nothing_leaks(b: &mut Bench<'_>, other: &mut Bench<'_>) -> Result<(), String> {
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
    b.vcpu.unload();

    other.start(entry, FLAT, &program)?;
    other.out(0x80, 4)?;
    let dr0 = other.out(0x80, 4)?;
    other.check("DR0 that another vCPU has set", dr0, 0)?;
    other.vcpu.unload();

    b.vcpu.load(b.cpu);
    let dr0 = b.out(0x80, 4)?;
    b.check("DR0 after a switch and back", dr0, u64::from(SECRET))?;
    b.vcpu.unload();
    Ok(())
}

/// The gate: closed by a pending event; a physical interrupt ends a guest that has interrupts off, and is taken.
fn gate(b: &mut Bench<'_>, raise: Option<&dyn Fn()>) -> Result<(), String> {
    let entry = StartState::Pvh {
        entry: FLAT as u32,
        start_info: 0,
    };
    b.start(entry, FLAT, &[JUMP_SELF])?;
    let _ = b.word.take();
    b.word.post_local(Events::CALL);
    let mut stamps = 0;
    let exit = b.vcpu.enter(b.word, &mut |_| stamps += 1);
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
        let exit = b.vcpu.enter(b.word, &mut |event| {
            stamps[usize::from(event == GateEvent::Left)] = Some(event)
        });
        b.checks += 1;
        if exit != Exit::Event || stamps != [Some(GateEvent::Entering), Some(GateEvent::Left)] {
            return Err(format!(
                "{exit:?} with {stamps:?} instead of an exit by the physical interrupt"
            ));
        }
    }
    b.vcpu.unload();
    Ok(())
}

/// Runs all parts on this CPU, on which the backend is enabled. `word` is its wake word; `raise` makes a physical interrupt pending
/// on it, for the part that needs one. Takes events out of `word`: for boot, before anything is scheduled.
///
/// # Errors
/// What was wrong, and where.
pub fn selftest(
    backend: &Backend,
    cpu: CpuId,
    word: &WakeWord,
    raise: Option<&dyn Fn()>,
) -> Result<u32, String> {
    let memory =
        GuestMemory::allocate(MEMORY).map_err(|why| format!("no memory for the test: {why:?}"))?;
    let stage2 = backend.new_stage2(&memory);
    let checks = {
        let bench = || Bench::new(backend, &stage2, &memory, word, cpu);
        let (mut real, mut flat, mut first, mut second, mut closed) =
            (bench(), bench(), bench(), bench(), bench());
        let mut result = real_mode(&mut real).map_err(|why| format!("real mode: {why}"));
        result =
            result.and_then(|()| flat_mode(&mut flat).map_err(|why| format!("flat mode: {why}")));
        result = result.and_then(|()| {
            nothing_leaks(&mut first, &mut second).map_err(|why| format!("leaks: {why}"))
        });
        result =
            result.and_then(|()| gate(&mut closed, raise).map_err(|why| format!("gate: {why}")));
        let checks = [&real, &flat, &first, &second, &closed]
            .iter()
            .map(|bench| bench.checks)
            .sum::<u32>();
        result.map(|()| checks)
    };
    // SAFETY: all vCPUs of the test are gone; the memory came from `allocate`.
    let _ = unsafe { memory.release() };
    checks
}
