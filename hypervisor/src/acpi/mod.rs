//! Firmware tables: what the machine says about itself.
//!
//! [`read`] turns the tables into one [`FirmwareInfo`] and a list of [`Problem`]s. It never fails: without usable
//! tables the machine has one CPU, and the problems say why. Firmware is not trusted: lengths, checksums and pointers
//! are checked before use, and the `acpi` crate, which decodes the tables, sees checked copies only.
//! Called once, by the boot CPU.
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

pub mod aml;
mod copies;
pub mod cst;
mod fadt;
mod madt;
pub mod physmem;
pub mod power;
pub mod s5;
mod tables;

use copies::Copies;
use physmem::PhysMem;
use tables::{Root, Survey};

/// One usable CPU of the MADT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuEntry {
    /// Its local APIC id: 8 bits in xAPIC mode, 32 in x2APIC mode.
    pub apic_id: u32,
    /// Firmware's number for the processor object.
    pub processor: u32,
}

/// One IOAPIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoApicEntry {
    /// Its APIC id.
    pub id: u8,
    /// Physical address of its registers.
    pub address: u64,
    /// Number of its first input among all global system interrupts.
    pub gsi_base: u32,
}

/// An ISA interrupt that is not wired to the input of its own number, or not as ISA does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override {
    /// The ISA interrupt.
    pub isa_irq: u8,
    /// The global system interrupt that it is wired to.
    pub gsi: u32,
    /// Active low instead of active high.
    pub active_low: bool,
    /// Level-triggered instead of edge-triggered.
    pub level: bool,
}

/// The HPET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HpetEntry {
    /// Physical address of its registers.
    pub address: u64,
}

/// The ACPI PM timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PmTimer {
    /// I/O port of the 32-bit register.
    pub port: u16,
    /// It counts 32 bits and not 24.
    pub is_32_bit: bool,
}

/// What firmware says about this machine.
#[derive(Clone, Debug, Default)]
pub struct FirmwareInfo {
    /// Enabled CPUs, each once, in MADT order. Empty without a usable MADT: only the boot CPU is known then.
    pub cpus: Vec<CpuEntry>,
    /// Physical address of the local APICs, as the MADT says.
    pub local_apic: Option<u64>,
    /// The IOAPICs.
    pub io_apics: Vec<IoApicEntry>,
    /// ISA interrupts with a special wiring.
    pub overrides: Vec<Override>,
    /// The HPET, if there is one in memory space.
    pub hpet: Option<HpetEntry>,
    /// SMI_CMD, where the firmware is told what is taken over from it.
    pub smi_command: Option<u16>,
    /// The PM timer, if there is one at a port.
    pub pm_timer: Option<PmTimer>,
    /// How to reset the machine.
    pub reset: Option<power::ResetRegister>,
    /// How to switch the machine off.
    pub power_off: Option<power::PowerOff>,
    /// Of the FADT, what C-states need.
    pub c_states: cst::FadtStates,
    /// The tables with the firmware's code, DSDT first, until [`cst::read`] has taken them.
    pub aml: Vec<aml::AmlTable>,
    /// What is wrong with the tables.
    pub problems: Vec<Problem>,
}

/// One thing that is wrong with firmware's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The table or the CPU.
    pub name: String,
    /// What is wrong.
    pub why: String,
    /// What would be right.
    pub expected: String,
}

impl Problem {
    fn new(name: impl ToString, why: impl ToString, expected: impl ToString) -> Self {
        Self {
            name: name.to_string(),
            why: why.to_string(),
            expected: expected.to_string(),
        }
    }
}

/// Where an ISA interrupt arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wiring {
    /// Global system interrupt.
    pub gsi: u32,
    /// Active low.
    pub active_low: bool,
    /// Level-triggered.
    pub level: bool,
}

impl FirmwareInfo {
    /// Where ISA interrupt `irq` arrives: as an override says, else at the input of its own number, active high, edge.
    pub fn isa_wiring(&self, irq: u8) -> Wiring {
        match self.overrides.iter().find(|o| o.isa_irq == irq) {
            Some(o) => Wiring {
                gsi: o.gsi,
                active_low: o.active_low,
                level: o.level,
            },
            None => Wiring {
                gsi: irq.into(),
                active_low: false,
                level: false,
            },
        }
    }
}

