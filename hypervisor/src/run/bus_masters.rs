//! Bus masters and ACPI C3: devices that reach memory while a CPU's caches are asleep.
//!
//! ACPI specification 6.5, 8.2.1 and 4.8.3: BM_STS says that a bus master was active, BM_RLD makes its next request wake the
//! CPU, ARB_DIS holds its request off. ARB_DIS is one bit for all CPUs: the last that enters sets it, the first that leaves
//! clears it.
//!
//! Lock: `asleep` is a leaf, taken with interrupts off.

use spin::mutex::SpinMutex;

use crate::acpi::cst::BusMasters;
use crate::console::port::Ports;

const BM_STS: u16 = 1 << 4;
const BM_RLD: u16 = 1 << 1;
const ARB_DIS: u8 = 1 << 0;

/// Has a bus master been active since the last call? Also `true` where there is no port to ask.
pub fn active(masters: &BusMasters, ports: &impl Ports) -> bool {
    let mut known = false;
    let mut active = false;
    for port in masters.status.into_iter().flatten() {
        known = true;
        if ports.read16(port) & BM_STS != 0 {
            active = true;
            // Writing 1 clears it, and writing 0 leaves the other bits as they are.
            ports.write16(port, BM_STS);
        }
    }
    active || !known
}

/// From now on, a bus master's request wakes a CPU from C3.
pub fn wake_on_request(masters: &BusMasters, ports: &impl Ports) {
    for port in masters.control.into_iter().flatten() {
        let control = ports.read16(port);
        if control & BM_RLD == 0 {
            ports.write16(port, control | BM_RLD);
        }
    }
}

/// Who holds bus masters off.
#[derive(Debug)]
pub struct Arbiter {
    /// CPUs that are in C3, or on their way in.
    asleep: SpinMutex<usize>,
}

impl Arbiter {
    /// Nobody.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            asleep: SpinMutex::new(0),
        }
    }

    /// A CPU is about to enter C3; `cpus` are online.
    pub fn enter(&self, masters: &BusMasters, ports: &impl Ports, cpus: usize) {
        let Some(port) = masters.arbiter else { return };
        let mut asleep = self.asleep.lock();
        *asleep += 1;
        if *asleep == cpus {
            ports.write8(port, ports.read8(port) | ARB_DIS);
        }
    }

    /// A CPU is back, or did not go.
    pub fn leave(&self, masters: &BusMasters, ports: &impl Ports, cpus: usize) {
        let Some(port) = masters.arbiter else { return };
        let mut asleep = self.asleep.lock();
        if *asleep == cpus {
            ports.write8(port, ports.read8(port) & !ARB_DIS);
        }
        *asleep = asleep.saturating_sub(1);
    }
}

impl Default for Arbiter {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::port::mock::MockPorts;

    const MASTERS: BusMasters = BusMasters {
        status: [Some(0x600), None],
        control: [Some(0x604), None],
        arbiter: Some(0x650),
    };

    fn ports(status: u32, control: u32, arbiter: u32) -> MockPorts {
        let ports = MockPorts {
            memory_like: vec![0x604, 0x650],
            ..MockPorts::default()
        };
        let values = [(0x600, status), (0x604, control), (0x650, arbiter)];
        ports.sticky.borrow_mut().extend(values);
        ports
    }

    #[test]
    fn activity_is_seen_once_and_cleared_alone() {
        let busy = ports(0x8011, 0, 0);
        assert!(active(&MASTERS, &busy));
        assert_eq!(*busy.written.borrow(), [(0x600, 0x10)]);
        let quiet = ports(0x8001, 0, 0);
        assert!(!active(&MASTERS, &quiet));
        assert!(quiet.written.borrow().is_empty());
        // Without a port nobody knows.
        assert!(active(&BusMasters::default(), &quiet));
    }

    #[test]
    fn requests_wake_and_the_rest_of_the_register_stays() {
        let ports = ports(0, 0x0401, 0);
        wake_on_request(&MASTERS, &ports);
        wake_on_request(&MASTERS, &ports);
        assert_eq!(*ports.written.borrow(), [(0x604, 0x0403)]);
    }

    #[test]
    fn the_last_in_disables_and_the_first_out_enables() {
        let ports = ports(0, 0, 0x80);
        let arbiter = Arbiter::new();
        arbiter.enter(&MASTERS, &ports, 2);
        assert!(ports.written.borrow().is_empty(), "one is still awake");
        arbiter.enter(&MASTERS, &ports, 2);
        assert_eq!(*ports.written.borrow(), [(0x650, 0x81)]);
        arbiter.leave(&MASTERS, &ports, 2);
        arbiter.leave(&MASTERS, &ports, 2);
        assert_eq!(*ports.written.borrow(), [(0x650, 0x81), (0x650, 0x80)]);
    }
}
