//! Sockets, cores and threads, and how long an interrupt takes between two of them.

/// Where the CPUs are. Threads of one core have consecutive numbers, and so have the cores of one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// CPUs in all.
    pub cpus: u32,
    /// Sockets, of equal size but for the last.
    pub sockets: u32,
    /// Threads of a core.
    pub threads: u32,
}

/// The longest time that an interrupt travels, in ns.
pub const SLOWEST_IPI: u64 = 1_200;

impl Topology {
    /// The core of a CPU.
    pub fn core(&self, cpu: u32) -> u32 {
        cpu / self.threads.max(1)
    }

    /// How many cores there are.
    pub fn cores(&self) -> u32 {
        self.cpus.div_ceil(self.threads.max(1))
    }

    /// The socket of a CPU.
    pub fn socket(&self, cpu: u32) -> u32 {
        let cores = self.cores().div_ceil(self.sockets.max(1)).max(1);
        self.core(cpu) / cores
    }

    /// How long an interrupt travels, in ns. One from outside comes from afar.
    pub fn ipi_latency(&self, from: u32, to: u32) -> u64 {
        if from >= self.cpus || self.socket(from) != self.socket(to) {
            SLOWEST_IPI
        } else if self.core(from) != self.core(to) {
            600
        } else {
            300
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_takes_longer_the_farther_it_goes() {
        let topology = Topology {
            cpus: 16,
            sockets: 2,
            threads: 2,
        };
        assert_eq!((topology.core(5), topology.cores()), (2, 8));
        assert_eq!((topology.socket(7), topology.socket(8)), (0, 1));
        let latencies = [1, 2, 8, u32::MAX].map(|from| topology.ipi_latency(from, 0));
        assert_eq!(latencies, [300, 600, SLOWEST_IPI, SLOWEST_IPI]);
    }
}
