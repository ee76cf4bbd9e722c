//! One virtual machine control structure: the region, and its fields while it is the current one of a CPU.
//!
//! Invariant: a VMCS is active on at most one CPU. It becomes so by [`Vmcs::make_current`], and stops being so by
//! [`Vmcs::clear`] on that same CPU, which writes everything back to memory: what is not cleared before a move would be lost, or
//! worse, written back later over what another CPU has done (SDM vol. 3, 27.11.1).

use alloc::boxed::Box;
use core::cell::Cell;

use super::field::Field;
use crate::virt::page::{Pages, zeroed};

/// A VMCS.
pub struct Vmcs {
    #[cfg_attr(
        not(target_os = "none"),
        expect(dead_code, reason = "read by the processor only")
    )]
    region: Box<Pages<4096>>,
    /// It is the current VMCS of the CPU that runs this: set and cleared together with the processor's own idea of it.
    current: Cell<bool>,
    #[cfg(not(target_os = "none"))]
    fields: core::cell::RefCell<alloc::collections::BTreeMap<Field, u64>>,
}

impl Vmcs {
    /// A region for processors of this revision. It is not active anywhere.
    pub fn new(revision: u32) -> Self {
        let mut region = zeroed::<Pages<4096>>();
        for (to, from) in region.0.iter_mut().zip(revision.to_le_bytes()) {
            *to = from;
        }
        Self {
            region,
            current: Cell::new(false),
            #[cfg(not(target_os = "none"))]
            fields: core::cell::RefCell::default(),
        }
    }

    /// Physical address.
    #[cfg(target_os = "none")]
    pub fn address(&self) -> u64 {
        crate::virt::page::physical(&*self.region)
    }

    /// Whether fields can be read and written.
    pub fn is_current(&self) -> bool {
        self.current.get()
    }
}

#[cfg(target_os = "none")]
mod hardware {
    #![expect(unsafe_code, reason = "VMX instructions")]

    use core::arch::asm;

    use super::{Field, Vmcs};

    impl Vmcs {
        /// Writes everything back; the VMCS is active nowhere and must be launched again.
        pub fn clear(&self) {
            let address = self.address();
            let failed: u8;
            // SAFETY: VMX is on on every CPU that gets here (`HostCpu` exists); the region belongs to this VMCS.
            unsafe {
                asm!("vmclear [{a}]", "setna {f}", a = in(reg) &raw const address, f = out(reg_byte) failed, options(nostack));
            }
            self.current.set(false);
            assert!(failed == 0, "VMCLEAR of {address:#x} failed");
        }

        /// Makes it the current one of this CPU.
        pub fn make_current(&self) {
            let address = self.address();
            let failed: u8;
            // SAFETY: as in `clear`; it was cleared on the CPU that had it before.
            unsafe {
                asm!("vmptrld [{a}]", "setna {f}", a = in(reg) &raw const address, f = out(reg_byte) failed, options(nostack));
            }
            assert!(failed == 0, "VMPTRLD of {address:#x} failed");
            self.current.set(true);
        }

        /// A field of the current VMCS.
        #[inline]
        pub fn read(&self, field: Field) -> u64 {
            debug_assert!(self.is_current(), "{field:?} of a VMCS that is not current");
            let (value, failed): (u64, u8);
            // SAFETY: reads the current VMCS only.
            unsafe {
                asm!("vmread {v}, {e}", "setna {f}", v = out(reg) value, e = in(reg) u64::from(field.encoding()),
                    f = out(reg_byte) failed, options(nostack, nomem));
            }
            assert!(failed == 0, "VMREAD of {field:?} failed");
            value
        }

        /// Sets a field of the current VMCS.
        #[inline]
        pub fn write(&self, field: Field, value: u64) {
            debug_assert!(self.is_current(), "{field:?} of a VMCS that is not current");
            let failed: u8;
            // SAFETY: writes to the current VMCS, which is this one. What a field makes the processor do is checked by VM entry, or
            // upheld by `VmxVcpu`, the only writer: addresses that it writes are of structures that it keeps alive.
            unsafe {
                asm!("vmwrite {e}, {v}", "setna {f}", v = in(reg) value, e = in(reg) u64::from(field.encoding()),
                    f = out(reg_byte) failed, options(nostack));
            }
            assert!(failed == 0, "VMWRITE of {field:?} failed");
        }
    }
}

/// On the host on which tests run: fields in a map.
#[cfg(not(target_os = "none"))]
mod mock {
    use super::{Field, Vmcs};

    impl Vmcs {
        /// Not active any more.
        pub fn clear(&self) {
            self.current.set(false);
        }

        /// Fields can be used.
        pub fn make_current(&self) {
            self.current.set(true);
        }

        /// A field; 0 if it was never written.
        pub fn read(&self, field: Field) -> u64 {
            assert!(self.is_current(), "{field:?} of a VMCS that is not current");
            self.fields.borrow().get(&field).copied().unwrap_or(0)
        }

        /// Sets a field.
        pub fn write(&self, field: Field, value: u64) {
            assert!(self.is_current(), "{field:?} of a VMCS that is not current");
            self.fields.borrow_mut().insert(field, value);
        }
    }
}
