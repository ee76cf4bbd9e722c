//! Reading guest-physical memory that someone else wrote: start info, memory map, ACPI tables.

/// Guest-physical memory, as far as it may be read.
pub trait Memory {
    /// Fills `to` from the address `from`; false if any byte of it cannot be read.
    fn read(&self, from: u64, to: &mut [u8]) -> bool;

    /// A little-endian `u32`.
    fn u32(&self, from: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.read(from, &mut bytes)
            .then(|| u32::from_le_bytes(bytes))
    }

    /// A little-endian `u64`.
    fn u64(&self, from: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(from, &mut bytes)
            .then(|| u64::from_le_bytes(bytes))
    }

    /// One byte.
    fn u8(&self, from: u64) -> Option<u8> {
        let mut bytes = [0; 1];
        self.read(from, &mut bytes)
            .then(|| u8::from_le_bytes(bytes))
    }
}

/// A small memory for tests: pieces at addresses.
#[cfg(test)]
pub(crate) mod fake {
    use super::Memory;
    use std::vec::Vec;

    /// Bytes at addresses; everything else cannot be read.
    #[derive(Default)]
    pub(crate) struct Pieces(pub(crate) Vec<(u64, Vec<u8>)>);

    impl Memory for Pieces {
        fn read(&self, from: u64, to: &mut [u8]) -> bool {
            self.0.iter().any(|(at, bytes)| {
                let Some(offset) = from
                    .checked_sub(*at)
                    .and_then(|offset| usize::try_from(offset).ok())
                else {
                    return false;
                };
                let Some(part) = offset
                    .checked_add(to.len())
                    .and_then(|end| bytes.get(offset..end))
                else {
                    return false;
                };
                to.copy_from_slice(part);
                true
            })
        }
    }
}
