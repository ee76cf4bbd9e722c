//! Who gets how much.

use super::*;
use proptest::prelude::*;
use std::vec::Vec;

/// What units get that never halt, of one runqueue's CPUs: nobody more than one CPU; what one cannot use goes to the
/// others, by weight.
fn ideal(weights: &[u16], cpus: usize) -> Vec<f64> {
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|&unit| core::cmp::Reverse(weights[unit]));
    let mut shares = std::vec![0.0; weights.len()];
    let mut left = cpus as f64;
    let mut weight: f64 = weights.iter().map(|&w| f64::from(w)).sum();
    for unit in order {
        shares[unit] = (left * f64::from(weights[unit]) / weight).min(1.0);
        left -= shares[unit];
        weight -= f64::from(weights[unit]);
    }
    shares
}

fn worst_error(cpus: usize, weights: &[u16], floor: f64) -> (f64, std::string::String) {
    let mut sim = blind(cpus, weights.len());
    for (unit, &weight) in weights.iter().enumerate() {
        sim.run(unit as u32, weighing(weight), BUSY);
    }
    sim.run_for(SECOND);
    let span = 5 * SECOND;
    let got = sim.measure(span, weights.len() as u32);
    let errors = ideal(weights, cpus)
        .into_iter()
        .enumerate()
        .map(|(unit, expected)| {
            let share = got[unit] as f64 / span as f64;
            let error = (share - expected).abs() / expected.max(floor);
            (
                error,
                std::format!(
                    "unit {unit} of {weights:?} on {cpus}: {share:.4}, ideal {expected:.4}"
                ),
            )
        });
    errors.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
}

#[test]
fn weights_hold_within_a_percent() {
    let cases: [(usize, &[u16]); 7] = [
        (1, &[256, 512, 1024]),
        (2, &[256, 512, 1024]),
        (2, &[256, 512, 1024, 2048]),
        (2, &[2048, 1024, 512, 256]),
        (4, &[256, 512, 1024, 2048, 256, 512, 1024, 2048]),
        (2, &[256, 256, 256]),
        (3, &[256, 256, 256, 256]),
    ];
    for (cpus, weights) in cases {
        let (error, what) = worst_error(cpus, weights, 0.0);
        assert!(error <= 0.01, "{error:.4}: {what}");
    }
}

/// In parts of the ideal share or of 0.1, whichever is more. Light ones beside heavy ones seldom take their turn.
const TOLERANCE: f64 = 0.08;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn shares_are_near_the_max_min_ideal(
        cpus in 1_usize..7,
        weights in prop::collection::vec(prop::sample::select(std::vec![64_u16, 128, 256, 384, 512, 1024, 2048]), 1..13),
    ) {
        let (error, what) = worst_error(cpus, &weights, 0.1);
        prop_assert!(error <= TOLERANCE, "{error:.4}: {what}");
    }
}

#[test]
fn a_unit_that_halts_often_gets_no_less_than_it_can_use() {
    let mut sim = blind(1, 3);
    let habit = Habit {
        work: MS,
        sleep: 9 * MS,
    };
    sim.run(0, weighing(256), habit);
    sim.run(1, weighing(256), BUSY);
    sim.run(2, weighing(256), BUSY);
    sim.run_for(SECOND);
    let got = sim.measure(10 * SECOND, 3);
    // It asks for a tenth of the time, and waits for its turn: never for more than the rate limit and a wake.
    assert!(got[0] * 100 >= 10 * SECOND * 8, "{got:?}");
    assert_eq!(got.iter().sum::<u64>(), 10 * SECOND);
}

#[test]
fn an_extreme_weight_neither_starves_nor_is_starved() {
    let mut sim = blind(1, 2);
    sim.run(0, weighing(1), BUSY);
    sim.run(1, weighing(65535), BUSY);
    let got = sim.measure(20 * SECOND, 2);
    // Debts beyond 64 resets are forgotten: a turn of a millisecond each 640 ms at worst.
    assert!(got[0] >= 5 * MS && got[0] <= 60 * MS, "{got:?}");
}

#[test]
fn between_runqueues_loads_are_balanced() {
    let mut sim = machine(Topology::flat(2), 4, config(Arrangement::Cpu));
    sim.watchful = false;
    for unit in 0..4 {
        sim.run(unit, pinned(&[0]), BUSY);
    }
    sim.run_for(100 * MS);
    let now = sim.time();
    for unit in 0..4 {
        let told = sim.sched.set_affinity(v(unit), CpuSet::ALL, now).unwrap();
        sim.tickle(told);
    }
    sim.run_for(2 * SECOND);
    let got = sim.measure(10 * SECOND, 4);
    for ran in &got {
        assert_share(*ran, 0.5, 10 * SECOND, 30.0, "two and two");
    }
}
