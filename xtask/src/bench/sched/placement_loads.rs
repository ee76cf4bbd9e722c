//! What placement policies are compared on. Loads and seeds are fixed. The loads were chosen before the policy was, but looked at,
//! with other seeds, while its constants were; these seeds were not.

/// A load, the machine under it, and what is asked of the policy.
pub struct Workload {
    /// Its name in tables.
    pub name: &'static str,
    /// CPUs, sockets, threads of a core.
    pub topology: (u32, u32, u32),
    /// As `--load` takes it.
    pub load: &'static str,
}

/// Requests and ticks on a third of the machine, so that CPUs sleep as deep as C6 and as shallow as C1 at the same time.
pub const MIXED_DEPTH: Workload = Workload {
    name: "mixed-depth",
    topology: (32, 2, 2),
    load: "server*20,periodic*8",
};

/// Short work of many vCPUs that one or two cores could do.
pub const LIGHT: Workload = Workload {
    name: "light",
    topology: (16, 1, 2),
    load: "server*40,pingpong*8,periodic*8",
};

/// The seeds of each.
pub const SEEDS: [u64; 5] = [11, 12, 13, 14, 15];

/// Virtual time of each run, in ns.
pub const LENGTH: u64 = 2_000_000_000;
