//! The part of a virtual APIC that other vCPUs reach: what they may ask for, and how they find it.
//!
//! Everything is atomic; nobody needs a lock to send an interrupt. The owner publishes its [`Identity`]
//! whenever a guest changes a register that it is made of. A sender that reads an old one sends as the
//! real machine would if the message had overtaken the change.
//!
//! A sender sets a bit here first and kicks the vCPU after that; the owner consumes its kick first and looks
//! here after that. So one of the two always sees the other.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bitflags::bitflags;

pub use crate::virt::ApicMode as Mode;
use crate::virt::{AtomicVectorSet, InterruptRequests};

/// What a sender must know of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// How it is addressed.
    pub mode: Mode,
    /// SVR bit 8: accepts fixed and lowest-priority interrupts.
    pub enabled: bool,
    /// xAPIC: the DFR says cluster model, not flat.
    pub cluster: bool,
    /// xAPIC: bits 31..24 of the LDR.
    pub logical: u8,
}

impl Identity {
    /// After power-up: xAPIC mode, software-disabled, flat model.
    pub const RESET: Self = Self {
        mode: Mode::XApic,
        enabled: false,
        cluster: false,
        logical: 0,
    };

    const fn pack(self) -> u32 {
        let mode = match self.mode {
            Mode::Disabled => 0,
            Mode::XApic => 1,
            Mode::X2Apic => 2,
        };
        mode | (self.enabled as u32) << 2 | (self.cluster as u32) << 3 | (self.logical as u32) << 8
    }

    fn unpack(word: u32) -> Self {
        let mode = match word & 3 {
            1 => Mode::XApic,
            2 => Mode::X2Apic,
            _ => Mode::Disabled,
        };
        let [_, logical, ..] = word.to_le_bytes();
        Self {
            mode,
            enabled: word & 4 != 0,
            cluster: word & 8 != 0,
            logical,
        }
    }
}

bitflags! {
    /// Requests that are not vectors.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Requests: u32 {
        /// A non-maskable interrupt.
        const NMI = 1 << 0;
        /// Reset to wait-for-SIPI.
        const INIT = 1 << 1;
        /// Start-up; its vector is in bits 15..8 of the word.
        const SIPI = 1 << 2;
        /// The timer of this vCPU has come due.
        const TIMER = 1 << 3;
    }
}

/// One vCPU's APIC as others see it.
#[derive(Debug)]
pub struct LapicShared {
    id: u32,
    interrupts: Arc<InterruptRequests>,
    requests: AtomicU32,
    identity: AtomicU32,
    online: AtomicBool,
}

impl LapicShared {
    /// An APIC after power-up.
    pub fn new(id: u32) -> Self {
        Self {
            id,
            interrupts: Arc::default(),
            requests: AtomicU32::new(0),
            identity: AtomicU32::new(Identity::RESET.pack()),
            online: AtomicBool::new(false),
        }
    }

    /// The (x2)APIC id, which is the vCPU's index in its guest.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Interrupts requested and not yet accepted by the vCPU.
    pub fn irr(&self) -> &AtomicVectorSet {
        self.interrupts.vectors()
    }

    /// The same, with who takes them.
    pub fn interrupts(&self) -> &Arc<InterruptRequests> {
        &self.interrupts
    }

    /// How to reach it.
    pub fn identity(&self) -> Identity {
        Identity::unpack(self.identity.load(Ordering::SeqCst))
    }

    /// Owner: tells the others of a changed identity.
    pub fn publish(&self, identity: Identity) {
        self.identity.store(identity.pack(), Ordering::SeqCst);
    }

    /// Asks for something that has no vector. An INIT overrides a start-up not yet taken.
    pub fn request(&self, what: Requests) {
        let dropped = if what.contains(Requests::INIT) {
            SIPI_WORD
        } else {
            0
        };
        self.update(|word| (word & !dropped) | (what - Requests::SIPI).bits());
    }

    /// Asks for a start-up at `vector << 12`. The last one before it is taken counts.
    pub fn request_sipi(&self, vector: u8) {
        self.update(|word| (word & !SIPI_WORD) | Requests::SIPI.bits() | u32::from(vector) << 8);
    }

    /// Owner: takes all requests, with the vector of a start-up.
    pub fn take_requests(&self) -> (Requests, u8) {
        let word = if self.requests.load(Ordering::SeqCst) == 0 {
            0
        } else {
            self.requests.swap(0, Ordering::SeqCst)
        };
        let [_, vector, ..] = word.to_le_bytes();
        (Requests::from_bits_truncate(word), vector)
    }

    /// Whether any of `what` is requested now.
    pub fn requested(&self, what: Requests) -> bool {
        self.requests.load(Ordering::SeqCst) & what.bits() != 0
    }

    /// Marks the vCPU as known to the scheduler; says whether it was not before.
    pub fn set_online(&self) -> bool {
        !self.online.swap(true, Ordering::SeqCst)
    }

    /// Whether the scheduler knows this vCPU.
    pub fn is_online(&self) -> bool {
        self.online.load(Ordering::SeqCst)
    }

    fn update(&self, change: impl Fn(u32) -> u32) {
        let mut word = self.requests.load(Ordering::SeqCst);
        while let Err(now) = self.requests.compare_exchange_weak(
            word,
            change(word),
            Ordering::SeqCst,
            Ordering::SeqCst,
        ) {
            word = now;
        }
    }
}

/// The start-up request and its vector.
const SIPI_WORD: u32 = Requests::SIPI.bits() | 0xff00;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_survives_the_word_it_travels_in() {
        for mode in [Mode::Disabled, Mode::XApic, Mode::X2Apic] {
            for (enabled, cluster) in [(false, false), (true, false), (false, true), (true, true)] {
                let identity = Identity {
                    mode,
                    enabled,
                    cluster,
                    logical: 0xa5,
                };
                let shared = LapicShared::new(3);
                assert_eq!(shared.identity(), Identity::RESET);
                shared.publish(identity);
                assert_eq!(shared.identity(), identity);
            }
        }
    }

    #[test]
    fn init_overrides_an_earlier_startup_and_a_later_one_stays() {
        let shared = LapicShared::new(0);
        shared.request_sipi(0x12);
        shared.request(Requests::INIT);
        assert_eq!(shared.take_requests(), (Requests::INIT, 0));
        shared.request(Requests::INIT);
        shared.request_sipi(0x9f);
        shared.request_sipi(0x10);
        shared.request(Requests::NMI);
        assert!(shared.requested(Requests::NMI));
        let all = Requests::INIT | Requests::SIPI | Requests::NMI;
        assert_eq!(shared.take_requests(), (all, 0x10));
        assert_eq!(shared.take_requests(), (Requests::empty(), 0));
    }
}
