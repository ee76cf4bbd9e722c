//! What an exit says: of events on their way, and of the guest.

use crate::virt::{AddressSize, Exit, Injection, VirtCpu};

use super::super::entry::{self, Physical};
use super::super::exit::{CrAccess, Decoded, decode, reason};
use super::super::field::Field;
use super::super::{check, event, reset};
use super::{ANY_PRIORITY, BLOCKED_BY_NMI, EXCEPTIONS, SHADOW, VmxVcpu};

const MACHINE_CHECK_AT_ENTRY: u16 = 41;

impl VmxVcpu {
    /// Books what the exit says about events on their way, and translates it.
    pub(super) fn after_exit(&mut self) -> Exit {
        self.last_exit = self.vmcs.read(Field::EXIT_REASON) as u16;
        let size = if self.last_exit == reason::IO && !self.shared.capabilities.string_io_info {
            self.default_size()
        } else {
            AddressSize::Bits64
        };
        let decoded = decode(&self.vmcs, self.shared.capabilities.string_io_info, size);
        if let Decoded::EntryFailed(basic) = decoded {
            if basic == MACHINE_CHECK_AT_ENTRY {
                entry::take(Physical::MachineCheck);
            }
            return Exit::Invalid {
                reason: check::why_entry_failed(&self.vmcs, basic),
            };
        }
        if !core::mem::take(&mut self.booked) {
            self.book_event();
        }
        match decoded {
            Decoded::Exit(exit) => {
                match &exit {
                    Exit::InterruptWindow => self.window = None,
                    Exit::NestedFault { .. } => {
                        self.mask_nmis_again(self.vmcs.read(Field::QUALIFICATION));
                    }
                    &Exit::Exception { vector, error } => {
                        let info = self.vmcs.read(Field::EXIT_INTERRUPTION);
                        self.mask_nmis_again(info);
                        if EXCEPTIONS & 1 << vector == 0 {
                            return self.deliver(vector, event::has_error(info).then_some(error));
                        }
                    }
                    _ => {}
                }
                exit
            }
            Decoded::Physical(what) => {
                entry::take(what);
                match what {
                    Physical::Interrupt(_) => Exit::Event,
                    Physical::Nmi => Exit::Nmi,
                    Physical::MachineCheck => Exit::Invalid {
                        reason: "a machine check hit the physical CPU while the guest ran".into(),
                    },
                }
            }
            Decoded::Debug {
                causes,
                by_instruction,
            } => self.debug_exception(causes, by_instruction),
            Decoded::NmiWindow => {
                self.nmi_window = false;
                Exit::Handled
            }
            // The interrupt that waited for it is looked at again; until the guest can take it, this is a window like any other.
            Decoded::TaskPriority => {
                self.window = Some(ANY_PRIORITY);
                Exit::Handled
            }
            Decoded::ApicWrite(offset) => Exit::ApicWrite {
                offset,
                value: self.apic.at(offset),
            },
            Decoded::ControlRegister(access) => self.control_register(access),
            Decoded::EntryFailed(_) => Exit::Handled,
        }
    }

    pub(super) fn book_event(&mut self) {
        let info = self.vmcs.read(Field::VECTORING);
        let interrupted = if event::is_valid(info) {
            event::interrupted_delivery(info, self.vmcs.read(Field::VECTORING_ERROR))
        } else {
            None
        };
        if interrupted == Some(Injection::Nmi) {
            // It was masking others already; injected again, it does so anew.
            self.set_blocked(self.blocked() & !BLOCKED_BY_NMI);
        }
        // The processor has cleared what it took.
        self.placed = false;
        self.events.entered(interrupted);
    }

    /// An IRET that ended an NMI handler has faulted, and will run again: until then NMIs are masked (SDM vol. 3, 29.2.3).
    fn mask_nmis_again(&self, info: u64) {
        if info & event::NMI_UNBLOCKED != 0 && !event::is_valid(self.vmcs.read(Field::VECTORING)) {
            self.set_blocked(self.blocked() | BLOCKED_BY_NMI);
        }
    }

    /// Gives an exception back that exited only because it might have lost RIP.
    fn deliver(&mut self, vector: u8, error: Option<u32>) -> Exit {
        const PAGE_FAULT: u8 = 14;
        if vector == PAGE_FAULT {
            self.cr2 = self.vmcs.read(Field::QUALIFICATION);
        }
        self.inject(Injection::Exception { vector, error });
        Exit::Handled
    }

    /// #DB as the guest is to find it: DR6 and DR7 changed, RIP behind an INT1 (SDM vol. 3, 29.2.1).
    fn debug_exception(&mut self, causes: u64, by_instruction: bool) -> Exit {
        const DR7_GENERAL_DETECT: u64 = 1 << 13;
        self.mask_nmis_again(self.vmcs.read(Field::EXIT_INTERRUPTION));
        self.dr6.add(causes);
        let dr7 = self.vmcs.read(Field::DR7);
        self.vmcs.write(Field::DR7, dr7 & !DR7_GENERAL_DETECT);
        if by_instruction {
            let next = self.rip() + self.vmcs.read(Field::INSTRUCTION_LENGTH);
            self.move_to(next);
        }
        Exit::Exception {
            vector: 1,
            error: 0,
        }
    }

    /// MOV to a control register that the guest cannot change by itself.
    fn control_register(&mut self, access: CrAccess) -> Exit {
        match access {
            CrAccess::Write { register: 0, from } => {
                let value = self.gpr(from);
                if reset::cr0_is_legal(value) {
                    // Executed again, it finds the fixed bits as it wants them, and changes the others by itself.
                    self.vmcs.write(Field::CR0_SHADOW, value);
                } else {
                    self.inject(Injection::GP0);
                }
            }
            CrAccess::Write { register: 8, from } => match u8::try_from(self.gpr(from)) {
                Ok(class @ 0..16) => {
                    self.set_cr8(class);
                    self.step();
                }
                _ => self.inject(Injection::GP0),
            },
            CrAccess::Read { register: 8, to } => {
                self.set_gpr(to, u64::from(self.cr8));
                self.step();
            }
            // CR4.VMXE, which guests do not have.
            _ => self.inject(Injection::GP0),
        }
        Exit::Handled
    }

    /// RIP behind an instruction that is done; its shadow ends.
    pub(super) fn move_to(&self, rip: u64) {
        self.vmcs.write(Field::RIP, rip);
        let blocked = self.blocked();
        if blocked & SHADOW != 0 {
            self.set_blocked(blocked & !SHADOW);
        }
    }

    fn step(&mut self) {
        if let Some(next) = self.next_rip() {
            self.advance(next);
        }
    }
}
