//! Whatever is asked, there is an answer that can be slept with.

use super::*;
use crate::cstate::MAX_STATES;
use crate::options::{CStateOptions, EarlyIrq, MaxCState, StatesOff, TableEdit};
use proptest::prelude::*;

fn any_identity() -> impl Strategy<Value = Identity> {
    let vendor = prop_oneof![
        4 => Just(Vendor::Intel),
        2 => Just(Vendor::Amd),
        1 => Just(Vendor::Hygon),
        1 => Just(Vendor::Zhaoxin),
        1 => Just(Vendor::Other),
    ];
    let family = prop_oneof![4 => Just(6), 1 => 0x0Fu16..0x1C, 1 => any::<u16>()];
    let known = (0..crate::cstate::models::MODELS.len())
        .prop_map(|at| crate::cstate::models::MODELS[at].model);
    let model = prop_oneof![3 => known, 1 => any::<u8>()];
    (vendor, family, model, 0u8..16).prop_map(|(vendor, family, model, stepping)| Identity {
        vendor,
        family,
        model,
        stepping,
    })
}

fn any_verdict() -> impl Strategy<Value = MwaitVerdict> {
    prop_oneof![
        3 => Just(MwaitVerdict::Works),
        1 => Just(MwaitVerdict::Untested),
        1 => Just(MwaitVerdict::GeneralProtection),
        1 => Just(MwaitVerdict::NeverSleeps),
    ]
}

fn any_facts() -> impl Strategy<Value = CpuFacts> {
    (
        any_identity(),
        any::<[bool; 8]>(),
        prop_oneof![any::<u32>(), Just(ALL_CLASSES), Just(0)],
        0u32..4,
        any_verdict(),
        any_verdict(),
    )
        .prop_map(|(identity, bits, substates, ecx, open, masked)| CpuFacts {
            identity,
            monitor: bits[0] || bits[1],
            clflush: bits[2],
            hypervisor: bits[3],
            mwait: MwaitLeaf::from_registers(64, 64 * u32::from(bits[4]), ecx, substates),
            arat: bits[5],
            sgx: bits[6],
            amx: bits[7],
            nonstop_tsc: bits[1],
            test: MwaitTest {
                open,
                masked,
                store_wakes: Some(bits[0]),
            },
        })
}

fn any_options() -> impl Strategy<Value = CStateOptions> {
    let max = proptest::option::of((0u8..9, proptest::option::of(0u8..9)));
    let edits = proptest::collection::vec(
        (
            prop_oneof![Just("C1"), Just("C1E"), Just("C6"), Just("C9")],
            proptest::option::of(0u64..6000),
            proptest::option::of(0u64..110_000),
        ),
        0..4,
    );
    (
        any::<[bool; 7]>(),
        max,
        edits,
        prop_oneof![Just(0), any::<u32>()],
        proptest::option::of(1u32..100),
        proptest::option::of(any::<bool>()),
        0..3,
    )
        .prop_map(
            |(bits, max, edits, mask, latency_factor, preferred_c1e, early)| CStateOptions {
                cpuidle: bits[0] || bits[1],
                mwait_idle: bits[2] || bits[3],
                edits: edits
                    .into_iter()
                    .map(|(name, latency, residency)| TableEdit {
                        name: name.to_string(),
                        latency: latency.map(Micros::new),
                        residency: residency.map(Micros::new),
                    })
                    .collect(),
                max_cstate: max.map(|(class, substate)| MaxCState { class, substate }),
                states_off: StatesOff {
                    mask,
                    names: vec![],
                },
                latency_factor,
                early_irq: [EarlyIrq::Auto, EarlyIrq::Off, EarlyIrq::Force][early as usize],
                force_mwait: bits[4],
                preferred_c1e,
                tsc_unstable: bits[5],
                cpuid: vec![],
                acpi_cst: bits[6],
            },
        )
}

