//! Who is reached by what.
use super::*;
use std::vec::Vec;

fn guests(n: u32, identity: impl Fn(u32) -> Identity) -> Vec<LapicShared> {
    (0..n)
        .map(|id| {
            let lapic = LapicShared::new(id);
            lapic.publish(identity(id));
            lapic
        })
        .collect()
}

fn x2() -> Identity {
    Identity {
        mode: Mode::X2Apic,
        enabled: true,
        cluster: false,
        logical: 0,
    }
}

fn flat(id: u32) -> Identity {
    Identity {
        mode: Mode::XApic,
        enabled: true,
        cluster: false,
        logical: 1 << (id & 7),
    }
}

fn clustered(id: u32) -> Identity {
    let logical = ((id / 4) as u8) << 4 | 1 << (id % 4);
    Identity {
        mode: Mode::XApic,
        enabled: true,
        cluster: true,
        logical,
    }
}

fn reached(icr: Icr, sender: usize, lapics: &[LapicShared]) -> Vec<usize> {
    let mut who = Vec::new();
    icr.deliver(sender, lapics.iter(), &AtomicU32::new(0), |index| {
        match icr.delivery {
            Delivery::Fixed | Delivery::LowestPriority => {
                assert!(lapics[index].irr().take(icr.vector), "bit before kick");
            }
            _ => assert!(
                !lapics[index].take_requests().0.is_empty(),
                "request before kick"
            ),
        }
        who.push(index);
    });
    assert!(
        lapics.iter().all(|l| l.irr().highest().is_none()),
        "nobody else has it"
    );
    who
}

fn command(low: u32, dest: u32, mode: Mode) -> Icr {
    Icr::decode(u64::from(low) | u64::from(dest) << 32, mode)
}

#[test]
fn shorthands() {
    let lapics = guests(4, |_| x2());
    assert_eq!(reached(command(0x4_0055, 9, Mode::X2Apic), 2, &lapics), [2]);
    assert_eq!(
        reached(command(0x8_0055, 9, Mode::X2Apic), 2, &lapics),
        [0, 1, 2, 3]
    );
    assert_eq!(
        reached(command(0xc_0055, 9, Mode::X2Apic), 2, &lapics),
        [0, 1, 3]
    );
    assert_eq!(reached(Icr::self_ipi(0x55), 1, &lapics), [1]);
}

#[test]
fn physical_ids_and_their_broadcasts() {
    let lapics = guests(20, |_| x2());
    assert_eq!(reached(command(0x55, 17, Mode::X2Apic), 0, &lapics), [17]);
    assert_eq!(reached(command(0x55, 77, Mode::X2Apic), 0, &lapics), []);
    assert_eq!(
        reached(command(0x55, u32::MAX, Mode::X2Apic), 0, &lapics).len(),
        20
    );
    let lapics = guests(4, flat);
    assert_eq!(
        reached(command(0x55, 3 << 24, Mode::XApic), 0, &lapics),
        [3]
    );
    assert_eq!(
        reached(command(0x55, 0xff << 24, Mode::XApic), 0, &lapics),
        [0, 1, 2, 3]
    );
}

#[test]
fn logical_ids_in_all_three_models() {
    let lapics = guests(8, flat);
    assert_eq!(
        reached(command(0x855, 0x81 << 24, Mode::XApic), 0, &lapics),
        [0, 7]
    );
    let lapics = guests(8, clustered);
    assert_eq!(
        reached(command(0x855, 0x16 << 24, Mode::XApic), 0, &lapics),
        [5, 6]
    );
    assert_eq!(
        reached(command(0x855, 0x26 << 24, Mode::XApic), 0, &lapics),
        []
    );
    let lapics = guests(40, |_| x2());
    assert_eq!(
        reached(command(0x855, 0x1_8001, Mode::X2Apic), 0, &lapics),
        [16, 31]
    );
    assert_eq!(
        reached(command(0x855, 0x2_00ff, Mode::X2Apic), 0, &lapics),
        [32, 33, 34, 35, 36, 37, 38, 39]
    );
    assert_eq!(x2apic_ldr(0x21), 0x2_0002);
}

