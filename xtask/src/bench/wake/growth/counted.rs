//! Simulated machines, in a process of their own: only that is built so that it counts accesses.

use std::{collections::BTreeMap, process::Stdio};

use anyhow::{Context, Result, ensure};

use super::{Cost, OPERATIONS, Point, Series, sizes};
use crate::{process, workspace};

/// Machines of 2 CPUs and more.
///
/// # Errors
/// They cannot be built, a CPU did not sleep when it should have, or something was not measured.
pub fn measure(most: u32) -> Result<Vec<Series>> {
    let sizes = sizes(most);
    let mut cargo = workspace::cargo();
    cargo
        .args(["run", "--quiet", "--package", "lull-sim"])
        .args(["--features", "count-accesses", "--bin", "wake-growth", "--"])
        .args(sizes.iter().map(u32::to_string));
    cargo.stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = process::output(&mut cargo)?;
    ensure!(
        output.status.success(),
        "simulated machines: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let series = [
        ("mwait", "simulated, watching"),
        ("halt", "simulated, halted"),
    ]
    .map(|(entry, machine)| {
        let points = points(&text, entry)?;
        let found: Vec<u32> = points.iter().map(|point| point.cpus).collect();
        ensure!(
            found == sizes,
            "{machine}: sizes {found:?} were measured, expected {sizes:?}"
        );
        Ok(Series {
            machine,
            emulator: "sim",
            unit: "accesses",
            points,
        })
    });
    series.into_iter().collect()
}

/// What the lines say of machines that sleep in that way.
fn points(text: &str, entry: &str) -> Result<Vec<Point>> {
    let mut sizes = BTreeMap::<u32, Vec<Cost>>::new();
    for line in text.lines() {
        let (cpus, how, cost) =
            parse(line).with_context(|| format!("not a measurement: {line}"))?;
        if how == entry {
            sizes.entry(cpus).or_default().push(cost);
        }
    }
    Ok(sizes
        .into_iter()
        .map(|(cpus, costs)| Point { cpus, costs })
        .collect())
}

/// CPUs, how they sleep, and what something costs.
fn parse(line: &str) -> Option<(u32, &str, Cost)> {
    let mut words = line.split_ascii_whitespace();
    let (cpus, entry, name) = (words.next()?.parse().ok()?, words.next()?, words.next()?);
    let numbers: Vec<f64> = words.map_while(|word| word.parse().ok()).collect();
    let &[loads, stores, updates, all, ipis, by_store] = numbers.as_slice() else {
        return None;
    };
    let (operation, _) = OPERATIONS
        .iter()
        .find(|(operation, _)| *operation == name)?;
    let cost = Cost {
        operation,
        value: loads + stores + updates,
        all: Some(all),
        ipis,
        stores: by_store,
    };
    Some((cpus, entry, cost))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_what_the_sender_does_and_what_all_do() {
        let (cpus, entry, cost) = parse("64 mwait wake 3 2 1 68 0 1").unwrap();
        assert_eq!((cpus, entry, cost.operation), (64, "mwait", "wake"));
        assert_eq!((cost.value, cost.all), (6.0, Some(68.0)));
        assert_eq!((cost.ipis, cost.stores), (0.0, 1.0));
        for wrong in [
            "",
            "64 mwait wake 3 2 1 68 0",
            "64 mwait sneeze 3 2 1 68 0 1",
            "x mwait wake 3 2 1 68 0 1",
        ] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn what_prints_nothing_has_no_sizes() {
        assert!(points("", "halt").unwrap().is_empty());
        assert!(points("warning: something\n", "halt").is_err());
    }
}
