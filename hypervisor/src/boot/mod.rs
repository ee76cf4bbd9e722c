//! Boot: from the loader's hands to a 64-bit Rust function with checked boot information.
//!
//! - `asm/pvh_entry.s`: 32-bit entry by the PVH note, to 64-bit mode with a first map of 4 GiB.
//! - [`pvh`]: reads `hvm_start_info`; [`memory_map`] puts the memory map in order; [`info`] is the result.
//! - `asm/ap_trampoline.s`, [`ap`]: how the other CPUs come in.
//!
//! Everything is copied out of the loader's memory before anything else may use that memory.

#[cfg(target_os = "none")]
pub mod ap;
pub mod info;
pub mod memory_map;
pub mod pvh;

pub use info::{BootError, BootInfo, BootProblem, MemoryKind, MemoryPart, Module};

#[cfg(target_os = "none")]
pub use self::entry::read_start_info;

#[cfg(target_os = "none")]
mod entry {
    #![expect(
        unsafe_code,
        reason = "the entry code calls in, and the loader's memory is raw"
    )]

    use super::{BootError, BootInfo, pvh};

    core::arch::global_asm!(include_str!("asm/pvh_entry.s"), options(att_syntax));

    /// Called by `lull_pvh_entry`, in 64-bit mode, with the first 4 GiB mapped.
    // SAFETY: the only symbol of this name in the image.
    #[unsafe(no_mangle)]
    extern "C" fn lull_boot_entry(start_info: u32) -> ! {
        crate::init::boot_cpu(u64::from(start_info))
    }

    /// The loader's memory: the first 4 GiB, which the entry code has mapped.
    struct LoaderMemory;

    impl pvh::Physical for LoaderMemory {
        fn bytes(&self, address: u64, len: usize) -> Option<&[u8]> {
            let end = address.checked_add(u64::try_from(len).ok()?)?;
            if address == 0 || end > 4 << 30 {
                return None;
            }
            // SAFETY: mapped by the entry code; nothing writes to the loader's structures while boot reads them
            // (one CPU, no device is started yet).
            Some(unsafe {
                core::slice::from_raw_parts(
                    core::ptr::with_exposed_provenance(address as usize),
                    len,
                )
            })
        }
    }

    /// Copies and checks what the loader told. Only before [`crate::mm::init`].
    ///
    /// # Errors
    /// It cannot be used to boot with.
    pub fn read_start_info(address: u64) -> Result<BootInfo, BootError> {
        pvh::parse(&LoaderMemory, address)
    }
}
