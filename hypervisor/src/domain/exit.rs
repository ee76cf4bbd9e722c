//! What each exit of a guest means, and what happens next.
//!
//! Every kind of exit is here. A guest's mistake ends in an exception for the guest, or in its end with a reason that
//! names the mistake; never in ours.

use alloc::format;

use iced_x86::{Mnemonic, Register};

use super::alu::STATUS_FLAGS;
use super::cpuid::{self, Asker};
use super::host::VcpuHost;
use super::insn;
use super::io::{self, IoResult};
use super::layout::LAPIC_PAGE;
use super::mmio::{self, Target};
use super::msr::{Msrs, Written};
use super::vcpu::{Owned, Run, Vcpu};
use super::vlapic::{Delivery, Icr, Lapic, Now};
use super::{Domain, EndReason};
use crate::virt::{Exit, Gp, Gpr, Injection};

/// What a turn of the run loop leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// Evaluate interrupts, enter again.
    Resume,
    /// The wake word has events.
    Events,
    /// Nothing to do until a kick.
    Block,
    /// Others first.
    Yield,
    /// The guest is over.
    End(EndReason),
    /// The guest is over, by another of its vCPUs.
    Leave,
}

const APIC_BASE: u32 = 0x1b;
/// Alignment check, which has an error code (always 0).
const AC: u8 = 17;

/// Deals with an exit.
pub(super) fn handle(
    exit: Exit,
    owned: &mut Owned,
    vcpu: &Vcpu,
    domain: &Domain,
    host: &impl VcpuHost,
) -> Next {
    match exit {
        Exit::Event => return Next::Events,
        Exit::Hlt => {
            if step(owned, &[Mnemonic::Hlt]) {
                owned.run = Run::Halted;
            }
        }
        Exit::Pause => {
            if step(owned, &[Mnemonic::Pause]) {
                // What the guest meant for the CPU is for the CPU: its sibling, or the emulator's next CPU, gets a turn.
                core::hint::spin_loop();
                return Next::Yield;
            }
        }
        Exit::Cr8Write => write_cr8(owned),
        Exit::CacheFlush => {
            step(
                owned,
                &[Mnemonic::Wbinvd, Mnemonic::Invd, Mnemonic::Wbnoinvd],
            );
        }
        Exit::Cpuid => answer_cpuid(owned, vcpu, domain, host),
        Exit::Rdmsr => read_msr(owned, domain, host),
        Exit::Wrmsr => write_msr(owned, vcpu, domain, host),
        Exit::Xsetbv => set_xcr(owned),
        Exit::Io(access) => {
            let Owned { virt, memory, .. } = owned;
            let mut devices = domain.devices().lock();
            let mut line = |text: alloc::string::String| domain.line(&text, host);
            match io::access(&access, virt.as_mut(), memory, &mut devices, &mut line) {
                IoResult::Resume => {}
                IoResult::Exit(code) => return Next::End(EndReason::Port(code)),
            }
        }
        Exit::NestedFault {
            gpa,
            write,
            fetch,
            page_walk,
            ..
        } => {
            if fetch || page_walk || gpa & !0xfff != LAPIC_PAGE {
                let what = if page_walk {
                    "a page table"
                } else if fetch {
                    "an instruction fetch"
                } else if write {
                    "a write"
                } else {
                    "a read"
                };
                return Next::End(EndReason::Crash(format!(
                    "{what} at guest-physical {gpa:#x}, outside its memory of {} KiB (rip {:#x})",
                    owned.memory.size() / 1024,
                    owned.virt.rip()
                )));
            }
            return access_lapic(gpa, owned, vcpu, domain, host);
        }
        Exit::ApicWrite { offset, value } => {
            let now = Now {
                tsc: host.now(),
                offset: owned.msrs.tsc_offset(),
            };
            if let Some(icr) = owned.lapic.written(offset, value, now) {
                send(icr, vcpu, domain, host);
            }
        }
        Exit::Exception { vector, error } => {
            let error = (vector == AC).then_some(error);
            owned.virt.inject(Injection::Exception { vector, error });
        }
        Exit::Monitor | Exit::Mwait | Exit::Undefined | Exit::Hypercall => {
            owned.virt.inject(Injection::UD)
        }
        Exit::Rdpmc => owned.virt.inject(Injection::GP0),
        Exit::TripleFault => return Next::End(EndReason::TripleFault),
        Exit::Invalid { reason } => return Next::End(EndReason::Killed(reason)),
        Exit::Handled | Exit::Answered | Exit::InterruptWindow | Exit::Init | Exit::Nmi => {}
    }
    Next::Resume
}