fn any_cst() -> impl Strategy<Value = Option<Cst>> {
    let method = prop_oneof![
        any::<u8>().prop_map(|hint| CstMethod::Mwait {
            hint: MwaitHint::new(u32::from(hint)),
            check_bus_master: hint & 1 != 0,
        }),
        any::<u32>().prop_map(|hint| CstMethod::Mwait {
            hint: MwaitHint::new(hint),
            check_bus_master: false,
        }),
        any::<u16>().prop_map(CstMethod::Io),
        Just(CstMethod::Halt),
    ];
    let kind = prop_oneof![Just(AcpiType::C1), Just(AcpiType::C2), Just(AcpiType::C3)];
    let entry = (method, kind, 0u64..100_000).prop_map(|(method, acpi_type, latency)| CstEntry {
        method,
        acpi_type,
        latency: Micros::new(latency),
    });
    proptest::option::of(proptest::collection::vec(entry, 0..8).prop_map(|entries| cst(&entries)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn there_is_always_an_answer_that_keeps_the_rules(
        facts in any_facts(),
        options in any_options(),
        listed in any_cst(),
        numbers in any::<[Option<u64>; 4]>(),
        fadt in proptest::option::of((any::<u32>(), 0u16..200, 0u16..2000, any::<bool>())),
        p_blk in proptest::option::of(any::<u16>()),
        (packages, cpus, smt, restores_tsc, timer_broadcast) in (0u32..9, 0u32..9, any::<bool>(), any::<bool>(), any::<bool>()),
        idle in prop_oneof![3 => Just(IdleMethod::Auto), 1 => Just(IdleMethod::Halt), 1 => Just(IdleMethod::Poll)],
    ) {
        let mut query = Query::new(facts, idle, &options);
        query.msrs.package_control = numbers[0];
        query.msrs.power_control = numbers[1];
        query.msrs.feature_control = numbers[2];
        query.msrs.irtl = [numbers[3]; 5];
        query.msrs.interrupt_pending = numbers[3];
        query.topology = Topology { packages, cpus, smt };
        query.support = Support { timer_broadcast, restores_tsc, directed_eoi: false };
        query.firmware.cst = listed.as_ref();
        query.firmware.p_blk = p_blk;
        query.firmware.fadt = fadt.map(|(flags, lvl2_latency, lvl3_latency, pm2_control)| Fadt {
            flags, lvl2_latency, lvl3_latency, cst_control: 1, pm2_control,
        });
        let selected = select(&query);

        prop_assert!((1..=MAX_STATES).contains(&selected.usable.count()));
        prop_assert!(selected.table.count() <= selected.usable.count());
        for state in selected.usable.states() {
            if let EntryMethod::Mwait { hint, gate } = state.method {
                // MWAIT only where it is offered, and where it raised no exception.
                prop_assert!(facts.monitor && facts.mwait.largest_line != 0);
                prop_assert!(!facts.mwait.extensions || hint.reported_by(facts.mwait.substates));
                let verdict = match gate {
                    IrqGate::Open => facts.test.open,
                    IrqGate::Masked => facts.test.masked,
                };
                prop_assert!(!verdict.faults());
                prop_assert!(verdict == MwaitVerdict::Works || options.force_mwait);
                if gate == IrqGate::Open {
                    prop_assert!(facts.nonstop_tsc && !options.tsc_unstable);
                    prop_assert!(!state.flags.intersects(CStateFlags::INIT_XSTATE | CStateFlags::CLEAR_SPEC_CTRL));
                } else {
                    prop_assert!(facts.mwait.interrupt_break);
                }
            }
            prop_assert!(!state.flags.contains(CStateFlags::UNUSABLE));
            prop_assert!(!state.flags.contains(CStateFlags::TSC_STOPS) || restores_tsc);
            prop_assert!(!state.flags.contains(CStateFlags::TIMER_STOPS) || timer_broadcast);
        }
        if let Some(limit) = options.max_cstate {
            for one in selected.considered.iter().filter(|one| one.verdict.is_usable()) {
                prop_assert!(one.class <= u32::from(limit.class).max(1));
            }
        }
        // One instruction with one hint is one state, unless the firmware itself says it twice.
        let halts = selected.usable.states().iter().filter(|state| state.method == EntryMethod::Halt);
        let firmware = listed.as_ref().map_or(0, |cst| cst.entries.len());
        prop_assert!(halts.count() <= 1 + firmware);
        // The parking place and the stand-in are usable.
        if let EntryMethod::Mwait { gate, .. } = selected.parking.method {
            prop_assert_eq!(gate, IrqGate::Masked);
        }
        prop_assert!(selected.safe().method != EntryMethod::Poll);
        // Each line is one line.
        for one in &selected.considered {
            prop_assert!(!one.to_string().contains('\n'));
        }
        for line in selected.notes.iter().map(ToString::to_string).chain(selected.msr_writes.iter().map(ToString::to_string)) {
            prop_assert!(!line.is_empty() && !line.contains('\n'));
        }
    }
}
