//! The wake protocol, the cross-CPU calls and the vCPUs' kicks, model-checked on a machine of their own.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p lull-core --release --test loom_model -- OPTIONS`, or `cargo xtask model`.
//!
//! What is checked is the code of `lull_core::wake`, `call` and `sched::unit` itself, by loom and by an explorer of all states
//! ([`model::explore`]). The machine beside it
//! ([`model::machine`]) adds **no memory ordering of its own**: interrupt lines are relaxed read-modify-writes, and the monitor is a
//! relaxed load. MWAIT, HLT and the guest end the run of a CPU that nothing has woken yet; once all have ended, a CPU that
//! sleeps on an event with nothing on its way is a lost wakeup. NMIs come at every access and every step of the machine, one after
//! the other; a sleep may end for nothing.
//!
//! A model that no mistake can break proves nothing: with `--mutants`, each of a list of mistakes is switched on, and has to be
//! caught by the property that it breaks, not by a limit of the model checker.

#[cfg(loom)]
#[path = "model/mod.rs"]
mod model;

#[cfg(loom)]
fn main() -> std::process::ExitCode {
    model::main()
}

#[cfg(not(loom))]
fn main() {}
