//! Receive ring: bytes from the interrupt handler to whoever reads the console.
//!
//! One producer (the handler of the CPU to which the UART's interrupt is routed), any number of consumers.
//! No locks: the handler may interrupt a consumer at any instruction.
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

const SIZE: usize = 256;

/// A ring of 256 bytes. A byte that finds it full is dropped and counted.
#[derive(Debug)]
pub struct RxRing {
    bytes: [AtomicU8; SIZE],
    /// Bytes ever put; written by the producer only.
    put: AtomicUsize,
    /// Bytes ever taken; consumers advance it by compare-and-swap.
    taken: AtomicUsize,
    dropped: AtomicUsize,
}

impl RxRing {
    /// An empty ring.
    pub const fn new() -> Self {
        Self {
            bytes: [const { AtomicU8::new(0) }; SIZE],
            put: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            dropped: AtomicUsize::new(0),
        }
    }

    /// Appends a byte; returns `false`, and counts, if the ring is full. Called by the one producer only.
    pub fn push(&self, byte: u8) -> bool {
        let put = self.put.load(Ordering::Relaxed);
        if put.wrapping_sub(self.taken.load(Ordering::Acquire)) >= SIZE {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        if let Some(slot) = self.bytes.get(put % SIZE) {
            slot.store(byte, Ordering::Relaxed);
        }
        self.put.store(put.wrapping_add(1), Ordering::Release);
        true
    }

    /// Takes the oldest byte.
    pub fn pop(&self) -> Option<u8> {
        let mut taken = self.taken.load(Ordering::Relaxed);
        loop {
            if taken == self.put.load(Ordering::Acquire) {
                return None;
            }
            // The slot may be overwritten only after `taken` has moved on, and then the exchange fails.
            let byte = self.bytes.get(taken % SIZE)?.load(Ordering::Relaxed);
            match self.taken.compare_exchange_weak(
                taken,
                taken.wrapping_add(1),
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(byte),
                Err(now) => taken = now,
            }
        }
    }

    /// How many bytes were dropped because the ring was full.
    pub fn dropped(&self) -> usize {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Default for RxRing {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_over_many_wraps() {
        let ring = RxRing::new();
        for round in 0..1000u32 {
            for i in 0..7u32 {
                assert!(ring.push((round * 7 + i) as u8));
            }
            for i in 0..7u32 {
                assert_eq!(ring.pop(), Some((round * 7 + i) as u8));
            }
        }
        assert_eq!(ring.pop(), None);
    }

    #[test]
    fn full_ring_drops_the_newest_and_counts() {
        let ring = RxRing::new();
        for i in 0..SIZE {
            assert!(ring.push(i as u8));
        }
        assert!(!ring.push(1));
        assert_eq!(ring.dropped(), 1);
        assert_eq!(ring.pop(), Some(0));
        assert!(ring.push(2));
    }

    #[test]
    fn two_consumers_lose_and_double_nothing() {
        static RING: RxRing = RxRing::new();
        const N: usize = 20_000;
        let consumers: Vec<_> = (0..2)
            .map(|_| {
                std::thread::spawn(|| {
                    let mut sum = (0usize, 0usize);
                    loop {
                        match RING.pop() {
                            Some(0xFF) => return sum,
                            Some(b) => sum = (sum.0 + 1, sum.1 + usize::from(b)),
                            None => std::thread::yield_now(),
                        }
                    }
                })
            })
            .collect();
        let mut total = 0;
        for i in 0..N {
            let b = (i % 251) as u8;
            total += usize::from(b);
            while !RING.push(b) {
                std::thread::yield_now();
            }
        }
        for _ in 0..2 {
            while !RING.push(0xFF) {
                std::thread::yield_now();
            }
        }
        let got: Vec<_> = consumers.into_iter().map(|c| c.join().unwrap()).collect();
        assert_eq!(got.iter().map(|g| g.0).sum::<usize>(), N);
        assert_eq!(got.iter().map(|g| g.1).sum::<usize>(), total);
    }
}
