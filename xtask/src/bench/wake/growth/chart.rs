//! The curves as a picture: a panel for each unit, both axes logarithmic.

use std::fmt::Write as _;

use super::{OPERATIONS, Series};

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 34.0;

/// Curves of one operation have one colour, in all panels.
const COLOURS: [&str; OPERATIONS.len()] = ["#36c", "#09a", "#393", "#c33", "#e80", "#939"];
/// The first series of a panel is solid, the second dashed.
const DASHES: [&str; 2] = ["", " stroke-dasharray=\"5 3\""];

/// All series that have a unit in common are in one panel.
pub fn draw(series: &[Series]) -> String {
    let mut units: Vec<&str> = series.iter().map(|one| one.unit).collect();
    units.dedup();
    let height = HEIGHT * units.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (index, unit) in units.iter().enumerate() {
        let of_unit: Vec<&Series> = series.iter().filter(|one| one.unit == *unit).collect();
        let _ = writeln!(
            svg,
            "<g transform=\"translate(0 {})\">",
            HEIGHT * index as f64
        );
        panel(&mut svg, unit, &of_unit);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

/// Where values are.
struct Axes {
    most_cpus: f64,
    lowest: f64,
    highest: f64,
}

impl Axes {
    fn of(series: &[&Series]) -> Self {
        let points = || series.iter().flat_map(|one| &one.points);
        let values = || {
            points()
                .flat_map(|point| &point.costs)
                .map(|cost| cost.value.max(1.0))
        };
        let power = |value: f64| 10_f64.powf(value);
        Self {
            most_cpus: points()
                .map(|point| f64::from(point.cpus))
                .fold(4.0, f64::max),
            lowest: power(
                values()
                    .fold(f64::INFINITY, f64::min)
                    .min(1e9)
                    .log10()
                    .floor(),
            ),
            highest: power(values().fold(10.0, f64::max).log10().ceil()),
        }
    }

    fn x(&self, cpus: u32) -> f64 {
        let share = (f64::from(cpus).log2() - 1.0) / (self.most_cpus.log2() - 1.0);
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let share = (value.max(self.lowest) / self.lowest).ln() / (self.highest / self.lowest).ln();
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }
}

fn panel(svg: &mut String, unit: &str, series: &[&Series]) {
    let names: Vec<String> = series
        .iter()
        .zip(["solid", "dashed"])
        .map(|(one, how)| format!("{how}: {}", one.machine))
        .collect();
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"20\">{unit} against CPUs; {}</text>",
        names.join(", ")
    );
    let axes = Axes::of(series);
    grid(svg, &axes, series);
    for (index, (operation, title)) in OPERATIONS.iter().enumerate() {
        let colour = COLOURS[index];
        let mut drawn = false;
        for (one, dash) in series.iter().zip(DASHES) {
            let points: Vec<String> = one
                .points
                .iter()
                .filter_map(|point| {
                    let cost = point.cost(operation)?;
                    Some(format!(
                        "{:.1},{:.1}",
                        axes.x(point.cpus),
                        axes.y(cost.value)
                    ))
                })
                .collect();
            if points.is_empty() {
                continue;
            }
            drawn = true;
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
                points.join(" ")
            );
        }
        if drawn {
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\" fill=\"{colour}\">{title}</text>",
                WIDTH - RIGHT + 8.0,
                TOP + 14.0 * (index + 1) as f64
            );
        }
    }
}

fn grid(svg: &mut String, axes: &Axes, series: &[&Series]) {
    let mut value = axes.lowest;
    while value <= axes.highest * 1.001 {
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {y:.1}H{}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{y:.1}\" text-anchor=\"end\">{value}</text>",
            WIDTH - RIGHT,
            LEFT - 4.0,
            y = axes.y(value)
        );
        value *= 10.0;
    }
    let longest = series.iter().max_by_key(|one| one.points.len());
    for point in longest.iter().flat_map(|one| &one.points) {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            axes.x(point.cpus),
            HEIGHT - BOTTOM + 16.0,
            point.cpus
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cost, Point};
    use super::*;

    #[test]
    fn a_cost_that_does_not_grow_is_level_and_one_that_does_rises() {
        let point = |cpus: u32| Point {
            cpus,
            costs: vec![
                Cost {
                    operation: "wake",
                    value: 25.0,
                    all: None,
                    ipis: 0.0,
                    stores: 0.0,
                },
                Cost {
                    operation: "broadcast-wake",
                    value: 40.0 * f64::from(cpus),
                    all: None,
                    ipis: 0.0,
                    stores: 0.0,
                },
            ],
        };
        let svg = draw(&[Series {
            machine: "a machine",
            emulator: "sim",
            unit: "steps",
            points: vec![point(2), point(64)],
        }]);
        let lines: Vec<Vec<(f64, f64)>> = svg
            .lines()
            .filter_map(|line| line.strip_prefix("<polyline points=\""))
            .filter_map(|line| line.split_once('"'))
            .map(|(points, _)| {
                let pairs = points.split(' ').filter_map(|pair| pair.split_once(','));
                pairs
                    .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
                    .collect()
            })
            .collect();
        let [wake, broadcast] = lines.as_slice() else {
            panic!("{svg}");
        };
        assert_eq!(wake[0].1, wake[1].1);
        assert!(broadcast[1].1 < broadcast[0].1 && wake[0].0 < wake[1].0);
        assert!(svg.contains("a machine") && svg.contains("wake of all"));
    }
}
