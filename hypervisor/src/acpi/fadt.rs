//! FADT: PM timer, reset, power-off (ACPI specification 6.5, 5.2.9).
use super::aml::AmlTable;
use super::copies::Copies;
use super::cst::FadtStates;
use super::physmem::PhysMem;
use super::power::{AcpiEnable, PowerOff, Register, ResetRegister};
use super::tables::{self, Survey};
use super::{FirmwareInfo, PmTimer, Problem, s5};
use acpi::AcpiTables;
use acpi::address::{AddressSpace, GenericAddress};
use acpi::fadt::Fadt;
use alloc::string::ToString;

/// The first FADT ended here; less is none.
const REVISION_1_LENGTH: usize = 116;
/// PM1_CNT_LEN. The crate multiplies it by 8 in 8 bits.
const PM1_CONTROL_LENGTH: usize = 89;

pub(super) fn read<M: PhysMem>(
    mem: &M,
    survey: &Survey,
    crate_tables: &AcpiTables<Copies<'_, M>>,
    info: &mut FirmwareInfo,
) {
    let Some(raw) = survey.table(b"FACP") else {
        info.problems.push(Problem::new(
            "FACP",
            "there is none: no PM timer, no power-off",
            "an FADT",
        ));
        return;
    };
    let control_length = raw.bytes.get(PM1_CONTROL_LENGTH).copied().unwrap_or(0);
    if raw.bytes.len() < REVISION_1_LENGTH || control_length >= 32 {
        info.problems.push(Problem::new(
            "FACP",
            format_args!(
                "length {}, PM1_CNT_LEN {control_length}: table not used",
                raw.bytes.len()
            ),
            "length of at least 116, PM1_CNT_LEN 2",
        ));
        return;
    }
    info.c_states = FadtStates::from_bytes(&raw.bytes);
    let Ok(fadt) = crate_tables.find_table::<Fadt>() else {
        return;
    };
    let fadt = *fadt;
    let flags = fadt.flags;

    info.pm_timer = fadt
        .pm_timer_block()
        .ok()
        .flatten()
        .and_then(|address| port(&address))
        .map(|port| PmTimer {
            port,
            is_32_bit: flags.pm_timer_is_32_bit(),
        });

    info.smi_command = u16::try_from(fadt.smi_cmd_port)
        .ok()
        .filter(|port| *port != 0);

    if flags.supports_system_reset_via_fadt() {
        let register = fadt
            .reset_register()
            .ok()
            .and_then(|address| match address.address_space {
                AddressSpace::SystemIo => port(&address).map(Register::Port),
                AddressSpace::SystemMemory if address.address != 0 => {
                    Some(Register::Memory(address.address))
                }
                _ => None,
            });
        info.reset = register.map(|register| ResetRegister {
            register,
            value: fadt.reset_value,
        });
    }

    let dsdt = fadt
        .dsdt_address()
        .ok()
        .map(|at| tables::read_other(mem, at as u64, *b"DSDT"));
    if let Some(Err((name, why))) = &dsdt {
        info.problems.push(Problem::new(
            name,
            format_args!("{why}, table not used"),
            "a valid DSDT",
        ));
    }
    let dsdt = dsdt.and_then(Result::ok);
    info.aml.extend(dsdt.iter().map(|table| AmlTable {
        name: "DSDT".to_string(),
        bytes: table.bytes.clone(),
    }));
    let Some(control_a) = fadt.pm1a_control_block().ok().and_then(|a| port(&a)) else {
        return;
    };
    let aml = dsdt
        .iter()
        .chain(survey.tables.iter().filter(|t| t.signature == *b"SSDT"));
    info.power_off = aml
        .into_iter()
        .find_map(|table| s5::find(&table.bytes))
        .map(|sleep_type| PowerOff {
            control_a,
            control_b: fadt
                .pm1b_control_block()
                .ok()
                .flatten()
                .and_then(|a| port(&a)),
            sleep_type,
            enable: u16::try_from(fadt.smi_cmd_port)
                .ok()
                .filter(|port| *port != 0 && fadt.acpi_enable != 0)
                .map(|port| AcpiEnable {
                    port,
                    value: fadt.acpi_enable,
                }),
        });
}

/// The port of a register in I/O space; none for port 0.
fn port(address: &GenericAddress) -> Option<u16> {
    if address.address_space != AddressSpace::SystemIo {
        return None;
    }
    u16::try_from(address.address)
        .ok()
        .filter(|port| *port != 0)
}
