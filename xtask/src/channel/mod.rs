//! The machine channel: one JSON object a line, written by the image to port 0xE9.
//!
//! Fields that we do not know are ignored and fields that are missing are zero or empty, so that image and
//! xtask need not be of the same day; another *version* is refused, since it may mean something else.

mod messages;
mod tail;

pub use messages::{
    AcpiCst, Boot, Clocks, CommandAnswer, Counters, CpuCounters, CstEntry, Cstates, End, Figure,
    GuestEvent, IdlePeriod, IdleTrace, Message, Problem, State, Timers,
};
pub use tail::Tail;

use serde::Deserialize;

/// The version that this xtask reads.
const VERSION: u64 = 1;

/// Everything that a run has said.
#[derive(Debug, Default)]
pub struct Channel {
    /// In the order of their lines.
    pub messages: Vec<Message>,
    /// Lines that are no message: what is wrong with each.
    pub faults: Vec<String>,
    /// The text of the last lines, for a report of what went wrong.
    pub last_lines: Vec<String>,
}

impl Channel {
    /// Reads a whole text.
    #[cfg(test)]
    pub fn of_text(text: &str) -> Self {
        let mut channel = Self::default();
        text.lines().for_each(|line| channel.add(line));
        channel
    }

    /// Takes one more line.
    pub fn add(&mut self, line: &str) {
        if line.trim().is_empty() {
            return;
        }
        self.last_lines.push(line.to_owned());
        if self.last_lines.len() > 5 {
            self.last_lines.remove(0);
        }
        match parse(line) {
            Ok(message) => self.messages.push(message),
            Err(why) => self.faults.push(format!("{why}: {line}")),
        }
    }

    /// What was found at boot.
    pub fn boot(&self) -> Option<&Boot> {
        self.messages.iter().find_map(|message| {
            if let Message::Boot(boot) = message {
                Some(boot)
            } else {
                None
            }
        })
    }

    /// What the firmware said about C-states.
    pub fn acpi_cst(&self) -> Option<&AcpiCst> {
        self.messages.iter().find_map(|message| {
            if let Message::AcpiCst(cst) = message {
                Some(cst)
            } else {
                None
            }
        })
    }

    /// How it ended.
    pub fn end(&self) -> Option<&End> {
        self.messages.iter().find_map(|message| {
            if let Message::End(end) = message {
                Some(end)
            } else {
                None
            }
        })
    }

    /// Every reading of the C-state counters.
    pub fn cstates(&self) -> impl DoubleEndedIterator<Item = &Cstates> {
        self.messages.iter().filter_map(|message| {
            if let Message::Cstates(c) = message {
                Some(c)
            } else {
                None
            }
        })
    }

    /// Every start and end of a guest.
    pub fn guests(&self) -> impl DoubleEndedIterator<Item = &GuestEvent> {
        self.messages.iter().filter_map(|message| {
            if let Message::Guest(guest) = message {
                Some(guest)
            } else {
                None
            }
        })
    }

    /// Every part of a recording of idle periods.
    pub fn idle_traces(&self) -> impl Iterator<Item = &IdleTrace> {
        self.messages.iter().filter_map(|message| {
            if let Message::IdleTrace(part) = message {
                Some(part)
            } else {
                None
            }
        })
    }

    /// Every figure that a guest reported.
    pub fn figures(&self) -> impl Iterator<Item = &Figure> {
        self.messages.iter().filter_map(|message| {
            if let Message::Figure(f) = message {
                Some(f)
            } else {
                None
            }
        })
    }

    /// Every command, with its answer.
    pub fn commands(&self) -> impl DoubleEndedIterator<Item = &CommandAnswer> {
        self.messages.iter().filter_map(|message| {
            if let Message::Command(c) = message {
                Some(c)
            } else {
                None
            }
        })
    }

    /// What became of the timers of `test.timers=`.
    pub fn timers(&self) -> Option<&Timers> {
        self.messages.iter().find_map(|message| {
            if let Message::Timers(timers) = message {
                Some(timers)
            } else {
                None
            }
        })
    }

    /// The length of the run by two clocks.
    pub fn clocks(&self) -> Option<&Clocks> {
        self.messages.iter().find_map(|message| {
            if let Message::Clocks(clocks) = message {
                Some(clocks)
            } else {
                None
            }
        })
    }

    /// Every complaint about bad input.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.messages.iter().filter_map(|message| {
            if let Message::Problem(p) = message {
                Some(p)
            } else {
                None
            }
        })
    }
}