/// Steps over the intercepted instruction. `false`: it is not there any more; the guest tries again.
fn step(owned: &mut Owned, expected: &[Mnemonic]) -> bool {
    let next = insn::next_rip(owned.virt.as_ref(), &owned.memory, expected);
    if let Some(rip) = next {
        owned.virt.advance(rip);
    }
    next.is_some()
}

fn low(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

fn pair(owned: &Owned) -> u64 {
    u64::from(low(owned.virt.gpr(Gpr::Rdx))) << 32 | u64::from(low(owned.virt.gpr(Gpr::Rax)))
}

fn answer_cpuid(owned: &mut Owned, vcpu: &Vcpu, domain: &Domain, host: &impl VcpuHost) {
    if !step(owned, &[Mnemonic::Cpuid]) {
        return;
    }
    let virt = &mut owned.virt;
    let who = Asker {
        index: vcpu.lapic().id(),
        count: domain.vcpu_count(),
        cr4: virt.cr4(),
        xcr0: virt.xcr0(),
        apic: Msrs::apic_visible(&owned.lapic),
        rate: host.tsc_rate(),
    };
    let (leaf, subleaf) = (low(virt.gpr(Gpr::Rax)), low(virt.gpr(Gpr::Rcx)));
    let regs = cpuid::cpuid(&cpuid::Native, &who, leaf, subleaf);
    virt.remember_cpuid(leaf, subleaf, regs);
    for (gpr, value) in [Gpr::Rax, Gpr::Rbx, Gpr::Rcx, Gpr::Rdx]
        .into_iter()
        .zip(regs)
    {
        virt.set_gpr(gpr, value.into());
    }
}

fn read_msr(owned: &mut Owned, domain: &Domain, host: &impl VcpuHost) {
    let msr = low(owned.virt.gpr(Gpr::Rcx));
    let Owned {
        virt, lapic, msrs, ..
    } = &mut *owned;
    match msrs.read(msr, virt.as_ref(), lapic, host.now()) {
        Ok(value) => {
            if step(owned, &[Mnemonic::Rdmsr]) {
                owned.virt.set_gpr(Gpr::Rax, value & 0xffff_ffff);
                owned.virt.set_gpr(Gpr::Rdx, value >> 32);
            }
        }
        Err(Gp) => {
            domain.note_unknown_msr("RDMSR", msr);
            owned.virt.inject(Injection::GP0);
        }
    }
}

fn write_msr(owned: &mut Owned, vcpu: &Vcpu, domain: &Domain, host: &impl VcpuHost) {
    let (msr, value) = (low(owned.virt.gpr(Gpr::Rcx)), pair(owned));
    // The length first: an instruction that is to be run again must not have had its effect.
    let Some(next) = insn::next_rip(
        owned.virt.as_ref(),
        &owned.memory,
        &[Mnemonic::Wrmsr, Mnemonic::Wrmsrns],
    ) else {
        return;
    };
    let Owned {
        virt, lapic, msrs, ..
    } = &mut *owned;
    match msrs.write(msr, value, virt.as_mut(), lapic, host.now()) {
        Ok(written) => {
            if msr == APIC_BASE {
                // Leaf 1 tells whether it is enabled.
                owned.virt.forget_cpuid();
            }
            owned.virt.advance(next);
            if let Written::Ipi(icr) = written {
                send(icr, vcpu, domain, host);
            }
        }
        Err(Gp) => {
            domain.note_unknown_msr("WRMSR", msr);
            owned.virt.inject(Injection::GP0);
        }
    }
}

/// MOV to CR8. What it lets through is found in the next turn.
fn write_cr8(owned: &mut Owned) {
    let cpu = owned.virt.cpu_state();
    let hint = owned.virt.instruction_bytes();
    let Some(instruction) = insn::fetch(&owned.memory, &cpu, hint) else {
        return;
    };
    let source = instruction.op1_register();
    if instruction.op0_register() != Register::CR8 || !source.is_gpr() {
        return;
    }
    let source = u8::try_from(source.full_register().number())
        .ok()
        .and_then(Gpr::from_encoding);
    let value = source.map_or(0, |gpr| owned.virt.gpr(gpr));
    match u8::try_from(value) {
        Ok(class @ 0..16) => {
            owned.lapic.set_cr8(class);
            owned.virt.set_cr8(class);
            owned.virt.advance(insn::after(&cpu, &instruction));
        }
        _ => owned.virt.inject(Injection::GP0),
    }
}

fn set_xcr(owned: &mut Owned) {
    let Some(next) = insn::next_rip(owned.virt.as_ref(), &owned.memory, &[Mnemonic::Xsetbv]) else {
        return;
    };
    let value = pair(owned);
    let known =
        low(owned.virt.gpr(Gpr::Rcx)) == 0 && value & !cpuid::offered_xstates(&cpuid::Native) == 0;
    match known.then(|| owned.virt.set_xcr0(value)) {
        Some(Ok(())) => owned.virt.advance(next),
        _ => owned.virt.inject(Injection::GP0),
    }
}

/// Sends an interrupt to vCPUs of the same guest. A start-up IPI makes a vCPU known to the scheduler.
pub(super) fn send(icr: Icr, vcpu: &Vcpu, domain: &Domain, host: &impl VcpuHost) {
    let me = vcpu.lapic().id() as usize;
    let lapics = domain.vcpus().iter().map(Vcpu::lapic);
    icr.deliver(me, lapics, domain.turn(), |index| {
        let Some(target) = domain.vcpus().get(index) else {
            return;
        };
        if target.lapic().is_online() {
            // Ourselves we look after in the next turn.
            if index != me {
                tell(target, icr.delivery, host);
            }
        } else if icr.delivery == Delivery::Sipi {
            domain.bring_online(target, host);
        }
    });
}

/// Something was requested of a vCPU.
#[inline]
fn tell(target: &Vcpu, what: Delivery, host: &impl VcpuHost) {
    let interrupts = target.lapic().interrupts();
    let has_vector = matches!(what, Delivery::Fixed | Delivery::LowestPriority);
    if !(has_vector && interrupts.is_posting()) {
        host.kick(target.id());
    } else if interrupts.notify() && host.notify(target.id()) {
        interrupts.count_sent();
    }
}

/// One register of the xAPIC's page.
struct Page<'a> {
    lapic: &'a mut Lapic,
    offset: u32,
    now: Now,
    ipi: Option<Icr>,
}

