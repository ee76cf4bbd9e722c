//! What wakes cost on simulated machines of the sizes that are given: a line for each size, way to sleep and operation.
//!
//! The columns: CPUs, how they sleep, what is done; the sender's loads, stores and read-modify-writes; all CPUs' accesses; posts that
//! an interrupt was sent for, and those whose store woke a CPU.

use std::process::ExitCode;

use lull_sim::machine::growth;
use lull_sim::machine::states::Entry;

fn main() -> ExitCode {
    for size in std::env::args().skip(1) {
        for entry in [Entry::Mwait, Entry::Halt] {
            let measured = match size.parse() {
                Ok(cpus) => growth::measure(cpus, entry),
                Err(why) => Err(format!("`{size}` CPUs: {why}")),
            };
            let costs = match measured {
                Ok(costs) => costs,
                Err(why) => {
                    eprintln!("{why}");
                    return ExitCode::FAILURE;
                }
            };
            for cost in costs {
                let sender = cost.sender;
                println!(
                    "{size} {} {} {} {} {} {} {} {}",
                    entry.name(),
                    cost.operation.name(),
                    sender.loads,
                    sender.stores,
                    sender.updates,
                    cost.machine.all(),
                    cost.ipis,
                    cost.stores
                );
            }
        }
    }
    ExitCode::SUCCESS
}
