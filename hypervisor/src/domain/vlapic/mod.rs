//! A local APIC in software: x2APIC by MSRs, xAPIC by its page, priorities, timer, IPIs.
//!
//! Two parts. [`LapicShared`] is what others reach, all atomic. [`Lapic`] is the rest; it belongs to whoever
//! runs the vCPU. IRR lives in the shared part, ISR here: accepting an interrupt moves a vector from one to the
//! other, and only the owner does that.
//!
//! Every interrupt is edge-triggered: there is no I/O APIC that could send another kind, so TMR is zero and an
//! EOI needs to tell nobody.
//!
//! Takes no locks. Called by [`vcpu`](super::vcpu) between entries.

mod icr;
mod regs;
mod shared;
mod timer;

use alloc::sync::Arc;

use lull_core::units::Ticks;

pub use icr::{Delivery, Destination, Icr, x2apic_ldr};
pub use regs::{Lvt, Reg};
pub use shared::{Identity, LapicShared, Mode, Requests};
pub use timer::{Timer, TimerMode};

use super::layout::LAPIC_PAGE;
use crate::virt::{ApicState, Gp, ShownRegister, VectorSet};
use regs::{LVT_COUNT, LVT_MASKED};

/// Version 14h, LVT entries 0..=5 (SDM 3A, 11.4.8).
const VERSION: u32 = 0x5_0014;

const BASE_BSP: u64 = 1 << 8;
const BASE_X2: u64 = 1 << 10;
const BASE_ENABLE: u64 = 1 << 11;

/// ESR bits.
const ESR_SEND_ILLEGAL_VECTOR: u32 = 1 << 5;
const ESR_RECEIVE_ILLEGAL_VECTOR: u32 = 1 << 6;
const ESR_ILLEGAL_REGISTER: u32 = 1 << 7;

/// What [`Lapic::shown`] shows.
const SHOWN: [Reg; 13] = [
    Reg::Id,
    Reg::Version,
    Reg::Ldr,
    Reg::Svr,
    Reg::Esr,
    Reg::Lvt(Lvt::Timer),
    Reg::Lvt(Lvt::Thermal),
    Reg::Lvt(Lvt::Performance),
    Reg::Lvt(Lvt::Lint0),
    Reg::Lvt(Lvt::Lint1),
    Reg::Lvt(Lvt::Error),
    Reg::InitialCount,
    Reg::Divide,
];

/// Time as one vCPU sees it.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The real TSC.
    pub tsc: Ticks,
    /// What the guest's TSC is ahead of it, modulo 2^64.
    pub offset: u64,
}

/// The owner's part of one APIC.
#[derive(Debug)]
pub struct Lapic {
    shared: Arc<LapicShared>,
    base: u64,
    tpr: u8,
    ldr: u32,
    dfr: u32,
    svr: u32,
    isr: VectorSet,
    esr: u32,
    esr_pending: u32,
    icr: u64,
    lvt: [u32; LVT_COUNT],
    timer: Timer,
    /// A register that is shown may have changed.
    changed: bool,
}

impl Lapic {
    /// After power-up, in xAPIC mode.
    pub fn new(shared: Arc<LapicShared>) -> Self {
        let bsp = if shared.id() == 0 { BASE_BSP } else { 0 };
        let lapic = Self::reset(shared, LAPIC_PAGE | BASE_ENABLE | bsp);
        lapic.publish();
        lapic
    }

    fn reset(shared: Arc<LapicShared>, base: u64) -> Self {
        let ldr = if base & BASE_X2 != 0 {
            x2apic_ldr(shared.id())
        } else {
            0
        };
        Self {
            shared,
            base,
            tpr: 0,
            ldr,
            dfr: u32::MAX,
            svr: 0xff,
            isr: VectorSet::default(),
            esr: 0,
            esr_pending: 0,
            icr: 0,
            lvt: [LVT_MASKED; LVT_COUNT],
            timer: Timer::default(),
            changed: true,
        }
    }

