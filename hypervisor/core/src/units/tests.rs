//! Arithmetic that saturates, and conversions that are exact.

use super::*;
use proptest::prelude::*;

#[test]
fn times_saturate_instead_of_wrapping() {
    assert_eq!(Ticks::new(3) - Ticks::new(5), Ticks::ZERO);
    assert_eq!(Ticks::MAX + Ticks::new(1), Ticks::MAX);
    assert_eq!(Ticks::new(3).checked_sub(Ticks::new(5)), None);
    assert_eq!(Micros::new(u64::MAX).to_nanos(), Nanos::MAX);
}

#[test]
fn tick_rate_converts_exactly() {
    let odd = TickRate::from_hz(2_893_202_000).unwrap();
    assert_eq!(
        odd.to_nanos(Ticks::new(2_893_202_000 * 3600 * 24 * 365)),
        Nanos::new(31_536_000_000_000_000)
    );
    // 1 ns is 2.89 ticks: rounding up makes 3, since 2 would be early.
    assert_eq!(odd.ticks(Nanos::new(1)), Ticks::new(3));
    assert_eq!(odd.ticks(Nanos::MAX), Ticks::MAX);
    assert_eq!(TickRate::from_hz(0), None);
    assert_eq!(std::format!("{odd}"), "2893.202 MHz");
}

proptest! {
    #[test]
    fn conversion_never_makes_a_deadline_early(hz in 1_u64..10_000_000_000, nanos in 0_u64..1 << 53) {
        let rate = TickRate::from_hz(hz).unwrap();
        prop_assert!(rate.to_nanos(rate.ticks(Nanos::new(nanos))) >= Nanos::new(nanos));
    }
}
