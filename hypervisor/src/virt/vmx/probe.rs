//! Faults of a machine, of Bochs that is, found out by trying.
//!
//! # It loses RIP
//!
//! With two CPUs or more, Bochs (3.0 too) reports a wrong RIP if something from outside, an interrupt or the preemption timer, ends
//! a guest right after it has taken an exception: RIP is still that of the instruction that faulted, while RSP is already below the
//! exception's frame. The guest would take the exception twice, with a stack that is off by one frame. Only exceptions that the
//! guest takes by itself are hit; those that VM entry delivers are not.
//!
//! So a guest is made to fault, again and again, while the preemption timer runs out at every possible moment. If it was ever
//! found between the two, every exception exits from then on, and is delivered by VM entry.
//!
//! # It delivers virtual interrupts with interrupts off
//!
//! If a physical interrupt comes while a virtual one waits for IF, Bochs (3.0) delivers the virtual one there and then. A guest that
//! looks for work and then halts by `sti; hlt` would take it between the two, and sleep over what it has brought.
//!
//! So a guest with interrupts off is entered with one of each. If it is found in its handler, then nothing that could be delivered
//! waits in a guest that cannot take it: such an entry asks for an interrupt window, which keeps virtual interrupts back.

use super::vcpu::VmxVcpu;
use crate::virt::{
    ApicMode, ApicState, Gpr, GuestMemory, OutOfRange, StartState, VectorSet, VirtCpu,
};

const PAGE: u8 = 1;
/// NOPs before the instruction that faults: the guest begins at any of them.
const RUN_UP: u64 = 32;
const FAULTS_AT: u64 = RUN_UP;
const UD2: [u8; 2] = [0x0f, 0x0b];
const NOP: u8 = 0x90;
const JUMP_SELF: [u8; 2] = [0xeb, 0xfe];
const HANDLER: u64 = 0x1800;
const STACK: u64 = 0x900;
/// Entry 6 of a real-mode interrupt table.
const UD_VECTOR: u64 = 6 * 4;
/// Counts of the timer that are tried for each beginning.
const COUNTS: u32 = 64;

/// Writes the guest's program.
fn write(memory: &GuestMemory) -> Result<(), OutOfRange> {
    let base = u64::from(PAGE) << 12;
    memory.fill(base, RUN_UP, NOP)?;
    memory.write(base + FAULTS_AT, &UD2)?;
    memory.write_u32(UD_VECTOR, HANDLER as u32)?;
    memory.write(HANDLER, &JUMP_SELF)
}

/// What one run of the guest ended as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    rip: u64,
    rsp: u64,
}

impl End {
    /// The exception is on the stack, and RIP does not know.
    fn is_torn(self) -> bool {
        self.rip == FAULTS_AT && self.rsp != STACK
    }
}

/// Tries it with a vCPU that is loaded on this CPU, over memory of its own. The number of the run that lost RIP, if one did.
pub fn loses_rip(vcpu: &mut VmxVcpu, memory: &GuestMemory) -> Option<u32> {
    write(memory).ok()?;
    let mut runs = 0;
    for count in 0..COUNTS {
        for start in 0..=RUN_UP {
            runs += 1;
            vcpu.reset(StartState::Sipi { vector: PAGE });
            vcpu.set_gpr(Gpr::Rsp, STACK);
            vcpu.advance(start);
            if !vcpu.run_for(count) {
                return None;
            }
            let end = End {
                rip: vcpu.rip(),
                rsp: vcpu.gpr(Gpr::Rsp),
            };
            if end.is_torn() {
                return Some(runs);
            }
        }
    }
    None
}

/// A virtual interrupt that must not be delivered.
const VIRTUAL: u8 = 0x50;
const CLI: u8 = 0xfa;
/// Count of the timer that ends it if nothing else does.
const LONG: u32 = 2000;

/// Whether a virtual interrupt is delivered with interrupts off. Tried with a vCPU that is loaded on this CPU, over memory of its own;
/// `interrupt` sends a physical interrupt to this CPU, which will be taken.
pub fn ignores_if(vcpu: &mut VmxVcpu, memory: &GuestMemory, interrupt: impl FnOnce()) -> bool {
    if !vcpu.virtualizes_apic() || write_waiting(memory).is_err() {
        return false;
    }
    vcpu.reset(StartState::Sipi { vector: PAGE });
    vcpu.set_gpr(Gpr::Rsp, STACK);
    if !vcpu.show_apic(ApicMode::X2Apic, &[]) {
        return false;
    }
    let mut requested = VectorSet::default();
    requested.insert(VIRTUAL);
    vcpu.lend_apic(&ApicState {
        requested,
        ..ApicState::default()
    });
    interrupt();
    let ran = vcpu.run_for(LONG);
    let state = vcpu.take_apic_back();
    ran && state.in_service.highest() == Some(VIRTUAL)
}

/// Writes the guest's program: Bochs looks for physical interrupts only after a guest that began with interrupts off has said so
/// itself.
fn write_waiting(memory: &GuestMemory) -> Result<(), OutOfRange> {
    let base = u64::from(PAGE) << 12;
    memory.write(base, &[CLI])?;
    memory.write(base + 1, &JUMP_SELF)?;
    memory.write_u32(u64::from(VIRTUAL) * 4, HANDLER as u32)?;
    memory.write(HANDLER, &JUMP_SELF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_without_its_handler_is_torn() {
        let end = |rip, rsp| End { rip, rsp }.is_torn();
        assert!(!end(FAULTS_AT, STACK), "not yet executed");
        assert!(!end(HANDLER, STACK - 6), "taken");
        assert!(end(FAULTS_AT, STACK - 6));
    }

    #[test]
    fn the_program_waits_with_interrupts_off() {
        let memory = GuestMemory::leaked(GuestMemory::ALIGN);
        write_waiting(&memory).unwrap();
        assert_eq!(
            memory.read_u32(0x1000).map(|code| code & 0xff_ffff),
            Ok(0xfe_ebfa)
        );
        assert_eq!(memory.read_u32(0x140), Ok(0x1800));
    }

    #[test]
    fn the_program_faults_where_it_is_looked_for() {
        let memory = GuestMemory::leaked(GuestMemory::ALIGN);
        write(&memory).unwrap();
        assert_eq!(memory.read_u16(0x1000 + FAULTS_AT), Ok(0x0b0f));
        assert_eq!(memory.read_u16(0x1000 + FAULTS_AT - 2), Ok(0x9090));
        assert_eq!(memory.read_u32(0x18), Ok(0x1800));
    }
}
