//! Virtual-processor identifiers: what keeps the translations of vCPUs apart in the TLBs (SDM vol. 3, 31.1).
//!
//! A vCPU has its own for life, on all CPUs. What a CPU still holds under it, from an earlier stay of the vCPU or from an earlier
//! owner of the number, is dropped when the vCPU comes to the CPU from another one.

use alloc::vec::Vec;

/// Hands out identifiers.
#[derive(Debug, Default)]
pub struct VpidPool {
    free: Vec<u16>,
    /// The largest one ever given out.
    most: u16,
}

/// The identifier of vCPUs that have none of their own: without the control, and all translations go at each entry and exit.
pub const NONE: u16 = 0;

impl VpidPool {
    /// One that no other vCPU has; [`NONE`] when all are taken.
    pub fn take(&mut self) -> u16 {
        self.free.pop().unwrap_or_else(|| {
            self.most
                .checked_add(1)
                .inspect(|&next| self.most = next)
                .unwrap_or(NONE)
        })
    }

    /// The vCPU is gone.
    pub fn give_back(&mut self, vpid: u16) {
        if vpid != NONE {
            self.free.push(vpid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_vcpus_have_the_same() {
        let mut pool = VpidPool::default();
        let taken: BTreeSet<u16> = (0..u16::MAX).map(|_| pool.take()).collect();
        assert_eq!(taken.len(), usize::from(u16::MAX));
        assert!(!taken.contains(&NONE));
        assert_eq!(pool.take(), NONE, "all are taken");
        pool.give_back(77);
        pool.give_back(NONE);
        assert_eq!((pool.take(), pool.take()), (77, NONE));
    }
}