    /// The part that others reach.
    pub fn shared(&self) -> &Arc<LapicShared> {
        &self.shared
    }

    /// INIT: as after power-up, but the mode and `IA32_APIC_BASE` stay (SDM 3A, 11.12.5.1).
    pub fn init(&mut self) {
        *self = Self::reset(self.shared.clone(), self.base);
        self.shared.irr().clear();
        self.publish();
    }

    /// How it is addressed.
    pub fn mode(&self) -> Mode {
        match (self.base & BASE_ENABLE != 0, self.base & BASE_X2 != 0) {
            (false, _) => Mode::Disabled,
            (true, false) => Mode::XApic,
            (true, true) => Mode::X2Apic,
        }
    }

    /// `IA32_APIC_BASE`.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Sets `IA32_APIC_BASE` (SDM 3A, 11.12.5).
    ///
    /// # Errors
    /// #GP(0) for reserved bits, for a transition that the state machine does not have, and for an address
    /// other than FEE0_0000h: the page does not move.
    pub fn set_base(&mut self, value: u64) -> Result<(), Gp> {
        let (enable, x2) = (value & BASE_ENABLE != 0, value & BASE_X2 != 0);
        if value & !(BASE_BSP | BASE_X2 | BASE_ENABLE) != LAPIC_PAGE {
            return Err(Gp);
        }
        match (self.mode(), enable, x2) {
            (_, false, true) | (Mode::Disabled, true, true) | (Mode::X2Apic, true, false) => {
                return Err(Gp);
            }
            (Mode::XApic | Mode::X2Apic, false, false) => {
                self.init();
            }
            (Mode::XApic, true, true) => {
                self.ldr = x2apic_ldr(self.shared.id());
                self.icr &= 0xffff_ffff;
            }
            _ => {}
        }
        self.base = (value & !BASE_BSP) | (self.base & BASE_BSP);
        self.changed = true;
        self.publish();
        Ok(())
    }

    /// Whether no interrupt is requested at all, deliverable or not.
    pub fn nothing_requested(&self) -> bool {
        self.shared.irr().highest().is_none()
    }

    /// The interrupt to deliver next: requested, and of a higher class than what is in service and than the
    /// task priority.
    pub fn deliverable(&self) -> Option<u8> {
        let vector = self.shared.irr().highest()?;
        (self.mode() != Mode::Disabled && vector >> 4 > self.ppr() >> 4).then_some(vector)
    }

    /// The class of an interrupt that only the task priority keeps from being delivered.
    pub fn held_back_by_tpr(&self) -> Option<u8> {
        let class = self.shared.irr().highest()? >> 4;
        let serving = self.isr.highest().unwrap_or(0) >> 4;
        let held = self.mode() != Mode::Disabled && class > serving && class <= self.tpr >> 4;
        held.then_some(class)
    }

    /// Moves a vector from requested to in service. `false`: it was not requested.
    pub fn accept(&mut self, vector: u8) -> bool {
        let taken = self.shared.irr().take(vector);
        if taken {
            self.isr.insert(vector);
        }
        taken
    }

    /// Whether what is shown to a processor that virtualizes the APIC may have changed since the last call.
    pub fn take_changed(&mut self) -> bool {
        core::mem::take(&mut self.changed)
    }

    /// The mode that such a processor is told. One that the guest has switched off by software is not lent: it takes no SELF IPI,
    /// which the processor does not know.
    pub fn lent_mode(&self) -> Mode {
        if self.enabled() {
            self.mode()
        } else {
            Mode::Disabled
        }
    }

    /// What is shown to such a processor: registers that change by the guest's own writes only.
    pub fn shown(&self) -> [ShownRegister; SHOWN.len()] {
        SHOWN.map(|reg| (reg.number(), self.peek(reg).unwrap_or(0)))
    }

