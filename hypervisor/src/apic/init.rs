//! Setting up interrupt delivery: modes, 8259, IOAPICs, local APICs, timer.
use super::ioapic::IoApic;
use super::local::{self, LocalApic, Mode};
use super::mmio::Mmio;
use super::{ipi, msr, pic, timer, vector};
use crate::acpi::FirmwareInfo;
use crate::console::port::MachinePorts;
use crate::cpu::interrupts::{self, IrqContext};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use lull_core::options::IpiFence;
use lull_core::units::CpuId;

const GLOBAL_ENABLE: u64 = 1 << 11;
const X2APIC_ENABLE: u64 = 1 << 10;
const ADDRESS: u64 = 0x000F_FFFF_FFFF_F000;
const XAPIC_WINDOW: usize = 0x1000;

/// What [`init`] found.
#[derive(Debug)]
pub struct ApicInfo {
    /// Mode of all local APICs.
    pub mode: Mode,
    /// The IOAPICs, with all inputs masked.
    pub io_apics: Vec<IoApic>,
    /// What is wrong, one line each.
    pub problems: Vec<String>,
}

/// Sets up interrupt delivery for the machine and this CPU, which is `CpuId` 0. Called once, by the boot CPU, after
/// [`time::calibrate`](crate::time::calibrate).
///
/// # Errors
/// There is no usable local APIC or timer: the machine cannot work.
pub fn init(firmware: &FirmwareInfo, fence: IpiFence) -> Result<ApicInfo, String> {
    let cpuid = raw_cpuid::CpuId::new();
    let features = cpuid.get_feature_info().ok_or("CPUID leaf 1 is missing")?;
    if !features.has_apic() {
        return Err("CPUID offers no local APIC (leaf 1 EDX bit 9)".to_string());
    }
    let mut problems = Vec::new();
    pic::mask(&MachinePorts);
    msr::choose_fence(
        cpuid.get_vendor_info().as_ref().map_or("", |v| v.as_str()),
        fence,
    );

    let base = msr::read(msr::APIC_BASE);
    // Firmware that left x2APIC mode on cannot be taken back to xAPIC without a reset of the APIC.
    let apic = if features.has_x2apic() || base & X2APIC_ENABLE != 0 {
        LocalApic::X2Apic
    } else {
        let address = base & ADDRESS;
        if let Some(listed) = firmware.local_apic.filter(|listed| *listed != address) {
            problems.push(format!("the MADT has the local APICs at {listed:#x}, the CPU at {address:#x}: using the CPU's"));
        }
        LocalApic::XApic(
            Mmio::map(address, XAPIC_WINDOW).map_err(|why| format!("local APIC: {why}"))?,
        )
    };
    let apic = local::set(apic);
    if let Err(why) = interrupts::register(vector::SPURIOUS, spurious) {
        problems.push(why.to_string());
    }
    enable(apic, CpuId::new(0));
    ipi::set_apic_id(CpuId::new(0), apic.id());
    timer::choose(apic, features.has_tsc_deadline())?;
    timer::init_this_cpu(apic);

    let mut io_apics = Vec::new();
    for listed in &firmware.io_apics {
        match Mmio::map(listed.address, IoApic::WINDOW) {
            Ok(window) => io_apics.push(IoApic::new(window, listed.gsi_base)),
            Err(why) => problems.push(format!(
                "IOAPIC {} at {:#x}: {why}, not used",
                listed.id, listed.address
            )),
        }
    }
    Ok(ApicInfo {
        mode: apic.mode(),
        io_apics,
        problems,
    })
}

/// Sets up the local APIC and timer of this CPU. Called once by each CPU but the first.
pub fn init_this_cpu() {
    if let Some(apic) = local::get() {
        enable(apic, crate::cpu::this().id());
        timer::init_this_cpu(apic);
    }
}

fn enable(apic: &LocalApic, cpu: CpuId) {
    let base = msr::read(msr::APIC_BASE);
    let mode = match apic.mode() {
        Mode::XApic => 0,
        Mode::X2Apic => X2APIC_ENABLE,
    };
    if base & (GLOBAL_ENABLE | X2APIC_ENABLE) != GLOBAL_ENABLE | mode {
        // xAPIC first: straight from "off" to x2APIC is a #GP (Intel SDM vol. 3, 13.12.5).
        msr::write(msr::APIC_BASE, base | GLOBAL_ENABLE);
        msr::write(msr::APIC_BASE, base | GLOBAL_ENABLE | mode);
    }
    apic.set_flat_id(cpu);
    apic.reset(vector::SPURIOUS);
}

/// Not ended by an EOI: the local APIC has nothing in service for it.
fn spurious(_: &mut IrqContext) {}
