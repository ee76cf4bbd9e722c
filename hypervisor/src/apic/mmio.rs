//! Device registers in memory: volatile, bounds-checked, mapped uncached.
#![expect(unsafe_code, reason = "device registers are raw memory")]

/// A window of device registers.
#[derive(Clone, Copy, Debug)]
pub struct Mmio {
    base: usize,
    len: usize,
}

impl Mmio {
    /// Maps `len` bytes of device registers at `physical`, uncached, for the rest of the machine's life.
    ///
    /// # Errors
    /// Says why the memory manager refuses the range.
    #[cfg(target_os = "none")]
    pub fn map(physical: u64, len: usize) -> Result<Self, alloc::string::String> {
        let base =
            crate::mm::map_device(physical, len as u64).map_err(|why| alloc::format!("{why}"))?;
        Ok(Self {
            base: base as usize,
            len,
        })
    }

    /// Memory that plays the device in a test, which must outlive the window.
    #[cfg(test)]
    pub(crate) fn over(memory: &mut [u32]) -> Self {
        Self {
            base: memory.as_mut_ptr() as usize,
            len: size_of_val(memory),
        }
    }

    /// Reads the aligned 32-bit register at `offset`.
    ///
    /// # Panics
    /// If the register is outside the window: offsets are constants of the drivers.
    pub fn read32(&self, offset: usize) -> u32 {
        let address = self.register(offset, 4) as *const u32;
        // SAFETY: `map` mapped the window, `register` checked that the aligned access is inside it.
        unsafe { address.read_volatile() }
    }

    /// Writes the aligned 32-bit register at `offset`.
    ///
    /// # Panics
    /// As for [`read32`](Self::read32).
    pub fn write32(&self, offset: usize, value: u32) {
        let address = self.register(offset, 4) as *mut u32;
        // SAFETY: as in `read32`; the devices mapped here (local APIC, IOAPIC, HPET) do not write to memory.
        unsafe { address.write_volatile(value) }
    }

    fn register(&self, offset: usize, size: usize) -> usize {
        assert!(
            offset.is_multiple_of(size) && offset + size <= self.len,
            "register {offset:#x} outside its window"
        );
        self.base + offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_where_they_should_be() {
        let mut memory = [1u32, 2, 3, 4];
        let window = Mmio::over(&mut memory);
        assert_eq!(window.read32(8), 3);
        assert!(std::panic::catch_unwind(|| window.read32(16)).is_err());
        assert!(std::panic::catch_unwind(|| window.read32(2)).is_err());
    }
}
