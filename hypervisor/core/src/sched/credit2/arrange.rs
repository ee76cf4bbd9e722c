//! Which CPU joins which runqueue.

use super::Credit2;
use super::rules::Arrangement;
use super::slot::QueueId;
use crate::sched::topology::Topology;
use crate::units::{CpuId, CpuSet};

/// The runqueue for a CPU, given which CPUs each has already.
///
/// A thread joins its sibling's. Else, of those whose CPUs are near enough by the arrangement and that are not full, the
/// one with the fewest joins. Full is: an equal part of the machine's CPUs, in as many parts as the limit makes
/// necessary; and a core is not torn apart. If there is none, an empty one is begun.
pub(super) fn arrange(
    topology: &Topology,
    arrangement: Arrangement,
    max_cpus: usize,
    queues: &[CpuSet],
    cpu: CpuId,
) -> Option<QueueId> {
    let siblings = topology.siblings(cpu);
    let place = topology.place(cpu);
    let near = |peer: CpuId| {
        let peer = topology.place(peer);
        match arrangement {
            Arrangement::All => true,
            Arrangement::Node => peer.node == place.node,
            Arrangement::Socket => peer.socket == place.socket,
            Arrangement::Core => peer.core == place.core,
            Arrangement::Cpu => false,
        }
    };
    let used = || {
        queues
            .iter()
            .enumerate()
            .filter(|(_, cpus)| !cpus.is_empty())
            .map(|(index, cpus)| (QueueId::new(index), cpus))
    };
    let whole_cores = !matches!(arrangement, Arrangement::Cpu | Arrangement::All);
    if whole_cores
        && let Some((id, _)) = used().find(|(_, cpus)| !cpus.intersection(&siblings).is_empty())
    {
        return Some(id);
    }
    let cpus = topology.cpus().max(1);
    let full = (cpus / ((cpus - 1) / max_cpus + 1)).max(1);
    let core = if whole_cores { siblings.len() } else { 1 };
    let fits = |joined: usize| {
        joined < full && (joined + core <= max_cpus || arrangement == Arrangement::All)
    };
    used()
        .filter(|(_, cpus)| cpus.lowest().is_some_and(near) && fits(cpus.len()))
        .min_by_key(|(_, cpus)| cpus.len())
        .map(|(id, _)| id)
        .or_else(|| queues.iter().position(CpuSet::is_empty).map(QueueId::new))
}

impl Credit2 {
    pub(super) fn arrange(&self, cpu: CpuId) -> Option<QueueId> {
        let queues: alloc::vec::Vec<CpuSet> = self.queues.iter().map(|rq| rq.cpus.load()).collect();
        arrange(
            &self.topology,
            self.rules.arrangement,
            self.rules.max_cpus,
            &queues,
            cpu,
        )
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// The runqueues of a machine whose CPUs come up in order.
    fn arranged(topology: &Topology, arrangement: Arrangement, max_cpus: usize) -> Vec<CpuSet> {
        let mut queues = std::vec![CpuSet::EMPTY; topology.cpus()];
        for cpu in (0..topology.cpus()).map(|cpu| CpuId::new(cpu as u32)) {
            let id = arrange(topology, arrangement, max_cpus, &queues, cpu).unwrap();
            queues[id.index()].insert(cpu);
        }
        queues.retain(|cpus| !cpus.is_empty());
        queues
    }

    fn sizes(topology: &Topology, arrangement: Arrangement, max_cpus: usize) -> Vec<usize> {
        let queues = arranged(topology, arrangement, max_cpus);
        queues.iter().map(CpuSet::len).collect()
    }

    #[test]
    fn runqueues_follow_the_topology() {
        let machine = Topology::regular(2, 2, 2);
        assert_eq!(sizes(&machine, Arrangement::Socket, 16), [4, 4]);
        assert_eq!(sizes(&machine, Arrangement::Node, 16), [4, 4]);
        assert_eq!(sizes(&machine, Arrangement::Core, 16), [2, 2, 2, 2]);
        assert_eq!(sizes(&machine, Arrangement::Cpu, 16), [1; 8]);
        assert_eq!(sizes(&machine, Arrangement::All, 16), [8], "across sockets");
    }

    #[test]
    fn a_runqueue_that_would_be_too_large_is_cut_into_equal_ones() {
        let machine = Topology::regular(1, 24, 1);
        assert_eq!(sizes(&machine, Arrangement::Socket, 16), [12, 12]);
        let threaded = Topology::regular(1, 12, 2);
        for cpus in arranged(&threaded, Arrangement::Socket, 16) {
            for cpu in cpus.iter() {
                assert!(
                    threaded.siblings(cpu).is_subset(&cpus),
                    "{cpus} tears a core"
                );
            }
        }
    }
}
