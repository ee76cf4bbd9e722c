//! What a run found out, as tables for people. Everything comes from the machine channel.

use std::fmt::Write as _;

use crate::channel::{Channel, Cstates, GuestEvent, State};

/// Verdicts, figures, complaints.
pub fn guests(channel: &Channel) -> String {
    let mut text = String::new();
    for problem in channel.problems() {
        let _ = write!(
            text,
            "problem  {} {}: {}",
            problem.place, problem.name, problem.why
        );
        if let Some(expected) = problem
            .expected
            .as_deref()
            .filter(|expected| !expected.is_empty())
        {
            let _ = write!(text, " (expected {expected})");
        }
        text.push('\n');
    }
    let ended = |id| {
        channel
            .guests()
            .rev()
            .find(move |other| other.event == "end" && other.id == id)
    };
    for guest in channel.guests().filter(|guest| guest.event == "start") {
        let _ = writeln!(
            text,
            "d{:<3} {:<14} {}",
            guest.id,
            guest.name,
            verdict(ended(guest.id))
        );
        for figure in channel.figures().filter(|figure| figure.guest == guest.id) {
            let _ = writeln!(
                text,
                "       {:<28} {:>14} {}",
                figure.name,
                figure.value.to_string(),
                figure.unit
            );
        }
    }
    text
}

fn verdict(end: Option<&GuestEvent>) -> String {
    let Some(end) = end else {
        return "still running at the end".to_owned();
    };
    let verdict = match end.verdict.as_deref() {
        Some("pass") => "PASS",
        Some("fail") => "FAIL",
        _ => "no verdict",
    };
    // The reason of a PASS is its way to end, which `how` says shorter.
    let reason = end
        .reason
        .as_deref()
        .filter(|_| verdict != "PASS")
        .unwrap_or_default();
    let how = match (end.how.as_deref(), end.code) {
        (Some("port"), Some(code)) => format!("(exit port, code {code:#x})"),
        (Some(how), _) => format!("({how})"),
        (None, _) => String::new(),
    };
    [verdict, reason, &how]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Where the time of every CPU went, since it came up.
pub fn residency(reading: &Cstates, tsc_hz: u64) -> String {
    let mut text = String::from(
        "CPU  elapsed s     C0 %  guest %  hyperv %  state  method     usage  residency %   irq %     wakes  sum %\n",
    );
    for cpu in &reading.cpus {
        let all = &cpu.counters;
        let share = |ticks: u64| percent(ticks, all.elapsed);
        let _ = write!(
            text,
            "{:>3} {:>10.3} {:>8.3} {:>8.3} {:>9.3}",
            cpu.cpu,
            seconds(all.elapsed, tsc_hz),
            share(all.c0),
            share(all.guest),
            share(all.hypervisor),
        );
        let sum = share(
            all.c0
                .saturating_add(all.residency())
                .saturating_add(all.irq()),
        );
        if all.states.is_empty() {
            let _ = writeln!(text, "  (no idle state) {sum:>48.3}");
        }
        // A state that was never entered is worth a line only if there is nothing else to say.
        let entered = |state: &&State| state.usage > 0 || state.residency > 0;
        let used: Vec<&State> = all.states.iter().filter(entered).collect();
        let shown = if used.is_empty() {
            all.states.iter().take(1).collect()
        } else {
            used
        };
        for (index, state) in shown.into_iter().enumerate() {
            if index > 0 {
                let _ = write!(text, "{:41}", "");
            }
            let _ = write!(
                text,
                "  {:<5}  {:<6} {:>9} {:>12.3} {:>7.3}",
                state.name,
                state.method,
                state.usage,
                share(state.residency),
                share(state.irq),
            );
            if index == 0 {
                let _ = write!(text, " {:>9} {sum:>6.2}", all.wakes_total());
            }
            text.push('\n');
        }
    }
    text
}

/// `part` of `whole` in percent; zero of nothing.
#[expect(
    clippy::cast_precision_loss,
    reason = "a share for people, far from 2^53 digits"
)]
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 * 100.0 / whole as f64
    }
}

/// Ticks in seconds; zero if the rate is not known.
#[expect(
    clippy::cast_precision_loss,
    reason = "a time for people, far from 2^53 digits"
)]
pub fn seconds(ticks: u64, hz: u64) -> f64 {
    if hz == 0 {
        0.0
    } else {
        ticks as f64 / hz as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_without_an_end_is_not_forgotten() {
        let channel = Channel::of_text(concat!(
            r#"{"v":1,"type":"guest","id":1,"name":"fault","event":"start"}"#,
            "\n",
            r#"{"v":1,"type":"guest","id":2,"name":"quiet","event":"start"}"#,
            "\n",
            r#"{"v":1,"type":"figure","guest":1,"name":"tries","value":3,"unit":"n"}"#,
            "\n",
            r#"{"v":1,"type":"guest","id":1,"name":"fault","event":"end","verdict":"fail","how":"triple-fault","reason":"oops"}"#,
        ));
        let text = guests(&channel);
        assert!(
            text.contains("d1   fault          FAIL oops (triple-fault)\n"),
            "{text}"
        );
        assert!(
            text.contains("d2   quiet          still running at the end\n"),
            "{text}"
        );
        assert!(text.contains("tries"), "{text}");
    }

    #[test]
    fn shares_are_of_elapsed_time() {
        let channel = Channel::of_text(
            r#"{"v":1,"type":"cstates","cpus":[{"cpu":3,"elapsed":2000,"c0":500,"guest":400,"hypervisor":100,"wakes":{"timer":7},"states":[{"name":"C1","method":"HLT","usage":9,"residency":1400,"irq":100}]}]}"#,
        );
        let text = residency(channel.cstates().next().unwrap(), 1000);
        let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(
            row,
            [
                "3", "2.000", "25.000", "20.000", "5.000", "C1", "HLT", "9", "70.000", "5.000",
                "7", "100.00"
            ]
        );
    }

    #[test]
    fn nothing_is_not_divided_by() {
        assert_eq!((percent(5, 0), seconds(5, 0)), (0.0, 0.0));
    }
}
