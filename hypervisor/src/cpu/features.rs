//! What CPUID says, read once a CPU.
//!
//! Pure over a `CpuIdReader`, so that recorded leaves of other machines can be tested. Decisions are made from
//! feature bits, never from the vendor's name.

use arrayvec::ArrayString;
use core::fmt;
use core::fmt::Write;
use lull_core::cstate::select::MwaitLeaf;
use raw_cpuid::{CpuId, CpuIdReader};

/// The features of one CPU that Lull cares about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Vendor string of leaf 0.
    pub vendor: ArrayString<16>,
    /// Family, extended family added.
    pub family: u8,
    /// Model, with the extended model.
    pub model: u8,
    /// Stepping.
    pub stepping: u8,
    /// Signature of an outer hypervisor (leaf 4000_0000h), if there is one.
    pub hypervisor: Option<ArrayString<16>>,
    /// Initial APIC id (leaf 1, EBX bits 31:24).
    pub initial_apic_id: u8,
    /// Physical address bits.
    pub physical_bits: u8,
    /// MONITOR and MWAIT exist.
    pub monitor: bool,
    /// Leaf 5.
    pub mwait: MwaitLeaf,
    /// The APIC timer runs on in every C-state.
    pub arat: bool,
    /// The TSC counts on in every C-state.
    pub nonstop_tsc: bool,
    /// The APIC timer has TSC-deadline mode.
    pub tsc_deadline: bool,
    /// The APIC has x2APIC mode.
    pub x2apic: bool,
    /// RDTSCP and IA32_TSC_AUX exist.
    pub rdtscp: bool,
    /// Pages can be made not executable.
    pub nx: bool,
    /// 1 GiB pages exist.
    pub giant_pages: bool,
    /// Supervisor-mode execution prevention.
    pub smep: bool,
    /// Supervisor-mode access prevention.
    pub smap: bool,
    /// XSAVE, if it exists.
    pub xsave: Option<Xsave>,
    /// AMD's virtualization.
    pub svm: bool,
    /// Intel's virtualization.
    pub vmx: bool,
}

/// Leaf Dh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Xsave {
    /// State components that XCR0 may enable.
    pub components: u64,
    /// Bytes that an area needs for all of them.
    pub size: u32,
    /// XSAVEOPT exists.
    pub optimised: bool,
}

fn cut<const N: usize>(text: &str) -> ArrayString<N> {
    let mut out = ArrayString::new();
    for c in text.chars().filter(|c| c.is_ascii_graphic() || *c == ' ') {
        if out.try_push(c).is_err() {
            break;
        }
    }
    out
}

impl Features {
    /// Reads the features of the CPU behind `reader`.
    #[must_use]
    pub fn read<R: CpuIdReader>(reader: R) -> Self {
        let leaves = CpuId::with_cpuid_reader(reader.clone());
        let mut f = Self {
            physical_bits: 36,
            ..Self::default()
        };
        if let Some(vendor) = leaves.get_vendor_info() {
            f.vendor = cut(vendor.as_str());
        }
        if let Some(leaf) = leaves.get_feature_info() {
            f.family = leaf.family_id();
            f.model = leaf.model_id();
            f.stepping = leaf.stepping_id();
            f.initial_apic_id = leaf.initial_local_apic_id();
            f.monitor = leaf.has_monitor_mwait();
            f.tsc_deadline = leaf.has_tsc_deadline();
            f.x2apic = leaf.has_x2apic();
            f.vmx = leaf.has_vmx();
            if leaf.has_xsave() {
                f.xsave = leaves.get_extended_state_info().map(|state| {
                    // EDX:EAX of sub-leaf 0 are the bits as they are; the crate's accessors drop unknown ones.
                    let raw = reader.cpuid2(0xD, 0);
                    Xsave {
                        components: u64::from(raw.edx) << 32 | u64::from(raw.eax),
                        size: raw.ecx,
                        optimised: state.has_xsaveopt(),
                    }
                });
            }
            if leaf.has_hypervisor() {
                f.hypervisor = Some(signature(&reader));
            }
        }
        if leaves.get_monitor_mwait_info().is_some() {
            let raw = reader.cpuid2(5, 0);
            f.mwait = MwaitLeaf::from_registers(raw.eax, raw.ebx, raw.ecx, raw.edx);
        }
        if let Some(leaf) = leaves.get_thermal_power_info() {
            f.arat = leaf.has_arat();
        }
        if let Some(leaf) = leaves.get_extended_feature_info() {
            f.smep = leaf.has_smep();
            f.smap = leaf.has_smap();
        }
        if let Some(leaf) = leaves.get_extended_processor_and_feature_identifiers() {
            f.nx = leaf.has_execute_disable();
            f.giant_pages = leaf.has_1gib_pages();
            f.rdtscp = leaf.has_rdtscp();
            f.svm = leaf.has_svm();
        }
        if let Some(leaf) = leaves.get_advanced_power_mgmt_info() {
            f.nonstop_tsc = leaf.has_invariant_tsc();
        }
        if let Some(leaf) = leaves.get_processor_capacity_feature_info() {
            f.physical_bits = leaf.physical_address_bits();
        }
        f
    }

