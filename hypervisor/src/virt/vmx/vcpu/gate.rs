//! The gate: from the wake word to the last exit of a run.

use alloc::format;

use lull_core::units::CpuId;
use lull_core::wake::{SleepState, WakeWord};

use crate::virt::{Answer, Exit, Gate, GateEvent, Gpr, Injection, VirtCpu, fast};

use super::super::exit::{ENTRY_FAILURE, reason};
use super::super::field::Field;
use super::super::{check, event};
use super::{RFLAGS_TF, VmxVcpu};

impl VmxVcpu {
    /// Runs the guest until there is an exit that nobody answers at the gate; `Some` if one was answered that ends the run all the
    /// same. An error if the guest did not run.
    pub(super) fn pass_gate(
        &mut self,
        cpu: CpuId,
        word: &WakeWord,
        gate: &mut dyn Gate,
    ) -> Result<Option<Exit>, Exit> {
        let shared = self.shared.clone();
        let Some(host) = shared.cpu(cpu) else {
            return Err(Exit::Invalid {
                reason: format!("virtualization is not enabled on CPU {}", cpu.index()),
            });
        };
        self.place_event();
        self.place_windows();
        self.place_timer();
        host.drop_stale_tables();

        if word.publish(SleepState::Guest).is_err() {
            return Err(Exit::Event);
        }
        host.check_flushed(self.ept.generation());
        if self.entered_on.replace(cpu) != Some(cpu) {
            // What this CPU holds is of an earlier stay.
            self.owner.outdate();
        }
        host.check_dropped(self.vpid, self.owner);
        gate.pass(GateEvent::Entering);
        let answers = gate.answers();
        let answered = loop {
            self.booked = false;
            if !self.run() {
                break Err(());
            }
            self.launched = true;
            let answer = if answers {
                self.answer(gate)
            } else {
                Answer::Leave
            };
            match answer {
                Answer::Leave => break Ok(None),
                Answer::Undefined => self.events.push(Injection::UD),
                Answer::Enter if !self.events.is_pending() => {}
                Answer::Enter | Answer::Look => break Ok(Some(Exit::Answered)),
            }
            if word.is_pending() {
                break Ok(Some(Exit::Answered));
            }
            if self.events.is_pending() {
                self.place_event();
            }
            // It began anew at the exit.
            self.place_timer();
        };
        gate.pass(GateEvent::Left);
        word.leave_guest();
        answered.map_err(|()| {
            let number = self.vmcs.read(Field::INSTRUCTION_ERROR);
            Exit::Invalid {
                reason: format!(
                    "the processor refused the entry: {} (VM-instruction error {number})",
                    check::instruction_error(number)
                ),
            }
        })
    }

    /// Offers the exit to who stands at the gate, if it is one of those that may be answered there, and nothing is out of the
    /// ordinary: no delivery was interrupted, nobody steps.
    fn answer(&mut self, gate: &mut dyn Gate) -> Answer {
        let full = self.vmcs.read(Field::EXIT_REASON);
        let reason = full as u16;
        let answered = matches!(
            reason,
            reason::CPUID | reason::RDMSR | reason::WRMSR | reason::VMCALL
        );
        if !answered || full & ENTRY_FAILURE != 0 {
            return Answer::Leave;
        }
        if event::is_valid(self.vmcs.read(Field::VECTORING)) || self.rflags() & RFLAGS_TF != 0 {
            return Answer::Leave;
        }
        self.last_exit = reason;
        let Some(next) = self.next_rip() else {
            return Answer::Leave;
        };
        self.book_event();
        self.booked = true;
        let class = self.cr8();
        let mut cr8 = class;
        let gprs = &mut self.gprs;
        let answer = match reason {
            reason::CPUID => {
                let leaf = (gprs[Gpr::Rax.index()] as u32, gprs[Gpr::Rcx.index()] as u32);
                match self.cpuid.get(leaf.0, leaf.1, self.vmcs.read(Field::CR4)) {
                    Some(regs) => {
                        fast::set_cpuid(gprs, regs);
                        gate.told_cpuid(1);
                        Answer::Enter
                    }
                    None => Answer::Leave,
                }
            }
            reason::RDMSR => gate.read_msr(gprs, class),
            reason::WRMSR => gate.write_msr(gprs, &mut cr8),
            _ => gate.hypercall(),
        };
        if matches!(answer, Answer::Enter | Answer::Look) {
            self.move_to(next);
            if cr8 != class {
                self.set_cr8(cr8);
            }
        }
        answer
    }
}
