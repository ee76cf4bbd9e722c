//! The AML interpreter of `acpi` 7.0.0-pre1, on the stable compiler.
//!
//! It is the released crate, compiled from the sources that Cargo fetched and checked, as the module [`released`]: without its
//! feature `alloc`, whose containers need an unstable compiler and of which the interpreter uses nothing but one type's
//! name ([`platform::AcpiPlatform`]). `corrections/` says what is mended in it, and why; `build.rs` does it.
//! `acpi` 5.2.0 reads the tables in Lull; this crate only runs the code in them.
#![no_std]

extern crate alloc;

include!(concat!(env!("OUT_DIR"), "/module.rs"));

pub use released::sdt::{SdtHeader, Signature};
pub use released::*;

/// What the interpreter knows of the part that is not here.
pub mod platform {
    use crate::{AcpiTables, Handler, registers::FixedRegisters};
    use alloc::sync::Arc;

    /// All tables, and the registers that they describe. Never made: tables are loaded one by one.
    pub struct AcpiPlatform<H: Handler> {
        /// The PM1 registers.
        pub registers: Arc<FixedRegisters<H>>,
        /// The tables.
        pub tables: AcpiTables<H>,
        /// Who reads and writes.
        pub handler: H,
    }
}

use address::{AddressSpace, GenericAddress, MappedGas};
use alloc::sync::Arc;
use registers::{FixedRegisters, Pm1ControlRegisterBlock, Pm1EventRegisterBlock};

/// An interpreter with nothing loaded. `revision`: the DSDT's, below 2 integers have 32 bits.
///
/// The global lock is never contended: there is no FACS, so that PM1 is never written to.
///
/// # Errors
/// Never, in practice: registers at ports need no mapping.
pub fn interpreter<H: Handler>(handler: H, revision: u8) -> Result<aml::Interpreter<H>, AcpiError> {
    let nowhere = || {
        let address = GenericAddress {
            address_space: AddressSpace::SystemIo,
            bit_width: 16,
            bit_offset: 0,
            access_size: 0,
            address: 0,
        };
        // SAFETY: an address at a port is not mapped.
        unsafe { MappedGas::map_gas(address, handler.clone()) }
    };
    let registers = FixedRegisters {
        pm1_event_registers: Pm1EventRegisterBlock {
            pm1_event_length: 4,
            pm1a: nowhere()?,
            pm1b: None,
        },
        pm1_control_registers: Pm1ControlRegisterBlock {
            pm1a: nowhere()?,
            pm1b: None,
        },
    };
    let registers = Arc::new(registers);
    Ok(aml::Interpreter::new(handler, revision, registers, None))
}
