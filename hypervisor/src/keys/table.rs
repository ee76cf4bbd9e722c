//! Which key does what.

use lull_core::platform::Clock;
use lull_core::units::Nanos;

use super::{barriers, choice, clocks, cstates, guests, prompt, runqueues, timers, wakes, who};
use crate::apic::ipi;
use crate::machine::BareMetal;
use crate::run::counters::Reading;
use crate::run::{Running, end};
use crate::{cpu, dumpln, time};

/// How long key `d` waits for the answers of all CPUs.
const NMI_PATIENCE: Nanos = Nanos::new(200_000_000);

struct Key {
    byte: u8,
    help: &'static str,
    /// Part of `*`: shows something, and changes nothing.
    shows: bool,
    run: fn(&'static Running),
}

const fn shows(byte: u8, help: &'static str, run: fn(&'static Running)) -> Key {
    Key {
        byte,
        help,
        shows: true,
        run,
    }
}

const fn acts(byte: u8, help: &'static str, run: fn(&'static Running)) -> Key {
    Key {
        byte,
        help,
        shows: false,
        run,
    }
}

const KEYS: [Key; 16] = [
    acts(b'h', "this help", |_| help()),
    shows(
        b'c',
        "C-states: usage, residency and interrupt time of every CPU",
        cstates_reading,
    ),
    shows(b'C', "C-states: which each CPU has, and why", |running| {
        choice::print(running)
    }),
    shows(b'r', "runqueues", runqueues::print),
    shows(b'q', "guests and their vCPUs", guests::print),
    shows(b'a', "timers", timers::print),
    shows(b't', "clocks", |_| clocks::print()),
    shows(b'i', "IPIs and wakes", wakes::print),
    shows(b'w', "who woke whom", who::print),
    acts(b'W', "count anew who wakes whom", who::reset),
    shows(
        b'v',
        "CPU vulnerabilities, and the barriers between guests",
        barriers::print,
    ),
    shows(b'd', "registers of all CPUs (by NMI)", registers),
    acts(b'*', "all of the above that show something", all),
    acts(
        b':',
        "a command follows, and Enter; `help` lists them",
        |_| prompt::open(),
    ),
    acts(b'R', "reboot", |running| end::reboot(running)),
    acts(b'Q', "report and power off", |running| {
        running.machine.stop()
    }),
];

/// A key was pressed. Called by the boot CPU, with no lock held.
pub fn press(running: &'static Running, byte: u8) {
    if prompt::takes(running, byte) {
        return;
    }
    match KEYS.iter().find(|key| key.byte == byte) {
        // Its prompt says it all.
        Some(key) if key.byte == b':' => (key.run)(running),
        Some(key) => {
            dumpln!("'{}' pressed -> {}", char::from(byte), key.help);
            (key.run)(running);
        }
        None if byte.is_ascii_graphic() => {
            dumpln!(
                "'{}' pressed -> no such key: h lists them",
                char::from(byte)
            );
        }
        None => {}
    }
}

fn help() {
    for key in &KEYS {
        dumpln!("  {}  {}", char::from(key.byte), key.help);
    }
}

fn all(running: &'static Running) {
    for key in KEYS.iter().filter(|key| key.shows) {
        dumpln!("'{}' -> {}", char::from(key.byte), key.help);
        (key.run)(running);
    }
}

fn cstates_reading(running: &'static Running) {
    let reading = Reading::of(running.rows());
    cstates::print(&reading, time::rate());
    reading.emit("key", BareMetal.now());
}

fn registers(_: &'static Running) {
    cpu::dump::all_cpus(ipi::send_nmi, time::rate().ticks(NMI_PATIENCE));
}
