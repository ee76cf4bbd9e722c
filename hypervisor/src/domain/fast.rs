//! What is answered at the gate, without leaving the guest: CPUID, the registers of the x2APIC, unknown hypercalls.
//!
//! Every answer here is the one that [`exit`](super::exit) gives, only sooner; whatever is not plain is left to it. An answer takes
//! no lock of a scheduler unless it wakes a vCPU, and must not fault: see [`Gate`].

use alloc::sync::Arc;

use crate::virt::{Answer, Gate, GateEvent, GuestMemory};

use super::Domain;
use super::exit::send;
use super::host::VcpuHost;
use super::msr::Msrs;
use super::stats::ExitKind;
use super::vcpu::Vcpu;
use super::vlapic::{Delivery, Destination, Icr, Lapic, Mode, Now};

const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;

const TSC_DEADLINE: u32 = 0x6e0;
const X2APIC: u32 = 0x800;
const X2APIC_LAST: u32 = 0x8ff;
const TPR: u32 = X2APIC + 0x08;
const EOI: u32 = X2APIC + 0x0b;
const ICR: u32 = X2APIC + 0x30;
const SELF_IPI: u32 = X2APIC + 0x3f;

/// Stands at the gate for one entry of a vCPU.
pub(super) struct FastPath<'a, H> {
    pub on_gate: &'a mut dyn FnMut(GateEvent),
    pub vcpu: &'a Vcpu,
    pub domain: &'a Domain,
    pub host: &'a H,
    pub memory: &'a Arc<GuestMemory>,
    pub lapic: &'a mut Lapic,
    pub msrs: &'a Msrs,
    /// Whether exits are answered at all.
    pub answers: bool,
    /// Whether the guest has moved on by an answer.
    pub moved: bool,
}

impl<H: VcpuHost> Gate for FastPath<'_, H> {
    fn pass(&mut self, event: GateEvent) {
        (self.on_gate)(event);
    }

    fn answers(&self) -> bool {
        self.answers
    }

    fn memory(&self) -> Option<Arc<GuestMemory>> {
        Some(self.memory.clone())
    }

    fn told_cpuid(&mut self, times: u64) {
        self.vcpu.exits().add(ExitKind::Cpuid, times);
        self.moved = true;
    }

    fn read_msr(&mut self, gprs: &mut [u64; 16], cr8: u8) -> Answer {
        self.lapic.set_cr8(cr8);
        let value = match low(gprs[RCX]) {
            TSC_DEADLINE => Some(self.lapic.tsc_deadline()),
            msr @ X2APIC..=X2APIC_LAST => self.lapic.peek_msr(msr - X2APIC),
            _ => None,
        };
        let Some(value) = value else {
            return Answer::Leave;
        };
        gprs[RAX] = value & 0xffff_ffff;
        gprs[RDX] = value >> 32;
        self.answered(ExitKind::Msr, Answer::Enter)
    }

    fn write_msr(&mut self, gprs: &[u64; 16], cr8: &mut u8) -> Answer {
        let msr = low(gprs[RCX]);
        let value = gprs[RDX] << 32 | u64::from(low(gprs[RAX]));
        let plain = self.lapic.mode() == Mode::X2Apic
            && match msr {
                EOI => value == 0,
                TPR => value <= 0xff,
                ICR => self.is_plain(value),
                SELF_IPI => (16..=0xff).contains(&value),
                TSC_DEADLINE => true,
                _ => false,
            };
        if !plain {
            return Answer::Leave;
        }
        self.lapic.set_cr8(*cr8);
        let kind = match msr {
            EOI => ExitKind::Eoi,
            TPR => ExitKind::Tpr,
            _ => ExitKind::Msr,
        };
        let answer = match msr {
            EOI => {
                self.lapic.end_of_interrupt();
                self.look_if_requested()
            }
            TPR => {
                self.lapic.set_tpr(value as u8);
                *cr8 = self.lapic.cr8();
                self.look_if_requested()
            }
            ICR => {
                self.lapic.note_command(value);
                let icr = Icr::decode(value, Mode::X2Apic);
                send(icr, self.vcpu, self.domain, self.host);
                // To itself, perhaps.
                self.look_if_requested()
            }
            SELF_IPI => {
                let icr = Icr::self_ipi(value as u8);
                send(icr, self.vcpu, self.domain, self.host);
                self.look_if_requested()
            }
            _ => self.set_deadline(value),
        };
        self.answered(kind, answer)
    }

    fn hypercall(&mut self) -> Answer {
        self.answered(ExitKind::Other, Answer::Undefined)
    }
}

impl<H: VcpuHost> FastPath<'_, H> {
    #[inline(always)]
    fn answered(&mut self, kind: ExitKind, answer: Answer) -> Answer {
        self.vcpu.exits().count(kind);
        self.moved = true;
        answer
    }

    /// A vector for one vCPU, which is up.
    #[inline]
    fn is_plain(&self, value: u64) -> bool {
        let icr = Icr::decode(value, Mode::X2Apic);
        let is_up = match icr.to {
            Destination::Myself => true,
            Destination::Physical(to) => self
                .domain
                .vcpus()
                .get(to as usize)
                .is_some_and(|target| target.lapic().is_online()),
            _ => false,
        };
        is_up
            && value & !Icr::X2APIC_BITS == 0
            && icr.delivery == Delivery::Fixed
            && !icr.has_illegal_vector()
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
}

#[inline]
fn low(value: u64) -> u32 {
    value as u32
}
