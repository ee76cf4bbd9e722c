//! What is answered at the gate, without leaving the guest: CPUID, the registers of the x2APIC, unknown hypercalls.
//!
//! Every answer here is the one that [`exit`](super::exit) gives, only sooner; whatever is not plain is left to it. An answer takes
//! no lock of a scheduler unless it wakes a vCPU, and must not fault: see [`Gate`].

use crate::virt::{Answer, FastCpu, FastExit, Gate, GateEvent, GuestMemory, Place};

use super::Domain;
use super::cpuid::Remembered;
use super::exit::send;
use super::host::VcpuHost;
use super::length;
use super::msr::Msrs;
use super::stats::ExitKind;
use super::vcpu::Vcpu;
use super::vlapic::{Delivery, Destination, Icr, Lapic, Mode, Now};
use super::walk;

const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RBX: usize = 3;

const TSC_DEADLINE: u32 = 0x6e0;
const X2APIC: u32 = 0x800;
const X2APIC_LAST: u32 = 0x8ff;

/// Stands at the gate for one entry of a vCPU.
pub(super) struct FastPath<'a, H> {
    pub on_gate: &'a mut dyn FnMut(GateEvent),
    pub vcpu: &'a Vcpu,
    pub domain: &'a Domain,
    pub host: &'a H,
    pub memory: &'a GuestMemory,
    pub lapic: &'a mut Lapic,
    pub msrs: &'a Msrs,
    pub cpuid: &'a Remembered,
    /// Whether the guest has moved on by an answer.
    pub moved: bool,
}

impl<H: VcpuHost> Gate for FastPath<'_, H> {
    fn pass(&mut self, event: GateEvent) {
        (self.on_gate)(event);
    }

    fn answer(&mut self, exit: FastExit, cpu: &mut FastCpu<'_>) -> Answer {
        let (answer, kind) = match exit {
            FastExit::Cpuid => (self.cpuid(cpu), ExitKind::Cpuid),
            FastExit::Wrmsr => (self.write_msr(cpu), ExitKind::Msr),
            FastExit::Rdmsr => (self.read_msr(cpu), ExitKind::Msr),
            FastExit::Hypercall => (Some(Answer::Undefined), ExitKind::Other),
        };
        let Some(answer) = answer else {
            return Answer::Leave;
        };
        self.vcpu.exits().count(kind);
        self.moved = true;
        answer
    }
}

impl<H: VcpuHost> FastPath<'_, H> {
    #[inline]
    fn cpuid(&mut self, cpu: &mut FastCpu<'_>) -> Option<Answer> {
        let [eax, ebx, ecx, edx] =
            self.cpuid
                .get(low(cpu.gprs[RAX]), low(cpu.gprs[RCX]), cpu.cr4)?;
        cpu.next = self.next(cpu.place, 0xa2)?;
        cpu.gprs[RAX] = eax.into();
        cpu.gprs[RBX] = ebx.into();
        cpu.gprs[RCX] = ecx.into();
        cpu.gprs[RDX] = edx.into();
        Some(Answer::Enter)
    }

    #[inline]
    fn read_msr(&mut self, cpu: &mut FastCpu<'_>) -> Option<Answer> {
        let msr = low(cpu.gprs[RCX]);
        self.lapic.set_cr8(cpu.cr8);
        let value = match msr {
            TSC_DEADLINE => self.lapic.tsc_deadline(),
            X2APIC..=X2APIC_LAST => self.lapic.peek_msr(msr - X2APIC)?,
            _ => return None,
        };
        cpu.next = self.next(cpu.place, 0x32)?;
        cpu.gprs[RAX] = value & 0xffff_ffff;
        cpu.gprs[RDX] = value >> 32;
        Some(Answer::Enter)
    }

    #[inline]
    fn write_msr(&mut self, cpu: &mut FastCpu<'_>) -> Option<Answer> {
        const EOI: u32 = X2APIC + 0x0b;
        const TPR: u32 = X2APIC + 0x08;
        const ICR: u32 = X2APIC + 0x30;
        let msr = low(cpu.gprs[RCX]);
        let value = u64::from(low(cpu.gprs[RDX])) << 32 | u64::from(low(cpu.gprs[RAX]));
        if self.lapic.mode() != Mode::X2Apic {
            return None;
        }
        match msr {
            EOI if value == 0 => {
                cpu.next = self.next(cpu.place, 0x30)?;
                self.lapic.end_of_interrupt();
            }
            TPR if value <= 0xff => {
                cpu.next = self.next(cpu.place, 0x30)?;
                self.lapic.set_tpr(value as u8);
                cpu.cr8 = self.lapic.cr8();
            }
            ICR => {
                let icr = Icr::decode(value, Mode::X2Apic);
                self.is_plain(value, &icr).then_some(())?;
                cpu.next = self.next(cpu.place, 0x30)?;
                self.lapic.note_command(value);
                send(icr, self.vcpu, self.domain, self.host);
                return Some(Answer::Enter);
            }
            TSC_DEADLINE => {
                cpu.next = self.next(cpu.place, 0x30)?;
                return Some(self.set_deadline(value));
            }
            _ => return None,
        }
        Some(self.look_if_requested())
    }

    /// A vector for one other vCPU, which is up.
    #[inline]
    fn is_plain(&self, value: u64, icr: &Icr) -> bool {
        let Destination::Physical(to) = icr.to else {
            return false;
        };
        value & !Icr::X2APIC_BITS == 0
            && icr.delivery == Delivery::Fixed
            && !icr.has_illegal_vector()
            && to != self.vcpu.lapic().id()
            && self
                .domain
                .vcpus()
                .get(to as usize)
                .is_some_and(|target| target.lapic().is_online())
    }

    /// The host need not know of a deadline before the CPU is interrupted anyway: whoever leaves the guest, or blocks, looks at the
    /// timer then.
    #[inline]
    fn set_deadline(&mut self, value: u64) -> Answer {
        let now = Now {
            tsc: self.host.now(),
            offset: self.msrs.tsc_offset(),
        };
        self.lapic.set_tsc_deadline(value, now);
        let known = match (self.lapic.timer_deadline(), self.host.deadline()) {
            (None, _) => true,
            (Some(deadline), Some(interrupted)) => interrupted <= deadline,
            (Some(_), None) => false,
        };
        if known {
            self.look_if_requested()
        } else {
            Answer::Look
        }
    }

    #[inline]
    fn look_if_requested(&self) -> Answer {
        if self.lapic.nothing_requested() {
            Answer::Enter
        } else {
            Answer::Look
        }
    }

    /// Where the instruction `0F opcode` ends. `None`: it could not be found here.
    #[inline(always)]
    fn next(&self, place: Place, opcode: u8) -> Option<u64> {
        let (rip, cr3) = match place {
            Place::Next(next) => return Some(next),
            Place::At { rip, cr3 } => (rip, cr3),
        };
        let gpa = walk::fetched_from(self.memory, cr3, rip)?;
        let bytes = self.memory.code(gpa)?;
        if bytes as u16 == u16::from_le_bytes([0x0f, opcode]) {
            return Some(rip.wrapping_add(2));
        }
        let bytes = bytes.to_le_bytes();
        let length = length::of_two_byte(&bytes, opcode)?;
        Some(rip.wrapping_add(length))
    }
}

#[inline]
fn low(value: u64) -> u32 {
    value as u32
}
