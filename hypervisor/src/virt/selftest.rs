//! A few dozen instructions of guest code on the CPU that runs this, with every exit checked: does virtualization really work here?
//!
//! Knows the trait only, not the vendor. Each part is a fresh vCPU; its program is written out as bytes, so that the length of every
//! instruction is known.
#![expect(unsafe_code, reason = "gives the test's memory back")]

mod parts;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;

use lull_core::units::CpuId;
use lull_core::wake::{Events, WakeWord};

use super::{Backend, Exit, Gpr, GuestMemory, IoExit, Stage2, StartState, VirtCpu};

const MEMORY: u64 = GuestMemory::ALIGN;
/// What the programs use of it, cleared before each.
const FIRST_PAGES: u64 = 0x8000;
/// Exits by physical interrupts that are accepted before the one expected.
const PATIENCE: usize = 1000;

struct Bench<'a> {
    vcpu: Box<dyn VirtCpu>,
    memory: &'a GuestMemory,
    word: &'a WakeWord,
    cpu: CpuId,
    loaded: bool,
    checks: u32,
    /// Events that came meanwhile; posted again at the end.
    events: Events,
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
            loaded: false,
            checks: 0,
            events: Events::empty(),
        }
    }

    /// Writes a program and loads the vCPU at its start.
    fn start(&mut self, start: StartState, at: u64, program: &[&[u8]]) -> Result<(), String> {
        self.put(at, program)?;
        self.vcpu.reset(start);
        self.load();
        Ok(())
    }

    fn load(&mut self) {
        self.vcpu.load(self.cpu);
        self.loaded = true;
    }

    /// Takes the vCPU off the CPU.
    fn stop(&mut self) {
        if core::mem::take(&mut self.loaded) {
            self.vcpu.unload();
        }
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
            self.events |= self.word.take();
            match self.vcpu.enter(self.word, &mut |_: super::GateEvent| ()) {
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

type Part = for<'a> fn(&mut Bench<'a>, &mut Bench<'a>) -> Result<(), String>;

/// Runs all parts on this CPU, on which the backend is enabled. `word` is its wake word; `raise` makes a physical interrupt pending
/// on it, for the part that needs one. For boot, before anything is scheduled.
///
/// Gives the number of values checked.
///
/// # Errors
/// What was wrong, and where.
pub fn selftest(
    backend: &Backend,
    cpu: CpuId,
    word: &WakeWord,
    raise: Option<&dyn Fn()>,
) -> Result<u32, String> {
    const PARTS: [(&str, Part); 6] = [
        ("real mode", parts::real_mode),
        ("flat mode", parts::flat_mode),
        ("events", parts::events),
        ("leaks", parts::nothing_leaks),
        ("XSAVE", parts::extended_state),
        ("MSRs", parts::msrs),
    ];
    let memory =
        GuestMemory::allocate(MEMORY).map_err(|why| format!("no memory for the test: {why:?}"))?;
    let stage2 = backend.new_stage2(&memory);
    let (mut checks, mut events) = (0, Events::empty());
    let mut run = |name: &str,
                   part: &mut dyn for<'a> FnMut(
        &mut Bench<'a>,
        &mut Bench<'a>,
    ) -> Result<(), String>| {
        let mut first = Bench::new(backend, &stage2, &memory, word, cpu);
        let mut second = Bench::new(backend, &stage2, &memory, word, cpu);
        memory
            .fill(0, FIRST_PAGES, 0)
            .map_err(|out| format!("{out}"))?;
        let result = part(&mut first, &mut second).map_err(|why| format!("{name}: {why}"));
        // A failed part leaves its vCPU loaded: dropped so, it would keep its XCR0 in force.
        for bench in [&mut first, &mut second] {
            bench.stop();
            checks += bench.checks;
            events |= bench.events;
        }
        result
    };
    let mut result = Ok(());
    for (name, mut part) in PARTS {
        result = result.and_then(|()| run(name, &mut part));
    }
    result = result.and_then(|()| run("gate", &mut |bench, _| parts::gate(bench, raise)));
    word.post_local(events);
    // SAFETY: all vCPUs of the test are gone; the memory came from `allocate`.
    let _ = unsafe { memory.release() };
    result.map(|()| checks)
}
