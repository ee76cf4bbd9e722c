//! Boot: from the loader's hands to a 64-bit Rust function with checked boot information.
//!
//! - `asm/entry.s`: 32-bit entries by the PVH note and the Multiboot2 header, to 64-bit mode with a first map of 4 GiB.
//! - [`pvh`] reads `hvm_start_info`, [`multiboot2`] the Multiboot2 boot information, both with the checks in [`loader`];
//!   [`memory_map`] puts the memory map in order; [`info`] is the result, the same for both.
//! - `asm/ap_trampoline.s`, [`ap`]: how the other CPUs come in.
//!
//! Everything is copied out of the loader's memory before anything else may use that memory.

#[cfg(target_os = "none")]
pub mod ap;
pub mod info;
pub mod loader;
pub mod memory_map;
pub mod multiboot2;
pub mod pvh;

pub use info::{BootError, BootInfo, BootProblem, MemoryKind, MemoryPart, Module};

#[cfg(target_os = "none")]
pub use self::entry::{LoaderData, read};

#[cfg(target_os = "none")]
mod entry {
    #![expect(
        unsafe_code,
        reason = "the entry code calls in, and the loader's memory is raw"
    )]

    use spin::Once;

    use super::{BootError, BootInfo, loader, multiboot2, pvh};

    core::arch::global_asm!(include_str!("asm/entry.s"), options(att_syntax));

    /// Where the loader's information is, and in which form.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum LoaderData {
        /// `hvm_start_info` at this physical address.
        Pvh(u64),
        /// Multiboot2 boot information.
        Multiboot2 {
            /// What the loader left in EAX.
            magic: u32,
            /// Physical address.
            address: u64,
        },
    }

    /// Called by the entry code, in 64-bit mode, with the first 4 GiB mapped. `protocol`: 0 = PVH, else EAX of the
    /// Multiboot2 entry.
    // SAFETY: the only symbol of this name in the image.
    #[unsafe(no_mangle)]
    extern "C" fn lull_boot_entry(protocol: u32, address: u32) -> ! {
        let address = u64::from(address);
        crate::init::boot_cpu(match protocol {
            0 => LoaderData::Pvh(address),
            magic => LoaderData::Multiboot2 { magic, address },
        })
    }

    /// The loader's memory: the first 4 GiB, which the entry code has mapped.
    struct LoaderMemory;

    impl loader::Physical for LoaderMemory {
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

    /// The RSDP that a Multiboot2 loader copied: what it points at stays where it is, the copy would not.
    static RSDP: Once<multiboot2::Rsdp> = Once::new();

    /// Copies and checks what the loader told. Only before [`crate::mm::init`].
    ///
    /// # Errors
    /// It cannot be used to boot with.
    pub fn read(data: LoaderData) -> Result<BootInfo, BootError> {
        match data {
            LoaderData::Pvh(address) => pvh::parse(&LoaderMemory, address),
            LoaderData::Multiboot2 { magic, address } => {
                let (mut boot, rsdp) = multiboot2::parse(&LoaderMemory, magic, address)?;
                boot.rsdp = rsdp.map(|rsdp| {
                    let kept = RSDP.call_once(|| rsdp);
                    core::ptr::from_ref(kept).expose_provenance() as u64
                });
                Ok(boot)
            }
        }
    }
}
