//! MADT: the CPUs, the IOAPICs, and where ISA interrupts go (ACPI specification 6.5, 5.2.12).
use super::{CpuEntry, FirmwareInfo, IoApicEntry, Override, Problem, tables};
use acpi::madt::{Madt, MadtEntry};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::pin::Pin;
use lull_core::units::MAX_CPUS;

const ENABLED: u32 = 1 << 0;
const ONLINE_CAPABLE: u32 = 1 << 1;
/// Header, local APIC address, flags.
const FIXED: usize = 44;
/// 8-bit APIC ids end before the broadcast id.
const BROADCAST_8: u8 = 0xFF;

/// How many entries, of those that the `acpi` crate yields, can be walked safely; and what is wrong behind them.
pub(super) fn sound_entries(table: &[u8]) -> (usize, Option<String>) {
    /// The last type that the crate yields.
    const LAST_KNOWN: u8 = 0x10;
    let Some(mut rest) = table.get(FIXED..) else {
        return (
            0,
            Some(format!(
                "its length is {}, expected {FIXED} or more",
                table.len()
            )),
        );
    };
    let mut known = 0;
    while !rest.is_empty() {
        let (Some(&kind), Some(&length)) = (rest.first(), rest.get(1)) else {
            return (known, Some(String::from("its last entry is cut")));
        };
        // Lengths by the specification, for the types that are read here; a header for the others.
        let least = match kind {
            0 => 8,
            1 => 12,
            2 => 10,
            5 => 12,
            9 => 16,
            _ => 2,
        };
        let length = usize::from(length);
        let Some(next) = rest.get(length..).filter(|_| length >= least) else {
            return (
                known,
                Some(format!(
                    "an entry of type {kind} has length {length} with {} bytes left",
                    rest.len()
                )),
            );
        };
        known += usize::from(kind <= LAST_KNOWN);
        rest = next;
    }
    (known, None)
}

struct Listed {
    apic_id: u32,
    processor: u32,
    flags: u32,
}

/// Reads the first `sound` entries into `info`.
pub(super) fn read(madt: Pin<&Madt>, sound: usize, info: &mut FirmwareInfo) {
    info.local_apic = Some(u64::from(madt.local_apic_address));
    let mut listed = Vec::new();
    for entry in madt.entries().take(sound) {
        match entry {
            MadtEntry::LocalApic(e) if e.apic_id != BROADCAST_8 => listed.push(Listed {
                apic_id: e.apic_id.into(),
                processor: e.processor_id.into(),
                flags: e.flags,
            }),
            MadtEntry::LocalX2Apic(e) => {
                listed.push(Listed {
                    apic_id: e.x2apic_id,
                    processor: e.processor_uid,
                    flags: e.flags,
                });
            }
            MadtEntry::IoApic(e) => info.io_apics.push(IoApicEntry {
                id: e.io_apic_id,
                address: e.io_apic_address.into(),
                gsi_base: e.global_system_interrupt_base,
            }),
            MadtEntry::InterruptSourceOverride(e) if e.bus == 0 => {
                let flags = e.flags;
                info.overrides.push(Override {
                    isa_irq: e.irq,
                    gsi: e.global_system_interrupt,
                    // MPS INTI flags: 11b is active low, 11b is level; "conforms to the bus" is ISA's high, edge.
                    active_low: flags & 0b11 == 0b11,
                    level: flags >> 2 & 0b11 == 0b11,
                });
            }
            MadtEntry::LocalApicAddressOverride(e) => info.local_apic = Some(e.local_apic_address),
            _ => (),
        }
    }
    sort_out(&listed, info);
}

/// Takes the usable CPUs, and names the others.
fn sort_out(listed: &[Listed], info: &mut FirmwareInfo) {
    let mut disabled = Vec::new();
    let mut absent = Vec::new();
    let mut doubled = Vec::new();
    let mut beyond = Vec::new();
    for cpu in listed {
        if cpu.flags & ENABLED == 0 {
            if cpu.flags & ONLINE_CAPABLE != 0 {
                &mut absent
            } else {
                &mut disabled
            }
            .push(cpu.apic_id);
        } else if info.cpus.iter().any(|known| known.apic_id == cpu.apic_id) {
            doubled.push(cpu.apic_id);
        } else if info.cpus.len() >= MAX_CPUS {
            beyond.push(cpu.apic_id);
        } else {
            info.cpus.push(CpuEntry {
                apic_id: cpu.apic_id,
                processor: cpu.processor,
            });
        }
    }
    let mut say = |ids: &[u32], why: &str, expected: &str| {
        if !ids.is_empty() {
            info.problems.push(Problem::new(list(ids), why, expected));
        }
    };
    say(
        &disabled,
        "disabled by firmware, not started",
        "enabled CPUs (MADT flags bit 0)",
    );
    say(
        &absent,
        "can be added to the running machine but are not there, not started",
        "enabled CPUs (MADT flags bit 0)",
    );
    say(
        &doubled,
        "listed more than once in the MADT, used once",
        "one entry for each APIC id",
    );
    say(
        &beyond,
        "more CPUs than supported, not started",
        &format!("at most {MAX_CPUS} CPUs"),
    );
}

/// `APIC ids 1, 2, 5`, cut where it gets long.
fn list(ids: &[u32]) -> String {
    const SHOWN: usize = 8;
    let mut text = String::from(if ids.len() == 1 {
        "APIC id "
    } else {
        "APIC ids "
    });
    for (i, id) in ids.iter().take(SHOWN).enumerate() {
        text.push_str(&format!("{}{id}", if i == 0 { "" } else { ", " }));
    }
    if ids.len() > SHOWN {
        text.push_str(&format!(" and {} more", ids.len() - SHOWN));
    }
    text
}

/// The name of the table in problems.
pub(super) fn table_name() -> String {
    tables::name(*b"APIC")
}
