//! What a run found out, as tables for people. Everything comes from the machine channel.

use std::fmt::Write as _;

use crate::channel::{Channel, Counters, Cstates, GuestEvent, State};

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

/// The length of a full bar.
const BAR: usize = 30;

/// Where the time of every CPU went, since it came up: as `xenpm start` has it, with Lull's own columns and a bar.
pub fn residency(reading: &Cstates, tsc_hz: u64) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "  {:<7}{:<16}{:>12} {:>8}  {:<BAR$} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8}",
        "state",
        "method",
        "time ms",
        "%",
        "",
        "usage",
        "avg us",
        "min us",
        "max us",
        "irq %",
        "above",
        "below",
        "rejected",
    );
    for cpu in &reading.cpus {
        let all = &cpu.counters;
        head(&mut text, cpu.cpu, all, tsc_hz);
        row(&mut text, "C0", "", all.c0, all.elapsed, tsc_hz, |text| {
            let _ = write!(
                text,
                "  guest {:.2} %, hypervisor {:.2} %",
                percent(all.guest, all.elapsed),
                percent(all.hypervisor, all.elapsed)
            );
        });
        for state in &all.states {
            let name = if state.off {
                format!("[{}]", state.name)
            } else {
                state.name.clone()
            };
            let (method, time) = (&state.method, state.residency);
            row(
                &mut text,
                &name,
                method,
                time,
                all.elapsed,
                tsc_hz,
                |text| {
                    entries(text, state, all.elapsed, tsc_hz);
                },
            );
        }
        hardware(&mut text, all, tsc_hz);
    }
    text
}

fn head(text: &mut String, cpu: u32, all: &Counters, tsc_hz: u64) {
    let sum = all
        .c0
        .saturating_add(all.residency())
        .saturating_add(all.irq());
    let limit = all.latency_limit_ns.map_or_else(String::new, |limit| {
        format!(", latency limit {} us", limit / 1000)
    });
    let _ = writeln!(
        text,
        "CPU{cpu}: {:.3} s, C0 + states + irq = {:.2} %; governor {}{limit}; {} wakes, {} spurious, {} aborted",
        seconds(all.elapsed, tsc_hz),
        percent(sum, all.elapsed),
        all.governor,
        all.wakes_total(),
        all.spurious,
        all.aborted,
    );
}

fn row(
    text: &mut String,
    name: &str,
    method: &str,
    time: u64,
    elapsed: u64,
    tsc_hz: u64,
    rest: impl FnOnce(&mut String),
) {
    let _ = write!(
        text,
        "  {name:<7}{method:<16}{:>12.3} {:>8.3} {}",
        seconds(time, tsc_hz) * 1e3,
        percent(time, elapsed),
        bar(time, elapsed),
    );
    rest(text);
    text.truncate(text.trim_end_matches(' ').len());
    text.push('\n');
}

fn entries(text: &mut String, state: &State, elapsed: u64, tsc_hz: u64) {
    let micros = |ticks: u64| seconds(ticks, tsc_hz) * 1e6;
    // The stay that goes on is an entry too: the average is of all time over all entries.
    let average = state.residency.checked_div(state.usage);
    let shown = |ticks: Option<u64>| {
        ticks.map_or_else(|| "-".to_owned(), |ticks| format!("{:.1}", micros(ticks)))
    };
    let _ = write!(
        text,
        " {:>9} {:>9} {:>9} {:>9} {:>8.3} {:>8} {:>8} {:>8}",
        state.usage,
        shown(average),
        shown(state.shortest),
        shown(state.shortest.map(|_| state.longest)),
        percent(state.irq, elapsed),
        state.above,
        state.below,
        state.rejected,
    );
}

/// The hardware's own counters: those that count, and those that are not there though the model has them.
fn hardware(text: &mut String, all: &Counters, tsc_hz: u64) {
    let counters = all.hardware.iter().filter(|(name, _)| *name != "at");
    let (there, absent): (Vec<_>, Vec<_>) = counters.partition(|(_, value)| value.is_some());
    for (name, value) in there {
        let time = value.unwrap_or_default();
        row(text, name, "hardware", time, all.elapsed, tsc_hz, |_| {});
    }
    if !absent.is_empty() {
        let names: Vec<&str> = absent.iter().map(|(name, _)| name.as_str()).collect();
        let _ = writeln!(text, "  hardware counters that fault: {}", names.join(", "));
    }
}

/// A part of a whole as a bar. Something shows as at least one mark, and only all of it fills the bar.
fn bar(part: u64, whole: u64) -> String {
    let marks = u128::from(part) * BAR as u128 / u128::from(whole.max(1));
    let marks = usize::try_from(marks).map_or(BAR, |marks| marks.min(BAR));
    let marks = marks.max(usize::from(part > 0));
    format!("|{}{}|", "#".repeat(marks), " ".repeat(BAR - marks))
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
            r#"{"v":1,"type":"cstates","cpus":[{"cpu":3,"governor":"teo","latency_limit_ns":5000,"elapsed":2000,"c0":500,"guest":400,"hypervisor":100,"spurious":2,"aborted":1,"wakes":{"timer":7},"states":[{"name":"C1","method":"MWAIT+IRQ 0x00","off":true,"usage":10,"residency":1400,"irq":100,"above":4,"below":5,"rejected":6,"shortest":20,"longest":300},{"name":"C6","method":"MWAIT 0x20"}],"hardware":{"at":1990,"CC6":1000,"PC6":null}}]}"#,
        );
        let text = residency(channel.cstates().next().unwrap(), 1000);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("above    below rejected"));
        assert_eq!(
            lines[1],
            "CPU3: 2.000 s, C0 + states + irq = 100.00 %; governor teo, latency limit 5 us; 7 wakes, 2 spurious, 1 aborted"
        );
        let fields = |line: &str| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            fields(lines[2]),
            [
                "C0",
                "500.000",
                "25.000",
                "|#######",
                "|",
                "guest",
                "20.00",
                "%,",
                "hypervisor",
                "5.00",
                "%"
            ]
        );
        assert_eq!(
            fields(lines[3]),
            [
                "[C1]",
                "MWAIT+IRQ",
                "0x00",
                "1400.000",
                "70.000",
                "|#####################",
                "|",
                "10",
                "140000.0",
                "20000.0",
                "300000.0",
                "5.000",
                "4",
                "5",
                "6"
            ]
        );
        assert_eq!(
            fields(lines[4])[3..],
            [
                "0.000", "0.000", "|", "|", "0", "-", "-", "-", "0.000", "0", "0", "0"
            ]
        );
        assert_eq!(
            fields(lines[5])[..4],
            ["CC6", "hardware", "1000.000", "50.000"]
        );
        assert_eq!(lines[6], "  hardware counters that fault: PC6");
        assert_eq!(lines.len(), 7);
    }

    #[test]
    fn bars_show_what_there_is() {
        assert_eq!(bar(0, 100).matches('#').count(), 0);
        assert_eq!(bar(1, 1_000_000).matches('#').count(), 1);
        assert_eq!(bar(999, 1000).matches('#').count(), BAR - 1);
        assert_eq!(bar(1000, 1000).matches('#').count(), BAR);
        assert_eq!(bar(u64::MAX, 1).len(), BAR + 2);
        assert_eq!(bar(5, 0).len(), BAR + 2);
    }

    #[test]
    fn nothing_is_not_divided_by() {
        assert_eq!((percent(5, 0), seconds(5, 0)), (0.0, 0.0));
    }
}
