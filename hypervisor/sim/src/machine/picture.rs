//! Pictures of a run: CPUs over time, as SVG, and for trace viewers.

use super::outcome::Outcome;
use super::plan::Plan;
use super::run::START;
use super::trace::{Doing, Line};
use std::fmt::Write as _;

/// The most CPUs that a picture shows.
const ROWS: u32 = 64;
const WIDTH: f64 = 1400.0;
const ROW: f64 = 14.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 34.0;

/// A CPU did one thing from one moment to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    cpu: u32,
    doing: Doing,
    from: u64,
    to: u64,
}

fn spans(plan: &Plan, outcome: &Outcome) -> Vec<Span> {
    let end = START + outcome.length.min(plan.keep);
    let mut open = vec![(Doing::Hypervisor, START); plan.topology.cpus as usize];
    let mut spans = Vec::new();
    let mut close = |cpu: u32, (doing, from): (Doing, u64), to: u64| {
        if to > from {
            spans.push(Span {
                cpu,
                doing,
                from,
                to,
            });
        }
    };
    for &(at, line) in &outcome.trace.lines {
        if let Line::Cpu { cpu, doing } = line
            && let Some(own) = open.get_mut(cpu as usize)
        {
            close(cpu, *own, at.min(end));
            *own = (doing, at);
        }
    }
    for (own, cpu) in open.into_iter().zip(0..) {
        close(cpu, own, end);
    }
    spans
}

fn name(doing: Doing, outcome: &Outcome) -> String {
    let state = |index: u8| {
        let names = &outcome.state_names;
        names.get(usize::from(index)).copied().unwrap_or("?")
    };
    match doing {
        Doing::Hypervisor => "hypervisor".to_owned(),
        Doing::Guest(v) => format!("v{v}"),
        Doing::Sleep(index) => state(index).to_owned(),
        Doing::Waking(index) => format!("out of {}", state(index)),
    }
}

fn colour(doing: Doing, outcome: &Outcome) -> String {
    match doing {
        Doing::Hypervisor => "#222".to_owned(),
        // Neighbours in number are far apart in hue.
        Doing::Guest(v) => format!("hsl({},65%,55%)", u64::from(v) * 137 % 360),
        Doing::Waking(_) => "#d33".to_owned(),
        Doing::Sleep(index) => {
            let depth = f64::from(index) / outcome.state_names.len().max(1) as f64;
            let grey = 210.0 + 40.0 * depth;
            format!("rgb({grey:.0},{grey:.0},{:.0})", 215.0 + 40.0 * depth)
        }
    }
}

/// CPUs over time. What is shorter than a tenth of a pixel is left out.
pub fn svg(plan: &Plan, outcome: &Outcome) -> String {
    let length = outcome.length.min(plan.keep).max(1);
    let rows = plan.topology.cpus.min(ROWS);
    let height = TOP + f64::from(rows) * ROW + 30.0;
    let x = |at: u64| LEFT + (at - START) as f64 / length as f64 * (WIDTH - LEFT - 10.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"10\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"14\" font-size=\"12\">{} of {} CPUs, {:.3} ms; colours: vCPUs; light: C-states, the \
         lighter the deeper; red: on the way out of one; black: hypervisor</text>",
        rows,
        plan.topology.cpus,
        length as f64 / 1e6
    );
    for cpu in 0..rows {
        let y = TOP + f64::from(cpu) * ROW;
        let _ = writeln!(svg, "<text x=\"6\" y=\"{:.1}\">cpu{cpu}</text>", y + 9.0);
    }
    for span in spans(plan, outcome) {
        let width = x(span.to) - x(span.from);
        if span.cpu >= rows || width < 0.1 {
            continue;
        }
        let y = TOP + f64::from(span.cpu) * ROW;
        let _ = writeln!(
            svg,
            "<rect x=\"{:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{}\" fill=\"{}\"><title>cpu{} {} {:.3} us</title></rect>",
            x(span.from),
            ROW - 2.0,
            colour(span.doing, outcome),
            span.cpu,
            name(span.doing, outcome),
            (span.to - span.from) as f64 / 1e3
        );
    }
    for tick in 0..=10 {
        let at = START + length / 10 * tick;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.2} ms</text>",
            x(at).clamp(LEFT + 16.0, WIDTH - 26.0),
            height - 10.0,
            (at - START) as f64 / 1e6
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// Chrome trace events: one track a CPU, and marks for kicks and interrupts. `ui.perfetto.dev` and `chrome://tracing` open it.
pub fn perfetto(plan: &Plan, outcome: &Outcome) -> String {
    let us = |at: u64| (at - START) as f64 / 1e3;
    let mut events: Vec<String> = (0..plan.topology.cpus)
        .map(|cpu| {
            format!(
                "{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":{cpu},\"args\":{{\"name\":\"cpu{cpu}\"}}}}"
            )
        })
        .collect();
    events.extend(spans(plan, outcome).iter().map(|span| {
        format!(
            "{{\"ph\":\"X\",\"name\":\"{}\",\"pid\":1,\"tid\":{},\"ts\":{:.3},\"dur\":{:.3}}}",
            name(span.doing, outcome),
            span.cpu,
            us(span.from),
            (span.to - span.from) as f64 / 1e3
        )
    }));
    for &(at, line) in &outcome.trace.lines {
        let (label, thread) = match line {
            Line::Ipi { to, .. } => ("ipi".to_owned(), to),
            Line::OneShot { cpu } => ("one-shot".to_owned(), cpu),
            Line::Kick { .. } | Line::Cpu { .. } => continue,
        };
        events.push(format!(
            "{{\"ph\":\"i\",\"name\":\"{label}\",\"pid\":1,\"tid\":{thread},\"ts\":{:.3},\"s\":\"t\"}}",
            us(at)
        ));
    }
    format!(
        "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{}\n]}}\n",
        events.join(",\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::run::run;

    #[test]
    fn spans_fill_the_time_of_every_cpu() {
        let plan = Plan {
            length: 5_000_000,
            keep: 3_000_000,
            ..Plan::default()
        };
        let outcome = run(&plan).unwrap();
        let spans = spans(&plan, &outcome);
        for cpu in 0..plan.topology.cpus {
            let own = || spans.iter().filter(|span| span.cpu == cpu);
            assert_eq!(
                own().map(|span| span.to - span.from).sum::<u64>(),
                plan.keep
            );
            let mut at = START;
            for span in own() {
                assert_eq!(span.from, at, "cpu{cpu}");
                at = span.to;
            }
        }
        assert!(svg(&plan, &outcome).contains("<title>cpu0 "));
        assert!(perfetto(&plan, &outcome).contains("\"name\":\"hypervisor\""));
    }
}
