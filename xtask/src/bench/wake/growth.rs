//! Row `growth`: what one wake and one broadcast cost, against the number of CPUs.
//!
//! Up to 64 CPUs in QEMU, where a tick is an instruction of any CPU; up to 15 in Bochs, where CPUs run at the same time and MWAIT
//! sleeps; up to 4096 on simulated machines, where the accesses of the core's own code to shared memory are counted.

use std::fs;

use anyhow::{Context, Result, ensure};

use super::{
    bench::Bench,
    report::{Figure, Report},
};

mod chart;
mod counted;
mod emulated;

const ROW: &str = "growth";

/// What is measured, as the image names it, and as reports do.
const OPERATIONS: [(&str, &str); 6] = [
    ("wake", "one wake"),
    ("call-send", "one call, sent"),
    ("call", "one call, answered"),
    ("broadcast-wake", "wake of all"),
    ("broadcast-send", "call of all, sent"),
    ("broadcast-call", "call of all, answered"),
];

/// A machine whose size grows.
struct Series {
    /// Where, and how its CPUs sleep.
    machine: &'static str,
    /// As `--only` names it.
    emulator: &'static str,
    unit: &'static str,
    points: Vec<Point>,
}

/// One size.
struct Point {
    cpus: u32,
    costs: Vec<Cost>,
}

/// One operation in a machine of one size.
struct Cost {
    operation: &'static str,
    /// Of the sender, in the unit of the series; of whoever else works meanwhile, where it waits.
    value: f64,
    /// Of all CPUs until they sleep again, in the same unit, where that is known.
    all: Option<f64>,
    /// Posts that an interrupt was sent for, for each time.
    ipis: f64,
    /// Posts whose store alone woke a CPU, for each time. What is left found its CPU awake.
    stores: f64,
}

impl Cost {
    fn text(&self) -> String {
        let all = self
            .all
            .map_or_else(String::new, |all| format!(" / {all:.0}"));
        format!(
            "{:.0}{all} ({:.0}+{:.0})",
            self.value, self.ipis, self.stores
        )
    }
}

impl Point {
    fn cost(&self, operation: &str) -> Option<&Cost> {
        self.costs.iter().find(|cost| cost.operation == operation)
    }
}

impl Series {
    fn print(&self) {
        let all = self.points.iter().flat_map(|point| &point.costs);
        let whose = if all.clone().any(|cost| cost.all.is_some()) {
            "the sender's / all CPUs' until they sleep again"
        } else {
            "the sender's"
        };
        println!(
            "{}: {}, {whose} (CPUs woken by an interrupt + by the store alone)",
            self.machine, self.unit
        );
        let present = OPERATIONS
            .iter()
            .filter(|(name, _)| all.clone().any(|cost| cost.operation == *name));
        let present: Vec<_> = present.collect();
        print!("{:>6}", "CPUs");
        for (_, title) in &present {
            print!(" {title:>22}");
        }
        println!();
        for point in &self.points {
            print!("{:>6}", point.cpus);
            for (name, _) in &present {
                let text = point.cost(name).map_or_else(|| "-".to_owned(), Cost::text);
                print!(" {text:>22}");
            }
            println!();
        }
    }

    fn figures(&self, report: &mut Report) {
        for point in &self.points {
            for cost in &point.costs {
                let mut add = |what: &str, value: f64| {
                    let name = format!("{}.{what}", cost.operation);
                    report.add(
                        Figure::new(ROW, self.machine, name, value).on(self.emulator, point.cpus),
                    );
                };
                add(self.unit, cost.value);
                if let Some(all) = cost.all {
                    add("all", all);
                }
                add("ipis", cost.ipis);
                add("stores", cost.stores);
            }
        }
    }

    /// How much more an operation costs in the largest machine than in the smallest; of a broadcast, for each CPU that is woken.
    fn growth(&self, operation: &str) -> Option<f64> {
        let each = |point: &Point| {
            let targets = if operation.starts_with("broadcast") {
                point.cpus.saturating_sub(1).max(1)
            } else {
                1
            };
            let cost = point.cost(operation)?;
            Some(cost.value / f64::from(targets))
        };
        Some(each(self.points.last()?)? / each(self.points.first()?)?)
    }

    fn bars(&self, report: &mut Report) {
        // Ticks of CPUs that run side by side depend on how they happen to do so.
        if self.unit == "ticks" {
            return;
        }
        let Some(last) = self.points.get(1..).and_then(<[Point]>::last) else {
            return;
        };
        for (operation, what) in [
            ("wake", "one wake"),
            ("broadcast-wake", "a wake of all, for each CPU"),
        ] {
            if let Some(growth) = self.growth(operation) {
                let what = format!("{what}, {} CPUs against 2: {}", last.cpus, self.machine);
                report.bar(ROW, what, growth, 1.1);
            }
        }
    }
}

/// Measures, prints, and plots.
///
/// # Errors
/// Something is missing, a run does not end well or has not measured something, or the file cannot be written.
pub fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let most = |full, quick| if bench.quick { quick } else { full };
    let mut series = Vec::new();
    let mut add = |measured: Vec<Series>| -> Result<()> {
        for one in measured {
            ensure!(
                !one.points.is_empty(),
                "{}: nothing was measured",
                one.machine
            );
            one.print();
            one.figures(report);
            one.bars(report);
            series.push(one);
        }
        Ok(())
    };
    if bench.wants("sim") {
        add(counted::measure(most(4096, 64))?)?;
    }
    if let Some(qemu) = bench.qemu()? {
        add(emulated::in_qemu(bench, &qemu, most(64, 4))?)?;
    }
    if let Some(bochs) = bench.bochs()? {
        add(emulated::in_bochs(bench, &bochs, most(15, 2))?)?;
    }
    if let Some(path) = &bench.svg {
        fs::write(path, chart::draw(&series))
            .with_context(|| format!("cannot write {}", path.display()))?;
        println!("plotted to {}", path.display());
    }
    Ok(())
}

/// 2, 4, 8 and so on, and the last.
fn sizes(most: u32) -> Vec<u32> {
    let mut sizes: Vec<u32> = (1..32)
        .map(|power| 1 << power)
        .take_while(|&cpus| cpus < most)
        .collect();
    sizes.push(most);
    sizes
}
