//! The weights hold across CPUs: what units get that never halt, against the weighted max-min ideal.

use super::sim::*;
use proptest::prelude::*;
use std::format;
use std::string::String;
use std::vec::Vec;

/// What is promised, of the ideal share or of 0.1, whichever is more. The worst of 30 000 random cases is 0.029: units
/// whose ideal share is next to a whole CPU, or that are many times lighter than others and so seldom take their turn.
const TOLERANCE: f64 = 0.05;
const WEIGHTS: [u16; 7] = [64, 128, 256, 384, 512, 1024, 2048];

/// The weighted max-min shares of units that may each run on some CPUs: nobody gets more than one CPU, those who may
/// run only on some CPUs get no more than these, and what one cannot use goes to the others.
///
/// All shares rise in proportion to the weights; whoever is in a set of units that has all it can get stays there.
fn ideal(units: &[(u16, u8)], cpus: usize) -> Vec<f64> {
    let mut level = vec![None; units.len()];
    while level.contains(&None) {
        let tightest = (0..1_u8 << cpus).filter_map(|set| room(units, &level, set));
        let alone = (0..units.len())
            .filter(|&unit| level[unit].is_none())
            .map(|unit| (1.0 / f64::from(units[unit].0), vec![unit]));
        let (share, full) = tightest
            .chain(alone)
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .unwrap();
        for unit in full {
            level[unit] = Some(share);
        }
    }
    let shares = level.iter().zip(units);
    shares
        .map(|(level, unit)| level.unwrap() * f64::from(unit.0))
        .collect()
}

/// How far those who may run on the CPUs of `set` only, and still rise, can rise, and who they are.
fn room(units: &[(u16, u8)], level: &[Option<f64>], set: u8) -> Option<(f64, Vec<usize>)> {
    let inside = (0..units.len()).filter(|&unit| units[unit].1 & !set == 0);
    let (rising, fixed): (Vec<_>, Vec<_>) = inside.partition(|&unit| level[unit].is_none());
    let weigh = |unit: &usize| f64::from(units[*unit].0);
    let taken: f64 = fixed
        .iter()
        .map(|unit| weigh(unit) * level[*unit].unwrap())
        .sum();
    let weight: f64 = rising.iter().map(weigh).sum();
    let left = f64::from(set.count_ones()) - taken;
    (!rising.is_empty()).then(|| (left / weight, rising))
}

/// Runs units that never halt, and returns the greatest error of a share over 20 s, in parts of the ideal share (or of
/// 0.1, if that is more), and what it is.
fn worst_error(cpus: usize, units: &[(u16, u8)]) -> (f64, String) {
    let mut sim = Sim::new(cpus, units.len());
    for (index, &(w, allowed)) in units.iter().enumerate() {
        let allowed = (0..cpus).filter(|bit| allowed & (1 << bit) != 0).map(cpu);
        sim.add(v(index as u32), weight(w), allowed.collect());
        sim.start(v(index as u32));
    }
    sim.settle();
    sim.run_for(SECOND);
    let span = 20 * SECOND;
    let got = sim.measure(span, units.len() as u32);
    let errors = ideal(units, cpus).into_iter().enumerate();
    errors
        .map(|(unit, expected)| {
            let share = got[unit] as f64 / span as f64;
            let error = (share - expected).abs() / expected.max(0.1);
            let what =
                format!("unit {unit} of {units:?} on {cpus}: {share:.4}, ideal {expected:.4}");
            (error, what)
        })
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .unwrap()
}

/// Units that may run everywhere.
fn anywhere(cpus: usize, weights: &[u16]) -> Vec<(u16, u8)> {
    let all = ((1_u16 << cpus) - 1) as u8;
    weights.iter().map(|&weight| (weight, all)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn shares_are_near_the_max_min_ideal(
        cpus in 1_usize..7,
        weights in prop::collection::vec(prop::sample::select(WEIGHTS.to_vec()), 1..13),
    ) {
        let (error, what) = worst_error(cpus, &anywhere(cpus, &weights));
        prop_assert!(error <= TOLERANCE, "{}", what);
    }
}

/// A small generator: the same cases each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % sides
    }

    /// Up to 12 units on up to 6 CPUs; with `pins`, one in three may run on one CPU only.
    fn case(&mut self, pins: bool) -> (usize, Vec<(u16, u8)>) {
        let cpus = self.roll(6) as usize + 1;
        let units = (0..=self.roll(12)).map(|_| WEIGHTS[self.roll(7) as usize]);
        let mut units = anywhere(cpus, &units.collect::<Vec<_>>());
        for unit in units.iter_mut().filter(|_| pins) {
            if self.roll(3) == 0 {
                unit.1 = 1 << self.roll(cpus as u64);
            }
        }
        (cpus, units)
    }
}