    /// Lends such a processor what it changes by itself: the task priority, and all interrupts in service and requested so far.
    pub fn lend(&mut self) -> ApicState {
        ApicState {
            tpr: self.tpr,
            in_service: self.isr,
            requested: self.shared.irr().take_all(),
        }
    }

    /// Undoes [`lend`](Self::lend).
    pub fn take_back(&mut self, state: &ApicState) {
        self.tpr = state.tpr;
        self.isr = state.in_service;
        self.shared.irr().insert_all(&state.requested);
    }

    /// CR8, which is the upper half of the task priority.
    pub fn cr8(&self) -> u8 {
        self.tpr >> 4
    }

    /// The guest wrote CR8.
    pub fn set_cr8(&mut self, class: u8) {
        if class != self.cr8() {
            self.tpr = class << 4;
        }
    }

    /// When the timer needs attention next; a masked one never does.
    pub fn timer_deadline(&self) -> Option<Ticks> {
        self.timer
            .expiry()
            .filter(|_| self.lvt(Lvt::Timer) & LVT_MASKED == 0)
    }

    /// Lets the timer fire if it is due.
    pub fn poll_timer(&mut self, now: Ticks) {
        if self.timer.poll(now) {
            self.raise(Lvt::Timer);
        }
    }

    /// `IA32_TSC_DEADLINE`.
    pub fn tsc_deadline(&self) -> u64 {
        self.timer.deadline()
    }

    /// Sets `IA32_TSC_DEADLINE`.
    pub fn set_tsc_deadline(&mut self, value: u64, now: Now) {
        self.timer.set_deadline(value, now.offset, now.tsc);
        self.poll_timer(now.tsc);
    }

    /// The guest's TSC was moved.
    pub fn tsc_offset_changed(&mut self, now: Now) {
        self.timer.offset_changed(now.offset, now.tsc);
    }

    /// RDMSR of 800h + `number`.
    ///
    /// # Errors
    /// #GP(0) if the APIC is not in x2APIC mode or has no such readable register.
    pub fn read_msr(&mut self, number: u32, now: Now) -> Result<u64, Gp> {
        let reg = Reg::from_number(number)
            .filter(|r| r.x2apic_readable())
            .ok_or(Gp)?;
        if self.mode() != Mode::X2Apic {
            return Err(Gp);
        }
        if reg == Reg::Icr {
            return Ok(self.icr);
        }
        Ok(self.read(reg, now.tsc).into())
    }

    /// [`read_msr`](Self::read_msr) where it changes nothing. `None`: there is no such register, or its value takes the time.
    #[inline(always)]
    pub fn peek_msr(&self, number: u32) -> Option<u64> {
        const X2: u64 = BASE_ENABLE | BASE_X2;
        if self.base & X2 != X2 {
            return None;
        }
        // Those that are read most, without a look at what kind of register they are.
        match number {
            0x02 => Some(self.shared.id().into()),
            0x08 => Some(self.tpr.into()),
            0x0f => Some(self.svr.into()),
            0x30 => Some(self.icr),
            number => self.peek_any(number),
        }
    }

    #[inline(never)]
    fn peek_any(&self, number: u32) -> Option<u64> {
        let reg = Reg::from_number(number).filter(|r| r.x2apic_readable())?;
        self.peek(reg).map(u64::from)
    }

    /// The guest's end of an interrupt.
    #[inline]
    pub fn end_of_interrupt(&mut self) {
        if let Some(vector) = self.isr.highest() {
            self.isr.remove(vector);
        }
    }

    /// Sets the task priority.
    #[inline]
    pub fn set_tpr(&mut self, tpr: u8) {
        self.tpr = tpr;
    }

    /// The guest of an x2APIC gives a command that needs no check any more.
    #[inline]
    pub fn note_command(&mut self, value: u64) {
        self.icr = value;
    }

