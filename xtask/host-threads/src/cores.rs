//! Where the two threads run: on two cores if there are two, each on its own.

use std::{fs, thread};

use anyhow::{Context, Result};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

/// The CPUs of both threads, by the system's numbers.
pub struct Cores {
    /// Whose thread wakes the other's.
    pub sender: usize,
    /// Whose thread is woken.
    pub sleeper: usize,
    /// Both are threads of one core.
    pub siblings: bool,
}

impl Cores {
    /// Two of those that this process may use: of two cores, if there are any two.
    ///
    /// # Errors
    /// The system does not say, or allows none.
    pub fn choose() -> Result<Self> {
        let allowed =
            sched_getaffinity(Pid::from_raw(0)).context("the CPUs of this process are unknown")?;
        let mut usable =
            (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu).unwrap_or_default());
        let sender = usable.next().context("this process may use no CPU")?;
        let others: Vec<usize> = usable.collect();
        let far = others.iter().find(|&&cpu| !are_siblings(sender, cpu));
        Ok(match far.or(others.first()) {
            Some(&sleeper) => Self {
                sender,
                sleeper,
                siblings: far.is_none(),
            },
            None => Self {
                sender,
                sleeper: sender,
                siblings: false,
            },
        })
    }

    /// There is only one: who waits must let the other run.
    pub fn are_one(&self) -> bool {
        self.sender == self.sleeper
    }

    /// The calling thread is the sender.
    ///
    /// # Errors
    /// The system refuses.
    pub fn pin_sender(&self) -> Result<()> {
        pin(self.sender)
    }

    /// The calling thread is the sleeper.
    ///
    /// # Errors
    /// The system refuses.
    pub fn pin_sleeper(&self) -> Result<()> {
        pin(self.sleeper)
    }

    /// One step of a wait.
    #[inline]
    pub fn relax(&self) {
        if self.are_one() {
            thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }

    /// As people read it.
    pub fn describe(&self) -> String {
        let (sender, sleeper) = (self.sender, self.sleeper);
        if self.are_one() {
            format!("one CPU ({sender}): waits give way, and latencies have a switch in them")
        } else if self.siblings {
            format!("CPU {sender} to CPU {sleeper}, two threads of one core; waits spin")
        } else {
            format!("CPU {sender} to CPU {sleeper}, two cores; waits spin")
        }
    }
}

fn pin(cpu: usize) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu).context("no such CPU")?;
    sched_setaffinity(Pid::from_raw(0), &only)
        .with_context(|| format!("cannot run a thread on CPU {cpu} alone"))
}

/// Does the system say that both are threads of one core?
fn are_siblings(cpu: usize, other: usize) -> bool {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    fs::read_to_string(path).is_ok_and(|list| lists(list.trim(), other))
}

/// Is `cpu` in a list such as `0-3,8`?
fn lists(list: &str, cpu: usize) -> bool {
    list.split(',').any(|range| {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (low, high) = (low.parse::<usize>(), high.parse::<usize>());
        matches!((low, high), (Ok(low), Ok(high)) if (low..=high).contains(&cpu))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_system_are_ranges() {
        assert!(lists("0,4", 4) && lists("2-5,9", 3) && lists("7", 7));
        assert!(!lists("0,4", 1) && !lists("2-5,9", 6) && !lists("", 0));
    }

    #[test]
    fn both_threads_have_a_cpu_that_the_process_may_use() {
        let cores = Cores::choose().unwrap();
        let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
        assert!(allowed.is_set(cores.sender).unwrap());
        assert!(allowed.is_set(cores.sleeper).unwrap());
        assert!(!(cores.siblings && cores.are_one()));
    }
}
