//! Seeded random numbers: xorshift64*.

/// A generator. The same seed gives the same sequence.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator with this seed; zero, which would give only zeros, stands for one.
    pub fn new(seed: u64) -> Self {
        Self(seed.max(1))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Evenly from `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + (self.bits() >> 16) % (high - low + 1)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.between(1, n) == 1
    }

    /// Exponentially distributed, at least 100.
    pub fn exponential(&mut self, mean: u64) -> u64 {
        let unit = ((self.bits() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        ((-unit.ln() * mean as f64) as u64).max(100)
    }
}
