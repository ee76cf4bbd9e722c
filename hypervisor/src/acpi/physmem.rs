//! Physical memory as the table reader sees it: bytes that may or may not be there.

/// Something that holds physical memory.
pub trait PhysMem {
    /// Copies memory from `address` on into `into`. Returns `false`, with `into` in any state, if part of it is
    /// not readable.
    #[must_use]
    fn read(&self, address: u64, into: &mut [u8]) -> bool;

    /// Reads a fixed number of bytes.
    fn bytes<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.read(address, &mut bytes).then_some(bytes)
    }
}

/// The memory of this machine, through the identity map; tables outside usable memory are mapped on demand. What cannot
/// be mapped is not readable: each read recovers from its page fault.
#[cfg(target_os = "none")]
#[derive(Clone, Copy, Debug)]
pub struct IdentityMap;

#[cfg(target_os = "none")]
impl PhysMem for IdentityMap {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        if into.is_empty() {
            return true;
        }
        if crate::mm::map_firmware(address, into.len() as u64).is_err() {
            return false;
        }
        let mut at = address;
        for byte in into {
            let Ok(value) = crate::cpu::safe::peek(at) else {
                return false;
            };
            *byte = value;
            let Some(next) = at.checked_add(1) else {
                return false;
            };
            at = next;
        }
        true
    }
}

#[cfg(test)]
pub(crate) mod mock {
    use super::PhysMem;

    /// Memory from address `base` on.
    pub(crate) struct Image {
        pub(crate) base: u64,
        pub(crate) bytes: Vec<u8>,
    }

    impl PhysMem for Image {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            let Some(from) = address
                .checked_sub(self.base)
                .and_then(|o| usize::try_from(o).ok())
            else {
                return false;
            };
            match from
                .checked_add(into.len())
                .and_then(|to| self.bytes.get(from..to))
            {
                Some(bytes) => {
                    into.copy_from_slice(bytes);
                    true
                }
                None => false,
            }
        }
    }
}