#[test]
fn lowest_priority_takes_turns() {
    let lapics = guests(8, |id| Identity {
        enabled: id != 0,
        ..flat(id)
    });
    let turn = AtomicU32::new(0);
    let mut who = Vec::new();
    for _ in 0..4 {
        command(0x955, 0x85 << 24, Mode::XApic).deliver(1, lapics.iter(), &turn, |i| who.push(i));
    }
    assert_eq!(who, [2, 7, 2, 7], "0 is software-disabled");
}

#[test]
fn nmi_init_and_startup() {
    let lapics = guests(3, |id| Identity {
        enabled: id != 1,
        ..x2()
    });
    assert_eq!(
        reached(command(0x400, 1, Mode::X2Apic), 0, &lapics),
        [1],
        "NMI needs no SVR enable"
    );
    assert_eq!(reached(command(0x4500, 1, Mode::X2Apic), 0, &lapics), [1]);
    assert_eq!(
        reached(command(0x8500, 1, Mode::X2Apic), 0, &lapics),
        [],
        "de-assert"
    );
    assert_eq!(
        reached(command(0xc_4500, 0, Mode::X2Apic), 0, &lapics),
        [1, 2]
    );
    assert_eq!(
        reached(command(0x8_4500, 0, Mode::X2Apic), 0, &lapics),
        [1, 2],
        "not oneself"
    );
    command(0x46f0, 2, Mode::X2Apic).deliver(0, lapics.iter(), &AtomicU32::new(0), |_| {});
    assert_eq!(lapics[2].take_requests(), (Requests::SIPI, 0xf0));
}

#[test]
fn what_cannot_be_taken_reaches_nobody() {
    let lapics = guests(3, |id| Identity {
        mode: if id == 1 { Mode::Disabled } else { Mode::XApic },
        ..flat(id)
    });
    assert_eq!(
        reached(command(0x8_0055, 0, Mode::XApic), 0, &lapics),
        [0, 2]
    );
    assert_eq!(
        reached(command(0x8_0400, 0, Mode::XApic), 0, &lapics),
        [0, 2]
    );
    assert_eq!(
        reached(command(0x8_000f, 0, Mode::XApic), 0, &lapics),
        [],
        "illegal vector"
    );
    assert_eq!(
        reached(command(0x8_0255, 0, Mode::XApic), 0, &lapics),
        [],
        "SMI"
    );
    assert!(command(0x8_000f, 0, Mode::XApic).has_illegal_vector());
    assert!(!command(0x8_040f, 0, Mode::XApic).has_illegal_vector());
}

#[test]
fn many_senders_lose_no_vector() {
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::SeqCst;
    const SENDERS: usize = 8;
    const ROUNDS: u64 = 4000;
    let lapics = guests(9, |_| x2());
    let kicks = AtomicU64::new(0);
    let taken: [AtomicU64; SENDERS] = Default::default();
    let spin = || {
        std::hint::spin_loop();
        std::thread::yield_now();
    };
    std::thread::scope(|scope| {
        for sender in 1..=SENDERS {
            let (lapics, kicks, taken) = (&lapics, &kicks, &taken);
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    let icr = command(0x40 + sender as u32, 0, Mode::X2Apic);
                    icr.deliver(sender, lapics.iter(), &AtomicU32::new(0), |index| {
                        assert_eq!(index, 0);
                        kicks.fetch_add(1, SeqCst);
                    });
                    // The next one only after this one was taken: a lost vector hangs the count below.
                    while taken[sender - 1].load(SeqCst) < round {
                        spin();
                    }
                }
            });
        }
        let mut idle = 0u64;
        let total = || taken.iter().map(|t| t.load(SeqCst)).sum::<u64>();
        while total() < SENDERS as u64 * ROUNDS {
            match lapics[0].irr().highest() {
                Some(vector) if lapics[0].irr().take(vector) => {
                    idle = 0;
                    taken[usize::from(vector - 0x41)].fetch_add(1, SeqCst);
                }
                _ => {
                    idle += 1;
                    assert!(idle < 50_000_000, "a vector was lost");
                    spin();
                }
            }
        }
    });
    assert_eq!(kicks.load(SeqCst), SENDERS as u64 * ROUNDS);
}