    /// WRMSR of 800h + `number`. Returns the IPI that the caller has to send.
    ///
    /// # Errors
    /// #GP(0) if the APIC is not in x2APIC mode, for a read-only or absent register, and for reserved bits.
    pub fn write_msr(&mut self, number: u32, value: u64, now: Now) -> Result<Option<Icr>, Gp> {
        let reg = Reg::from_number(number)
            .filter(|r| r.in_x2apic())
            .ok_or(Gp)?;
        let writable = reg.x2apic_writable().ok_or(Gp)?;
        if self.mode() != Mode::X2Apic || value & !writable != 0 {
            return Err(Gp);
        }
        let low = u32::try_from(value & 0xffff_ffff).unwrap_or(0);
        Ok(match reg {
            Reg::Icr => {
                self.icr = value;
                self.command(Icr::decode(value, Mode::X2Apic))
            }
            Reg::SelfIpi => self.command(Icr::self_ipi(self.low_byte(low))),
            _ => self.write(reg, low, now.tsc),
        })
    }

    /// Reads the 32-bit register at `offset` of the page. All ones if the page is not there.
    pub fn read_page(&mut self, offset: u32, now: Now) -> u32 {
        if self.mode() != Mode::XApic {
            return u32::MAX;
        }
        match Reg::from_number(offset >> 4).filter(|r| *r != Reg::SelfIpi && offset & 15 == 0) {
            Some(reg) => self.read(reg, now.tsc),
            None => {
                self.error(ESR_ILLEGAL_REGISTER);
                0
            }
        }
    }

    /// Writes the 32-bit register at `offset` of the page. Returns the IPI that the caller has to send.
    pub fn write_page(&mut self, offset: u32, value: u32, now: Now) -> Option<Icr> {
        if self.mode() != Mode::XApic {
            return None;
        }
        match Reg::from_number(offset >> 4).filter(|r| *r != Reg::SelfIpi && offset & 15 == 0) {
            Some(reg) => self.write(reg, value, now.tsc),
            None => {
                self.error(ESR_ILLEGAL_REGISTER);
                None
            }
        }
    }

    /// A processor that virtualizes this APIC has taken a write, and left to do what it does. Returns the IPI that the caller has to
    /// send.
    pub fn written(&mut self, offset: u32, value: u32, now: Now) -> Option<Icr> {
        match self.mode() {
            // It has checked the value.
            Mode::X2Apic => self.write_msr(offset >> 4, value.into(), now).ok()?,
            _ => self.write_page(offset & !15, value, now),
        }
    }

    /// Processor priority: the higher of the task's and of the interrupt's in service (SDM 3A, 11.8.3.1).
    fn ppr(&self) -> u8 {
        let serving = self.isr.highest().unwrap_or(0) & 0xf0;
        if self.tpr & 0xf0 >= serving {
            self.tpr
        } else {
            serving
        }
    }

    fn enabled(&self) -> bool {
        self.svr & 0x100 != 0
    }

    fn lvt(&self, which: Lvt) -> u32 {
        self.lvt.get(which as usize).copied().unwrap_or(LVT_MASKED)
    }

    fn low_byte(&self, value: u32) -> u8 {
        value.to_le_bytes()[0]
    }

    fn publish(&self) {
        let mode = self.mode();
        self.shared.publish(Identity {
            mode,
            enabled: mode != Mode::Disabled && self.enabled(),
            cluster: self.dfr >> 28 == 0,
            logical: self.ldr.to_le_bytes()[3],
        });
    }

    /// A local interrupt source has something.
    fn raise(&mut self, source: Lvt) {
        let lvt = self.lvt(source);
        if lvt & LVT_MASKED != 0 || self.mode() == Mode::Disabled {
            return;
        }
        match self.low_byte(lvt) {
            // An illegal vector of the error entry itself must not raise the next error.
            0..16 if source == Lvt::Error => {}
            0..16 => self.error(ESR_RECEIVE_ILLEGAL_VECTOR),
            vector => {
                self.shared.irr().insert(vector);
            }
        }
    }

