//! A processor for tests on the host: registers that keep what is written, and a record of what was flushed. Each thread has its
//! own.

/// Where the library is built for the host without tests, nothing runs and nothing is kept.
#[cfg(not(test))]
mod state {
    pub fn read(_: u32) -> u64 {
        0
    }
    pub fn write(_: u32, _: u64) {}
    pub fn flush_all() {}
    pub fn flush(_: u16) {}
}

#[cfg(test)]
mod state {
    use core::cell::{Cell, RefCell};
    use std::collections::BTreeMap;
    use std::vec::Vec;

    std::thread_local! {
        static REGISTERS: RefCell<BTreeMap<u32, u64>> = const { RefCell::new(BTreeMap::new()) };
        /// How often all guests' tables were flushed.
        pub static INVEPTS: Cell<u32> = const { Cell::new(0) };
        /// The VPIDs that were flushed.
        pub static INVVPIDS: RefCell<Vec<u16>> = const { RefCell::new(Vec::new()) };
    }

    pub fn read(number: u32) -> u64 {
        REGISTERS.with_borrow(|all| all.get(&number).copied().unwrap_or(0))
    }

    pub fn write(number: u32, value: u64) {
        REGISTERS.with_borrow_mut(|all| all.insert(number, value));
    }

    pub fn flush_all() {
        INVEPTS.set(INVEPTS.get() + 1);
    }

    pub fn flush(vpid: u16) {
        INVVPIDS.with_borrow_mut(|all| all.push(vpid));
    }
}

#[cfg(test)]
pub use state::{INVEPTS, INVVPIDS};

/// MSRs.
pub mod msr {
    pub use super::state::{read, write};
}

/// DR6, under a number that no MSR has.
pub mod dr6 {
    use super::state;

    const NUMBER: u32 = u32::MAX;

    pub fn read() -> u64 {
        state::read(NUMBER)
    }

    pub fn write(value: u64) {
        state::write(NUMBER, value);
    }
}

/// INVEPT and INVVPID.
pub mod instructions {
    use super::super::capability::Invvpid;
    use super::state;

    pub fn invept_all() {
        state::flush_all();
    }

    pub fn invvpid(_: Invvpid, vpid: u16) {
        state::flush(vpid);
    }
}
