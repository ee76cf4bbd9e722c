//! The interrupt command register: every IPI of the machine goes through [`write()`].
//!
//! Two guarantees:
//! - Every store before the call is visible to the interrupt's handler: by fences in x2APIC mode (`msr::order_stores`); in xAPIC
//!   mode the register is uncached memory, and an uncached store stays behind all earlier stores.
//! - In xAPIC mode the command takes two writes, and nothing sends another one in between: callers run with interrupts
//!   off, and NMI handlers do not send. The one exception is the stop of a dying machine, which goes to a shorthand (the
//!   upper half does not count) and never returns.
use super::local::{LocalApic, Register};
use super::msr;

/// Whom an IPI goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The local APIC of this id (physical mode).
    Id(u32),
    /// Several of one x2APIC cluster: which are the 16 ids from `16 * cluster` on, a bit each (logical mode).
    Cluster {
        /// Which cluster.
        cluster: u16,
        /// Its members.
        members: u16,
    },
    /// Several of the first eight CPUs, a bit each (flat logical mode); in xAPIC mode only.
    Flat {
        /// Which.
        members: u8,
    },
    /// The sender.
    Myself,
    /// All but the sender.
    Others,
}

/// What an IPI does (Intel SDM vol. 3, 13.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// An interrupt of this vector.
    Fixed(u8),
    /// A non-maskable interrupt.
    Nmi,
    /// INIT: the target waits for a start-up IPI.
    Init,
    /// Start-up: the target starts in real mode at `page << 12`.
    StartUp {
        /// Page number below 1 MiB.
        page: u8,
    },
}

const ASSERT: u32 = 1 << 14;
const PENDING: u32 = 1 << 12;
/// Reads of the delivery status before a command that never finishes is overwritten.
const PENDING_POLLS: u32 = 100_000;

/// The lower half of the command.
const fn low(destination: Destination, delivery: Delivery) -> u32 {
    let shorthand = match destination {
        Destination::Id(_) | Destination::Cluster { .. } | Destination::Flat { .. } => 0b00,
        Destination::Myself => 0b01,
        Destination::Others => 0b11,
    };
    let (mode, vector) = match delivery {
        Delivery::Fixed(vector) => (0b000, vector),
        Delivery::Nmi => (0b100, 0),
        Delivery::Init => (0b101, 0),
        Delivery::StartUp { page } => (0b110, page),
    };
    let logical = matches!(
        destination,
        Destination::Cluster { .. } | Destination::Flat { .. }
    ) as u32;
    shorthand << 18 | ASSERT | logical << 11 | mode << 8 | vector as u32
}

/// The upper half in x2APIC mode. The logical id of an x2APIC is made of its physical one, by hardware (Intel SDM vol. 3, 13.12.10.2).
const fn high(destination: Destination) -> u32 {
    match destination {
        Destination::Id(id) => id,
        Destination::Cluster { cluster, members } => (cluster as u32) << 16 | members as u32,
        Destination::Flat { members } => members as u32,
        Destination::Myself | Destination::Others => 0,
    }
}

/// Sends an IPI. Called with interrupts off. An id above 254 cannot be reached in xAPIC mode: such CPUs are never started; nor can
/// a cluster.
#[inline]
pub fn write(apic: &LocalApic, destination: Destination, delivery: Delivery) {
    write_all(apic, core::iter::once(destination), delivery);
}

/// Sends an IPI to each of these, behind one fence.
#[inline]
pub fn write_all(
    apic: &LocalApic,
    destinations: impl Iterator<Item = Destination>,
    delivery: Delivery,
) {
    match apic {
        LocalApic::XApic(_) => msr::order_stores_before_mmio(),
        LocalApic::X2Apic => msr::order_stores(),
    }
    destinations.for_each(|destination| command(apic, destination, delivery));
}

fn command(apic: &LocalApic, destination: Destination, delivery: Delivery) {
    let low = low(destination, delivery);
    match apic {
        LocalApic::XApic(_) => {
            for _ in 0..PENDING_POLLS {
                if apic.read(Register::CommandLow) & PENDING == 0 {
                    break;
                }
                core::hint::spin_loop();
            }
            if let Destination::Id(_) | Destination::Flat { .. } = destination {
                apic.write(Register::CommandHigh, high(destination) << 24);
            }
            apic.write(Register::CommandLow, low);
        }
        LocalApic::X2Apic => {
            msr::write(
                msr::X2APIC + (Register::CommandLow as u32 >> 4),
                u64::from(high(destination)) << 32 | u64::from(low),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::mmio::Mmio;
    use super::*;

    #[test]
    fn commands_are_encoded_as_the_manual_has_them() {
        assert_eq!(low(Destination::Id(3), Delivery::Fixed(0xF1)), 0x0000_40F1);
        assert_eq!(low(Destination::Myself, Delivery::Fixed(0x31)), 0x0004_4031);
        assert_eq!(low(Destination::Others, Delivery::Nmi), 0x000C_4400);
        assert_eq!(low(Destination::Id(1), Delivery::Init), 0x0000_4500);
        assert_eq!(
            low(Destination::Id(1), Delivery::StartUp { page: 8 }),
            0x0000_4608
        );
        let some = Destination::Cluster {
            cluster: 2,
            members: 0b101,
        };
        assert_eq!(low(some, Delivery::Fixed(0xF1)), 0x0000_48F1);
        assert_eq!(high(some), 0x0002_0005);
    }

    #[test]
    fn xapic_writes_the_destination_and_leaves_it_for_shorthands() {
        let mut page = vec![0u32; 0x400 / 4];
        let apic = LocalApic::XApic(Mmio::over(&mut page));
        write(&apic, Destination::Id(5), Delivery::Fixed(0xF1));
        assert_eq!((page[0x310 / 4], page[0x300 / 4]), (0x0500_0000, 0x40F1));
        write(&apic, Destination::Others, Delivery::Nmi);
        assert_eq!((page[0x310 / 4], page[0x300 / 4]), (0x0500_0000, 0xC_4400));
        let some = Destination::Flat { members: 0b1010 };
        write(&apic, some, Delivery::Fixed(0xF1));
        assert_eq!((page[0x310 / 4], page[0x300 / 4]), (0x0A00_0000, 0x48F1));
    }

    #[test]
    fn a_command_that_never_finishes_does_not_hang() {
        let mut page = vec![0u32; 0x400 / 4];
        page[0x300 / 4] = PENDING;
        let apic = LocalApic::XApic(Mmio::over(&mut page));
        write(&apic, Destination::Id(1), Delivery::Nmi);
        assert_eq!(page[0x300 / 4], 0x4400);
    }
}
