//! Stacks: each above a page that is never mapped, so that an overflow faults and damages nobody.

/// One stack. It grows down from `top` to `bottom`; the page below `bottom` is the guard page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack {
    bottom: u64,
    size: u64,
}

/// Size of the guard page in bytes.
pub const GUARD: u64 = 4096;

impl Stack {
    /// The stack of `size` bytes that begins at `bottom`; the page below is its guard page.
    #[must_use]
    pub const fn new(bottom: u64, size: u64) -> Self {
        Self { bottom, size }
    }

    /// The first address above it: where the stack pointer starts.
    #[must_use]
    pub const fn top(&self) -> u64 {
        self.bottom + self.size
    }

    /// The lowest usable address.
    #[must_use]
    pub const fn bottom(&self) -> u64 {
        self.bottom
    }

    /// First address of the guard page.
    #[must_use]
    pub const fn guard(&self) -> u64 {
        self.bottom - GUARD
    }

    /// Is `address` in the usable part?
    #[must_use]
    pub const fn contains(&self, address: u64) -> bool {
        self.bottom <= address && address < self.top()
    }

    /// Is `address` in the guard page: has the stack overflowed?
    #[must_use]
    pub const fn guards(&self, address: u64) -> bool {
        self.guard() <= address && address < self.bottom
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guard_page_is_below_and_not_inside() {
        let stack = Stack::new(0x5000, 0x4000);
        assert_eq!(
            (stack.guard(), stack.bottom(), stack.top()),
            (0x4000, 0x5000, 0x9000)
        );
        assert!(stack.contains(0x5000) && stack.contains(0x8fff));
        assert!(!stack.contains(0x9000) && !stack.contains(0x4fff));
        assert!(
            stack.guards(0x4fff)
                && stack.guards(0x4000)
                && !stack.guards(0x3fff)
                && !stack.guards(0x5000)
        );
    }
}