/// Reads the tables. `rsdp` is where the loader says the RSDP is; without it, or if there is none, it is searched
/// for where a BIOS puts it.
pub fn read(mem: &impl PhysMem, rsdp: Option<u64>) -> FirmwareInfo {
    let mut info = FirmwareInfo::default();
    let survey = match rsdp.filter(|at| *at != 0) {
        Some(at) => tables::survey(mem, at).or_else(|why| {
            tables::search_bios(mem)
                .filter(|other| *other != at)
                .map_or(Err(why), |other| tables::survey(mem, other))
        }),
        None => match tables::search_bios(mem) {
            Some(at) => tables::survey(mem, at),
            None => Err((
                "RSDP".to_string(),
                "the loader gave none, and there is none in the BIOS area".to_string(),
            )),
        },
    };
    match survey {
        Ok(survey) => read_tables(mem, &survey, &mut info),
        Err((table, why)) => {
            info.problems.push(Problem::new(
                table,
                why + ": running on one CPU",
                "valid ACPI tables",
            ));
        }
    }
    info
}

fn read_tables(mem: &impl PhysMem, survey: &Survey, info: &mut FirmwareInfo) {
    for (table, why) in &survey.damaged {
        info.problems.push(Problem::new(
            table,
            format_args!("{why}, table not used"),
            "a valid ACPI table",
        ));
    }
    let (revision, root) = match survey.root {
        Root::Rsdt(at) => (0, at),
        Root::Xsdt(at) => (2, at),
    };
    let Some(crate_tables) = open(mem, revision, root) else {
        info.problems.push(Problem::new(
            "RSDT",
            "not understood: running on one CPU",
            "valid ACPI tables",
        ));
        return;
    };

    match survey.table(b"APIC") {
        Some(raw) => {
            let (sound, damage) = madt::sound_entries(&raw.bytes);
            if let Some(why) = damage {
                let why = why + ", the entries before it are used";
                info.problems.push(Problem::new(
                    madt::table_name(),
                    why,
                    "entries as ACPI 5.2.12 has them",
                ));
            }
            if sound > 0
                && let Ok(table) = crate_tables.find_table::<acpi::madt::Madt>()
            {
                madt::read(table.get(), sound, info);
            }
        }
        None => {
            info.problems.push(Problem::new(
                madt::table_name(),
                "there is none: running on one CPU",
                "a MADT",
            ));
        }
    }

    if let Some(raw) = survey.table(b"HPET") {
        // The crate asserts that the HPET is in memory space. Offsets: IA-PC HPET specification 1.0a, 3.2.4.
        const ADDRESS_SPACE: usize = 40;
        const LENGTH: usize = 56;
        if raw.bytes.len() >= LENGTH && raw.bytes.get(ADDRESS_SPACE) == Some(&0) {
            info.hpet = acpi::HpetInfo::new(&crate_tables)
                .ok()
                .filter(|hpet| hpet.base_address != 0)
                .map(|hpet| HpetEntry {
                    address: hpet.base_address as u64,
                });
        } else {
            info.problems.push(Problem::new(
                "HPET",
                "its registers are not in memory space",
                "address space 0",
            ));
        }
    }

    fadt::read(mem, survey, &crate_tables, info);
    for signature in [b"SSDT", b"PSDT"] {
        let found = survey.tables.iter().filter(|t| t.signature == *signature);
        info.aml
            .extend(found.zip(1..).map(|(table, number)| aml::AmlTable {
                name: format!("{} {number}", tables::name(*signature)),
                bytes: table.bytes.clone(),
            }));
    }
}

/// Opens the root table, which [`tables::survey`] has checked.
fn open<'m, M: PhysMem>(
    mem: &'m M,
    revision: u8,
    root: u64,
) -> Option<acpi::AcpiTables<Copies<'m, M>>> {
    #![expect(unsafe_code, reason = "the crate takes an address on trust")]
    // SAFETY: the crate is given copies, so no address can do harm; the root table has been checked to be
    // at least a header long, which the crate relies on.
    unsafe { acpi::AcpiTables::from_rsdt(Copies(mem), revision, usize::try_from(root).ok()?).ok() }
}

#[cfg(test)]
mod tests;
