//! Inter-processor interrupts: what an ICR value means and whom it reaches.
//!
//! Delivery sets bits in the receivers' [`LapicShared`] and tells the caller whom to kick; it takes no lock.

use core::sync::atomic::{AtomicU32, Ordering};

use super::shared::{Identity, LapicShared, Mode, Requests};

/// Delivery mode (SDM 3A, 11.6.1, figure 11-12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The vector, to all in the destination.
    Fixed,
    /// The vector, to one of them.
    LowestPriority,
    /// Non-maskable interrupt.
    Nmi,
    /// Reset to wait-for-SIPI. `false`: the level de-assert, which modern APICs ignore.
    Init(bool),
    /// Start-up.
    Sipi,
    /// SMI, ExtINT or reserved: nothing happens here.
    Other,
}

/// Whom an interrupt is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The sender.
    Myself,
    /// Everyone.
    All,
    /// Everyone else.
    Others,
    /// By id; the broadcast id has become [`Destination::All`].
    Physical(u32),
    /// By logical id (a bit mask, or a cluster and a bit mask).
    Logical(u32),
}

/// A decoded interrupt command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icr {
    /// Vector, or page of a start-up.
    pub vector: u8,
    /// Delivery mode.
    pub delivery: Delivery,
    /// Destination.
    pub to: Destination,
}

impl Icr {
    /// Bits that an x2APIC's ICR has (SDM 3A, figure 11-28).
    pub const X2APIC_BITS: u64 = 0xffff_ffff_000c_cfff;

    /// Reads a command as an APIC in `mode` holds it (xAPIC: high half in bits 63..32).
    pub fn decode(value: u64, mode: Mode) -> Self {
        let [vector, second, ..] = value.to_le_bytes();
        let level_deassert = value & (1 << 14) == 0 && value & (1 << 15) != 0;
        let delivery = match second & 7 {
            0 => Delivery::Fixed,
            1 => Delivery::LowestPriority,
            4 => Delivery::Nmi,
            5 => Delivery::Init(!level_deassert),
            6 => Delivery::Sipi,
            _ => Delivery::Other,
        };
        let id = high(value);
        let (id, broadcast) = match mode {
            Mode::X2Apic => (id, u32::MAX),
            _ => (id >> 24, 0xff),
        };
        let to = match value >> 18 & 3 {
            1 => Destination::Myself,
            2 => Destination::All,
            3 => Destination::Others,
            _ if id == broadcast => Destination::All,
            _ if value & (1 << 11) != 0 => Destination::Logical(id),
            _ => Destination::Physical(id),
        };
        Self {
            vector,
            delivery,
            to,
        }
    }

    /// A command for oneself (the x2APIC's SELF IPI register).
    pub fn self_ipi(vector: u8) -> Self {
        Self {
            vector,
            delivery: Delivery::Fixed,
            to: Destination::Myself,
        }
    }

    /// Fixed or lowest-priority with a vector that no interrupt may have.
    pub fn has_illegal_vector(&self) -> bool {
        matches!(self.delivery, Delivery::Fixed | Delivery::LowestPriority) && self.vector < 16
    }

    /// Sets the request in every receiver and calls `reached` with its index, after the bit is set.
    ///
    /// `turn` spreads lowest-priority interrupts over the receivers, one counter a guest.
    pub fn deliver<'a>(
        &self,
        sender: usize,
        lapics: impl Iterator<Item = &'a LapicShared> + Clone,
        turn: &AtomicU32,
        mut reached: impl FnMut(usize),
    ) {
        if self.has_illegal_vector() || self.delivery == Delivery::Other {
            return;
        }
        let one = match self.to {
            Destination::Physical(to) => Some(to as usize),
            Destination::Myself => Some(sender),
            _ => None,
        };
        if self.delivery == Delivery::Fixed
            && let Some(index) = one
            && let Some(lapic) = lapics.clone().nth(index)
            && lapic.id() as usize == index
        {
            // Nearly every one: no need to ask all others.
            let is_meant = self
                .to
                .includes(index == sender, lapic.id(), lapic.identity());
            if is_meant && self.post(lapic) {
                reached(index);
            }
            return;
        }
        // INIT and start-up to oneself by shorthand are not defined; a CPU does not reset itself.
        let startup = matches!(self.delivery, Delivery::Init(_) | Delivery::Sipi);
        let all = lapics.enumerate().filter(|(index, lapic)| {
            self.to
                .includes(*index == sender, lapic.id(), lapic.identity())
                && !(startup && *index == sender)
        });
        match self.delivery {
            Delivery::LowestPriority => {
                let ready = all.filter(|(_, lapic)| lapic.identity().enabled);
                let count = ready.clone().count();
                if count > 0 {
                    // Less than 2^32 receivers, so the remainder fits.
                    let turn = turn.fetch_add(1, Ordering::Relaxed) as usize % count;
                    if let Some((index, lapic)) = ready.clone().nth(turn) {
                        lapic.irr().insert(self.vector);
                        reached(index);
                    }
                }
            }
            _ => all.for_each(|(index, lapic)| {
                if self.post(lapic) {
                    reached(index);
                }
            }),
        }
    }

    fn post(&self, lapic: &LapicShared) -> bool {
        match self.delivery {
            Delivery::Fixed => {
                let accepts = lapic.identity().enabled;
                if accepts {
                    lapic.irr().insert(self.vector);
                }
                // Even if the bit was set already: whoever set it may not have kicked yet.
                return accepts;
            }
            Delivery::Nmi => lapic.request(Requests::NMI),
            Delivery::Init(true) => lapic.request(Requests::INIT),
            Delivery::Sipi => lapic.request_sipi(self.vector),
            _ => return false,
        }
        true
    }
}

impl Destination {
    /// Whether an APIC with this id and identity is meant.
    fn includes(self, is_sender: bool, id: u32, identity: Identity) -> bool {
        if identity.mode == Mode::Disabled && !is_sender {
            // A globally disabled APIC takes no message.
            return false;
        }
        match self {
            Self::Myself => is_sender,
            Self::All => true,
            Self::Others => !is_sender,
            Self::Physical(to) => to == id,
            Self::Logical(to) => match identity.mode {
                Mode::X2Apic => {
                    let own = x2apic_ldr(id);
                    own >> 16 == to >> 16 && own & to & 0xffff != 0
                }
                _ if to > 0xff => false,
                _ if identity.cluster => {
                    let own = u32::from(identity.logical);
                    own >> 4 == to >> 4 && own & to & 0xf != 0
                }
                _ => u32::from(identity.logical) & to != 0,
            },
        }
    }
}

/// The logical id that an x2APIC derives from its id (SDM 3A, 11.12.10.2).
pub fn x2apic_ldr(id: u32) -> u32 {
    (id >> 4) << 16 | 1 << (id & 15)
}

fn high(value: u64) -> u32 {
    let b = value.to_le_bytes();
    u32::from_le_bytes([b[4], b[5], b[6], b[7]])
}

#[cfg(test)]
#[path = "icr_tests.rs"]
mod tests;
