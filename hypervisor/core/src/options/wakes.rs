//! The options about wakes and interrupts between CPUs.

/// What orders a CPU's stores before an interrupt that it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum IpiFence {
    /// What the CPU needs.
    #[default]
    Auto,
    /// Nothing, to compare.
    None,
    /// Fences always, to compare.
    Full,
}

/// What is done instead of waiting for guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WakeTest {
    /// Calls and wakes are measured.
    Bench,
    /// Each state's latency, from a timer on.
    Latency,
    /// What a machine that is woken now and then spends outside of idle.
    MostlyIdle,
    /// One wake, one call and one broadcast are measured, for machines of many sizes.
    Growth,
    /// Calls and wakes at random, under a watchdog.
    Soak,
}

/// How CPUs wake each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WakeOptions {
    /// `wake.ipiless=`: a store alone wakes a CPU that watches its wake word.
    pub ipiless: bool,
    /// `wake.notify=`: a wake that changed no runqueue costs no scheduling pass.
    pub notify: bool,
    /// `ipi.fence=`: what orders stores before an IPI.
    pub fence: IpiFence,
    /// `test.wakes=`: measure or exercise them.
    pub test: Option<WakeTest>,
    /// `test.rounds=`: how often each thing is measured; `None`: as often as the figures need.
    pub rounds: Option<u64>,
    /// `test.seed=`: where what is random begins.
    pub seed: u64,
}

impl Default for WakeOptions {
    fn default() -> Self {
        Self {
            ipiless: true,
            notify: true,
            fence: IpiFence::Auto,
            test: None,
            rounds: None,
            seed: 1,
        }
    }
}