/// Reads one line.
fn parse(line: &str) -> Result<Message, String> {
    #[derive(Deserialize)]
    struct Head {
        v: u64,
    }
    let head: Head = serde_json::from_str(line).map_err(|why| format!("not a message ({why})"))?;
    if head.v != VERSION {
        return Err(format!(
            "a message of version {}, this xtask reads version {VERSION}",
            head.v
        ));
    }
    serde_json::from_str(line).map_err(|why| format!("not a message of version {VERSION} ({why})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read() {
        let channel = Channel::of_text(concat!(
            r#"{"v":1,"type":"boot","cpus":4,"cpus_failed":[2],"tsc_hz":1000000000,"virt":null,"virt_why":"no SVM","arat":true}"#,
            "\n",
            r#"{"v":1,"type":"cstates","seq":1,"reason":"end","now":9,"cpus":[{"cpu":0,"elapsed":10,"c0":4,"guest":3,"hypervisor":1,"sched_passes":2,"wakes":{"timer":5,"ipi":1},"states":[{"name":"C1","method":"HLT","usage":3,"residency":5,"irq":1}],"delta":{"elapsed":1,"c0":1,"states":[]}}]}"#,
            "\n\n",
            r#"{"v":1,"type":"guest","id":1,"name":"busy","event":"end","vcpus":1,"verdict":"pass","how":"port","code":16,"run_ticks":[7]}"#,
            "\n",
            r#"{"v":1,"type":"figure","guest":1,"name":"ipi","value":12.5,"unit":"us"}"#,
            "\n",
            r#"{"v":1,"type":"problem","where":"cmdline","name":"idle=x","why":"unknown","expected":"auto, hlt, mwait or poll"}"#,
            "\n",
            r#"{"v":1,"type":"end","status":"ok","code":16}"#,
            "\n",
        ));
        assert!(channel.faults.is_empty(), "{:?}", channel.faults);
        let boot = channel.boot().unwrap();
        assert_eq!(
            (boot.cpus, boot.cpus_failed.as_slice(), boot.virt.as_deref()),
            (4, &[2][..], None)
        );
        let cpu = &channel.cstates().next().unwrap().cpus[0];
        assert_eq!(
            (
                cpu.counters.elapsed,
                cpu.counters.states[0].irq,
                cpu.counters.wakes_total()
            ),
            (10, 1, 6)
        );
        assert_eq!(cpu.delta.as_ref().unwrap().c0, 1);
        assert_eq!(channel.guests().next().unwrap().run_ticks, [7]);
        assert_eq!(channel.figures().next().unwrap().number(), Some(12.5));
        assert_eq!(channel.problems().next().unwrap().place, "cmdline");
        assert_eq!(channel.end().unwrap().status, "ok");
    }

    #[test]
    fn what_the_firmware_says_about_c_states_is_read() {
        let channel = Channel::of_text(
            r#"{"v":1,"type":"acpi_cst","state":"found","runs":1,"offered":26,"groups":[{"first":"\\_PR_.CPU0","processors":[0,1],"pdc":true,"entries":[{"c":2,"method":"io","port":6164,"latency_us":90}],"faults":[]}]}"#,
        );
        assert!(channel.faults.is_empty(), "{:?}", channel.faults);
        let group = &channel.acpi_cst().unwrap().groups[0];
        assert_eq!(
            (group.first.as_str(), group.osc, group.pdc),
            ("\\_PR_.CPU0", None, true)
        );
        assert_eq!(group.entries[0].port, Some(0x1814));
    }

    #[test]
    fn what_is_not_known_is_ignored() {
        let channel = Channel::of_text(concat!(
            r#"{"v":1,"type":"weather","sun":true}"#,
            "\n",
            r#"{"v":1,"type":"end","status":"ok","code":16,"more":{"a":[1]}}"#,
        ));
        assert!(channel.faults.is_empty(), "{:?}", channel.faults);
        assert_eq!(channel.messages[0], Message::Unknown);
        assert_eq!(channel.end().unwrap().code, 16);
    }

    #[test]
    fn another_version_and_broken_lines_are_faults() {
        let channel = Channel::of_text(
            "{\"v\":2,\"type\":\"end\",\"status\":\"ok\"}\n{\"v\":1,\"type\":\"en\nhello\n",
        );
        assert!(channel.messages.is_empty());
        assert!(
            channel.faults[0].starts_with("a message of version 2, this xtask reads version 1")
        );
        assert!(
            channel.faults[1].starts_with("not a message (EOF"),
            "{}",
            channel.faults[1]
        );
        assert_eq!(channel.faults.len(), 3);
        assert_eq!(channel.last_lines.last().unwrap(), "hello");
    }
}