    fn error(&mut self, bit: u32) {
        if self.esr_pending & bit == 0 {
            self.esr_pending |= bit;
            self.raise(Lvt::Error);
        }
    }

    fn command(&mut self, icr: Icr) -> Option<Icr> {
        if icr.has_illegal_vector() {
            self.error(ESR_SEND_ILLEGAL_VECTOR);
            return None;
        }
        Some(icr)
    }

    fn read(&mut self, reg: Reg, now: Ticks) -> u32 {
        self.peek(reg).unwrap_or_else(|| {
            self.poll_timer(now);
            self.timer.current(now)
        })
    }

    /// A register. `None` for the one that takes the time.
    #[inline]
    fn peek(&self, reg: Reg) -> Option<u32> {
        let x2 = self.mode() == Mode::X2Apic;
        Some(match reg {
            Reg::Id if x2 => self.shared.id(),
            Reg::Id => self.shared.id() << 24,
            Reg::Version => VERSION,
            Reg::Tpr => self.tpr.into(),
            Reg::Ppr => self.ppr().into(),
            Reg::Apr | Reg::Eoi | Reg::Tmr(_) | Reg::SelfIpi => 0,
            Reg::Ldr => self.ldr,
            Reg::Dfr => self.dfr,
            Reg::Svr => self.svr,
            Reg::Isr(row) => self.isr.word(row),
            Reg::Irr(row) => self.shared.irr().word(row),
            Reg::Esr => self.esr,
            Reg::Icr => u32::try_from(self.icr & 0xffff_ffff).unwrap_or(0),
            Reg::IcrHigh => u32::try_from(self.icr >> 32).unwrap_or(0),
            Reg::Lvt(which) => self.lvt(which),
            Reg::InitialCount => self.timer.initial(),
            Reg::CurrentCount => return None,
            Reg::Divide => self.timer.divide(),
        })
    }

    fn write(&mut self, reg: Reg, value: u32, now: Ticks) -> Option<Icr> {
        self.changed = true;
        match reg {
            Reg::Tpr => self.tpr = self.low_byte(value),
            Reg::Eoi => self.end_of_interrupt(),
            Reg::Ldr => self.ldr = value & 0xff00_0000,
            Reg::Dfr => self.dfr = value | 0x0fff_ffff,
            Reg::Svr => {
                self.svr = value & 0x1ff;
                if !self.enabled() {
                    self.lvt.iter_mut().for_each(|lvt| *lvt |= LVT_MASKED);
                }
            }
            Reg::Esr => {
                self.esr = self.esr_pending;
                self.esr_pending = 0;
            }
            Reg::Icr => {
                self.icr = (self.icr & !0xffff_ffff) | u64::from(value & 0xc_cfff);
                return self.command(Icr::decode(self.icr, Mode::XApic));
            }
            Reg::IcrHigh => {
                self.icr = (self.icr & 0xffff_ffff) | u64::from(value & 0xff00_0000) << 32
            }
            Reg::Lvt(which) => self.write_lvt(which, value, now),
            Reg::InitialCount => self.timer.set_initial(value, now),
            Reg::Divide => self.timer.set_divide(value, now),
            Reg::Id
            | Reg::Version
            | Reg::Apr
            | Reg::Ppr
            | Reg::Isr(_)
            | Reg::Tmr(_)
            | Reg::Irr(_) => {}
            Reg::CurrentCount | Reg::SelfIpi => {}
        }
        if matches!(reg, Reg::Ldr | Reg::Dfr | Reg::Svr) {
            self.publish();
        }
        None
    }

    fn write_lvt(&mut self, which: Lvt, value: u32, now: Ticks) {
        let masked = if self.enabled() { 0 } else { LVT_MASKED };
        if which == Lvt::Timer {
            // What was due under the old entry fires under the old entry.
            self.poll_timer(now);
            self.timer.set_mode(TimerMode::of(value));
        }
        if let Some(entry) = self.lvt.get_mut(which as usize) {
            *entry = (value & which.writable()) | masked;
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