#[test]
#[ignore = "takes a minute in release mode"]
fn shares_are_near_the_ideal_in_very_many_cases() {
    let mut dice = Dice(0x9E37_79B9_7F4A_7C15);
    let mut worst = (0.0, String::new());
    for _ in 0..20_000 {
        let (cpus, units) = dice.case(false);
        let case = worst_error(cpus, &units);
        if case.0 > worst.0 {
            worst = case;
        }
    }
    std::println!("worst {worst:?}");
    assert!(worst.0 <= TOLERANCE, "{worst:?}");
}

#[test]
fn most_shares_are_near_the_ideal_with_pinned_units() {
    // Known limit: about one case in 1000 is worse, see the head of `fair`.
    let mut dice = Dice(0x2545_F491_4F6C_DD1D);
    let cases = (0..200).map(|_| dice.case(true));
    let bad: Vec<_> = cases
        .map(|(cpus, units)| worst_error(cpus, &units))
        .filter(|(error, _)| *error > TOLERANCE)
        .collect();
    assert!(bad.len() <= 1, "{bad:?}");
}

#[test]
fn debts_are_not_forgotten_on_a_move() {
    // Each was a stable wrong equilibrium once: what a unit was owed was cut down whenever it was moved, or had a CPU to
    // itself for a moment.
    let cases: [(usize, &[u16]); 5] = [
        (3, &[256, 128, 256, 256, 512, 128, 128]),
        (3, &[512, 128, 128, 512, 128, 128]),
        (4, &[256, 512, 512, 128, 128, 512]),
        (3, &[384, 64, 2048, 384, 1024, 128, 2048, 64]),
        (3, &[1024, 64, 64, 2048, 2048]),
    ];
    for (cpus, weights) in cases {
        let (error, what) = worst_error(cpus, &anywhere(cpus, weights));
        assert!(error <= TOLERANCE, "{what}");
    }
}

#[test]
fn a_unit_that_runs_all_the_time_makes_room_for_a_pinned_one() {
    // The heavy one is behind all others, so it never waits and nobody can take it: it has to go by itself.
    let cases: [(usize, &[(u16, u8)]); 5] = [
        (2, &[(128, 2), (2048, 3), (512, 1)]),
        (2, &[(384, 1), (1024, 3), (512, 2)]),
        (
            2,
            &[
                (512, 3),
                (1024, 2),
                (128, 3),
                (2048, 3),
                (128, 3),
                (64, 2),
                (64, 3),
            ],
        ),
        (
            6,
            &[
                (512, 27),
                (64, 23),
                (1024, 7),
                (512, 41),
                (384, 44),
                (512, 36),
                (1024, 44),
            ],
        ),
        (
            5,
            &[
                (64, 8),
                (256, 31),
                (2048, 31),
                (256, 16),
                (2048, 31),
                (2048, 31),
                (64, 16),
                (256, 2),
                (128, 16),
            ],
        ),
    ];
    for (cpus, units) in cases {
        let (error, what) = worst_error(cpus, units);
        assert!(error <= TOLERANCE, "{what}");
    }
}

#[test]
fn the_oracle_knows_who_can_use_what() {
    assert_eq!(
        ideal(&anywhere(2, &[256, 512, 1024]), 2),
        [1.0 / 3.0, 2.0 / 3.0, 1.0]
    );
    assert_eq!(ideal(&[(256, 1), (256, 1), (256, 3)], 2), [0.5, 0.5, 1.0]);
    assert_eq!(
        ideal(&[(256, 1), (1024, 3), (256, 2), (256, 2)], 2),
        [1.0 / 3.0, 1.0, 1.0 / 3.0, 1.0 / 3.0]
    );
}
