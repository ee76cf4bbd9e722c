//! The deadline queue against a map that is searched whole every time.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn vcpu(number: u32) -> TimerKey {
    TimerKey::Vcpu(VcpuId::new(number))
}

#[test]
fn expires_in_order_and_not_before_time() {
    let mut queue = DeadlineQueue::new(4);
    queue.set(vcpu(2), Ticks::new(30)).unwrap();
    queue.set(vcpu(1), Ticks::new(10)).unwrap();
    queue.set(TimerKey::Slice, Ticks::new(10)).unwrap();
    assert_eq!(queue.pop_expired(Ticks::new(9)), None);
    assert_eq!(
        queue.pop_expired(Ticks::new(10)),
        Some((TimerKey::Slice, Ticks::new(10)))
    );
    assert_eq!(
        queue.pop_expired(Ticks::new(10)),
        Some((vcpu(1), Ticks::new(10)))
    );
    assert_eq!(queue.pop_expired(Ticks::new(10)), None);
    assert_eq!(queue.next_deadline(), Some(Ticks::new(30)));
}

#[test]
fn a_vcpu_beyond_the_capacity_is_an_error_not_a_panic() {
    let mut queue = DeadlineQueue::new(1);
    assert_eq!(
        queue.set(vcpu(1), Ticks::ZERO),
        Err(UnknownVcpu(VcpuId::new(1)))
    );
    assert_eq!(
        queue.set(vcpu(u32::MAX), Ticks::ZERO),
        Err(UnknownVcpu(VcpuId::new(u32::MAX)))
    );
    assert_eq!(queue.remove(vcpu(1)), None);
    assert!(queue.is_empty());
}

#[derive(Clone, Debug)]
enum Op {
    Set(TimerKey, u64),
    Remove(TimerKey),
    Pop(u64),
}

fn any_key() -> impl Strategy<Value = TimerKey> {
    prop_oneof![
        Just(TimerKey::Slice),
        Just(TimerKey::RunFor),
        Just(TimerKey::Console),
        (0_u32..12).prop_map(vcpu)
    ]
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (any_key(), 0_u64..50).prop_map(|(key, at)| Op::Set(key, at)),
        2 => any_key().prop_map(Op::Remove),
        1 => (0_u64..60).prop_map(Op::Pop),
    ]
}

proptest! {
    /// Against a map that is searched whole every time.
    #[test]
    fn behaves_like_a_sorted_map(ops in prop::collection::vec(any_op(), 0..200)) {
        let mut queue = DeadlineQueue::new(12);
        let capacity = queue.heap.capacity();
        let mut model = BTreeMap::new();
        for op in ops {
            match op {
                Op::Set(key, at) => {
                    queue.set(key, Ticks::new(at)).unwrap();
                    model.insert(key, Ticks::new(at));
                }
                Op::Remove(key) => prop_assert_eq!(queue.remove(key), model.remove(&key)),
                Op::Pop(now) => {
                    let now = Ticks::new(now);
                    let first = model.iter().map(|(&key, &at)| (at, key)).min().filter(|&(at, _)| at <= now);
                    prop_assert_eq!(queue.pop_expired(now), first.map(|(at, key)| (key, at)));
                    if let Some((_, key)) = first {
                        model.remove(&key);
                    }
                }
            }
            prop_assert_eq!(queue.next_deadline(), model.values().copied().min());
            prop_assert_eq!(queue.iter().collect::<BTreeMap<_, _>>(), model.clone());
            for key in model.keys() {
                prop_assert_eq!(queue.deadline(*key), model.get(key).copied());
            }
        }
        prop_assert_eq!(queue.heap.capacity(), capacity, "no allocation after creation");
    }
}