    /// The features of the CPU that runs this.
    #[must_use]
    pub fn of_this_cpu() -> Self {
        Self::read(raw_cpuid::CpuIdReaderNative)
    }

    /// What a CPU that starts later lacks of what the first one has, and Lull uses; empty if nothing.
    #[must_use]
    pub fn lacks(&self, first: &Self) -> ArrayString<120> {
        let mut out = ArrayString::new();
        let pairs = [
            (self.monitor, first.monitor, "MONITOR"),
            (self.arat, first.arat, "ARAT"),
            (self.nonstop_tsc, first.nonstop_tsc, "nonstop TSC"),
            (self.tsc_deadline, first.tsc_deadline, "TSC-deadline"),
            (self.x2apic, first.x2apic, "x2APIC"),
            (self.rdtscp, first.rdtscp, "RDTSCP"),
            (self.nx, first.nx, "NX"),
            (self.giant_pages, first.giant_pages, "1 GiB pages"),
            (self.smep, first.smep, "SMEP"),
            (self.smap, first.smap, "SMAP"),
            (self.xsave.is_some(), first.xsave.is_some(), "XSAVE"),
            (self.svm, first.svm, "SVM"),
            (self.vmx, first.vmx, "VMX"),
        ];
        for (_, _, name) in pairs.iter().filter(|(mine, theirs, _)| *theirs && !*mine) {
            let space = if out.is_empty() { "" } else { ", " };
            let _ = write!(out, "{space}{name}");
        }
        out
    }

    /// What an outer hypervisor hides that Lull would use for idling, of MWAIT, nonstop TSC, ARAT and TSC-deadline;
    /// empty on bare hardware.
    #[must_use]
    pub fn hidden(&self) -> ArrayString<120> {
        let mut out = ArrayString::new();
        if self.hypervisor.is_none() {
            return out;
        }
        let have = [
            (self.monitor, "MWAIT"),
            (self.nonstop_tsc, "nonstop TSC"),
            (self.arat, "ARAT"),
            (self.tsc_deadline, "TSC-deadline"),
        ];
        for (_, name) in have.iter().filter(|(has, _)| !*has) {
            let space = if out.is_empty() { "" } else { ", " };
            let _ = write!(out, "{space}{name}");
        }
        out
    }
}

/// The 12 characters of leaf 4000_0000h, in EBX, ECX, EDX.
fn signature<R: CpuIdReader>(reader: &R) -> ArrayString<16> {
    let leaf = reader.cpuid2(0x4000_0000, 0);
    let mut bytes = [0; 12];
    for (at, word) in [leaf.ebx, leaf.ecx, leaf.edx].into_iter().enumerate() {
        bytes[at * 4..at * 4 + 4].copy_from_slice(&word.to_le_bytes());
    }
    let mut out = ArrayString::new();
    for c in bytes
        .into_iter()
        .take_while(|b| *b != 0)
        .map(char::from)
        .filter(char::is_ascii_graphic)
    {
        let _ = out.try_push(c);
    }
    out
}

/// One line: who made it, what it can.
impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} family {:#x} model {:#x} stepping {}",
            self.vendor, self.family, self.model, self.stepping
        )?;
        if let Some(outer) = self.hypervisor {
            write!(f, " under {outer}")?;
        }
        f.write_str(":")?;
        let have = [
            (self.monitor, "monitor"),
            (self.arat, "arat"),
            (self.nonstop_tsc, "nonstop-tsc"),
            (self.tsc_deadline, "tsc-deadline"),
            (self.x2apic, "x2apic"),
            (self.nx, "nx"),
            (self.giant_pages, "1gib-pages"),
            (self.smep, "smep"),
            (self.smap, "smap"),
            (self.xsave.is_some(), "xsave"),
            (self.svm, "svm"),
            (self.vmx, "vmx"),
        ];
        for (_, name) in have.iter().filter(|(has, _)| *has) {
            write!(f, " {name}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "features_tests.rs"]
mod tests;
