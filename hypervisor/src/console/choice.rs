//! The `cstates_choice` record: which C-states a group of CPUs has, and why.

use lull_core::cstate::select::{Considered, Selected, Verdict};
use lull_core::units::CpuId;

use super::json::{self, Array, ByteSink};
use super::records::VERSION;

/// Writes the record of CPUs that chose alike.
pub fn write<S: ByteSink>(sink: &mut S, cpus: &[CpuId], choice: &Selected) {
    json::line(sink, |o| {
        o.u64("v", VERSION)
            .str("type", "cstates_choice")
            .array("cpus", |a| {
                for cpu in cpus {
                    a.u64(cpu.index() as u64);
                }
            })
            .array("states", |a| {
                for one in &choice.considered {
                    state(a, one);
                }
            })
            .array("notes", |a| {
                for note in &choice.notes {
                    a.str(note);
                }
            })
            .array("msr_writes", |a| {
                for write in &choice.msr_writes {
                    a.str(write);
                }
            });
    });
}

fn state<S: ByteSink>(all: &mut Array<'_, S>, one: &Considered) {
    let decided = match one.verdict {
        Verdict::Used(_) => "used",
        Verdict::Off(_) => "off",
        Verdict::Dropped(_) => "dropped",
    };
    all.object(|o| {
        o.str("name", one.state.name)
            .str("method", one.state.method)
            .u64("class", one.class.into())
            .u64("latency_us", one.state.exit_latency.get())
            .u64("residency_us", one.state.target_residency.get())
            .str("decided", decided)
            .str("why", one.verdict)
            .array("notes", |a| {
                for note in &one.notes {
                    a.str(note);
                }
            });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_core::cstate::select::{CpuFacts, Query, select};
    use lull_core::options::{CStateOptions, IdleMethod};

    #[test]
    fn each_state_says_what_was_decided() {
        let options = CStateOptions::default();
        let choice = select(&Query::new(CpuFacts::default(), IdleMethod::Auto, &options));
        let mut line = Vec::new();
        write(&mut line, &[CpuId::new(0), CpuId::new(2)], &choice);
        let line = String::from_utf8(line).unwrap();
        let start = "{\"v\":1,\"type\":\"cstates_choice\",\"cpus\":[0,2],\"states\":[{\"name\":\"POLL\",\"method\":\"POLL\",\
                     \"class\":0,\"latency_us\":0,\"residency_us\":0,\"decided\":\"used\",";
        assert!(line.starts_with(start), "{line}");
        assert!(
            line.contains("{\"name\":\"C1\",\"method\":\"MWAIT 0x00\",\"class\":1,\"latency_us\":2,\"residency_us\":2,\"decided\":\"dropped\""),
            "{line}"
        );
        assert!(line.ends_with("\"msr_writes\":[]}\n"), "{line}");
    }
}