impl Target for Page<'_> {
    fn read(&mut self, size: usize) -> u64 {
        // Narrow reads give a part of the register; wide ones have zeros above it.
        let shift = self.offset % 4 * 8;
        let value = self.lapic.read_page(self.offset & !3, self.now);
        u64::from(value) >> shift & super::alu::mask(size)
    }

    fn write(&mut self, size: usize, value: u64) {
        // Only whole registers can be written (SDM 3A, 11.4.1).
        if size >= 4 && self.offset.is_multiple_of(4) {
            self.ipi = self.lapic.write_page(self.offset, low(value), self.now);
        }
    }
}

fn access_lapic(
    gpa: u64,
    owned: &mut Owned,
    vcpu: &Vcpu,
    domain: &Domain,
    host: &impl VcpuHost,
) -> Next {
    let cpu = owned.virt.cpu_state();
    let Some(instruction) = insn::fetch(&owned.memory, &cpu, owned.virt.instruction_bytes()) else {
        return Next::Resume;
    };
    let now = Now {
        tsc: host.now(),
        offset: owned.msrs.tsc_offset(),
    };
    let mut page = Page {
        lapic: &mut owned.lapic,
        offset: low(gpa & 0xfff),
        now,
        ipi: None,
    };
    let result = mmio::emulate(owned.virt.as_mut(), &instruction, &mut page);
    let ipi = page.ipi;
    match result {
        Ok(flags) => {
            if let Some(flags) = flags {
                let rest = owned.virt.rflags() & !STATUS_FLAGS;
                owned.virt.set_rflags(rest | flags);
            }
            owned.virt.advance(insn::after(&cpu, &instruction));
        }
        Err(problem) => {
            let rip = cpu.rip;
            return Next::End(EndReason::Crash(format!(
                "{problem} (APIC page, rip {rip:#x})"
            )));
        }
    }
    if let Some(icr) = ipi {
        send(icr, vcpu, domain, host);
    }
    Next::Resume
}
