//! `sti; hlt` for ever: no timer armed, no interrupt source, nothing that could wake it.
//!
//! A host must be able to let it lie: `PASS` comes first, and then nothing more. Whatever wakes it is counted and told, once for
//! each power of two, so that a host that wakes it needlessly is heard without being flooded.
//!
//! Options: `for-ms=` (ends after that, by one timer; then every other wake is a failure).
#![no_std]
#![no_main]

use core::sync::atomic::AtomicU32;
use guest_tests::{Machine, check_eq, cpu, figure, note, print, timer, trap, tsc, verdict};

guest_tests::guest_test! {
    name: "quiet",
    summary: "halts for ever, with nothing to wake it",
    cmdline: "",
    vcpus: 1,
    memory_mib: 16,
    end: Never,
    main: main,
    ap: trap::no_ap,
    interrupt: trap::no_interrupts,
}

fn main(machine: &Machine<'_>) {
    let options = &machine.options;
    let limit = options.number_if_given("for-ms", 1..=10_000_000);
    options.report_unknown();
    print!("quiet: halting");
    if let Some(millis) = limit {
        let wake = timer::sleep_until(cpu::now().after(tsc::rate().millis(millis)));
        figure!("halts", wake.halts, "halts");
        check_eq!(wake.spurious, 0, "wakes that nothing caused");
        return;
    }
    timer::cancel();
    verdict::pass();
    let never = AtomicU32::new(0);
    let mut wakes: u64 = 0;
    loop {
        cpu::halt_while(&never, 0);
        wakes += 1;
        if wakes.is_power_of_two() {
            note!("woken {wakes} times by nothing");
        }
    }
}
