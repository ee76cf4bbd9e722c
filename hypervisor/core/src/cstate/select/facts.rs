//! What is known about a CPU when its C-states are chosen.

use crate::cstate::acpi::{Cst, Fadt};
use crate::cstate::models::{Identity, Vendor};
use crate::idle::MonitorTrust;
use crate::options::{CStateOptions, IdleMethod};
use core::fmt;

/// CPUID leaf 5, MONITOR/MWAIT. Source: Intel SDM, volume 2, CPUID; AMD APM, volume 3, CPUID Fn0000_0005.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MwaitLeaf {
    /// EAX bits 15:0: the smallest monitored line, in bytes.
    pub smallest_line: u16,
    /// EBX bits 15:0: the largest monitored line, in bytes.
    pub largest_line: u16,
    /// ECX bit 0: the extensions are enumerated; without it ECX and EDX say nothing.
    pub extensions: bool,
    /// ECX bit 1: MWAIT with ECX bit 0 set treats a masked interrupt as a break event.
    pub interrupt_break: bool,
    /// EDX: the number of sub-states, four bits a C-state, C0 first.
    pub substates: u32,
    /// Reserved bits of EAX, EBX or ECX are set, or the smallest line is larger than the largest: no CPU says that.
    pub nonsense: bool,
}

impl MwaitLeaf {
    /// The leaf, from its registers.
    pub const fn from_registers(eax: u32, ebx: u32, ecx: u32, edx: u32) -> Self {
        Self {
            smallest_line: eax as u16,
            largest_line: ebx as u16,
            extensions: ecx & 1 != 0,
            interrupt_break: ecx & 2 != 0,
            substates: edx,
            // Of ECX, bit 3 has been given a meaning (MWAIT without MONITOR); more may come next to it.
            nonsense: (eax | ebx) >> 16 != 0 || ecx >> 16 != 0 || eax as u16 > ebx as u16,
        }
    }

    /// Are there sub-states of the deepest class (EDX bits 31:28), which is that of PC10?
    pub const fn reports_pc10(&self) -> bool {
        self.extensions && self.interrupt_break && self.substates >> 28 != 0
    }
}

/// What the self-test found about one way of using MWAIT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MwaitVerdict {
    /// It was not tried, since CPUID does not offer it.
    #[default]
    Untested,
    /// It slept, and a due timer ended it.
    Works,
    /// #UD: there is no such instruction.
    InvalidOpcode,
    /// #GP: the instruction refuses these operands.
    GeneralProtection,
    /// It returned at once, every time: a busy loop that calls itself a sleep.
    NeverSleeps,
    /// A timer was due, and its interrupt was not taken.
    MissesTimer,
}

impl MwaitVerdict {
    /// It raised an exception: no option makes it usable.
    pub const fn faults(self) -> bool {
        matches!(
            self,
            MwaitVerdict::InvalidOpcode | MwaitVerdict::GeneralProtection
        )
    }
}

impl fmt::Display for MwaitVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MwaitVerdict::Untested => "was not tested",
            MwaitVerdict::Works => "works",
            MwaitVerdict::InvalidOpcode => "raises #UD",
            MwaitVerdict::GeneralProtection => "raises #GP",
            MwaitVerdict::NeverSleeps => "never sleeps",
            MwaitVerdict::MissesTimer => "does not take a due timer's interrupt",
        })
    }
}

/// What the self-test found at boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MwaitTest {
    /// `sti; mwait; cli` with ECX = 0.
    pub open: MwaitVerdict,
    /// MWAIT with ECX = 1 and interrupts off.
    pub masked: MwaitVerdict,
    /// Another CPU's store ended a sleep. `None` if there was no other CPU to try it with.
    pub store_wakes: Option<bool>,
}

impl MwaitTest {
    /// A CPU on which all works: what is assumed where there is no CPU to ask.
    pub const PASSED: Self = Self {
        open: MwaitVerdict::Works,
        masked: MwaitVerdict::Works,
        store_wakes: Some(true),
    };

    /// Whether wakers may leave the interrupt out. Only on proof, and never on a CPU whose monitor is known to miss stores.
    ///
    /// `erratum`: the CPU is on the list of those (such as APL30, ICX143, LNL030).
    pub fn trust(&self, erratum: bool) -> MonitorTrust {
        match self.store_wakes {
            Some(true) if !erratum => MonitorTrust::SeesStores,
            _ => MonitorTrust::MissesStores,
        }
    }
}

/// The four registers of one CPUID leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Registers {
    /// EAX.
    pub eax: u32,
    /// EBX.
    pub ebx: u32,
    /// ECX.
    pub ecx: u32,
    /// EDX.
    pub edx: u32,
}

/// What is known about a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuFacts {
    /// Leaves 0 and 1: which CPU it is.
    pub identity: Identity,
    /// CPUID leaf 1 ECX bit 3: MONITOR and MWAIT exist.
    pub monitor: bool,
    /// CPUID leaf 1 EDX bit 19: CLFLUSH exists.
    pub clflush: bool,
    /// CPUID leaf 1 ECX bit 31: an outer hypervisor says that it is there.
    pub hypervisor: bool,
    /// CPUID leaf 5.
    pub mwait: MwaitLeaf,
    /// CPUID leaf 6 EAX bit 2: the local APIC timer runs on in every C-state.
    pub arat: bool,
    /// CPUID leaf 7 EBX bit 2: SGX exists.
    pub sgx: bool,
    /// CPUID leaf 7 EDX bit 24: AMX tiles exist.
    pub amx: bool,
    /// CPUID leaf 8000_0007h EDX bit 8: the TSC counts on in every C-state.
    pub nonstop_tsc: bool,
    /// The self-test.
    pub test: MwaitTest,
}

impl CpuFacts {
    /// Reads the leaves 0, 1, 5, 6, 7 and 8000_0007h through `read` (leaf, sub-leaf). Leaves beyond the maximum are not
    /// asked for: Intel CPUs answer those with the last one's contents.
    pub fn from_cpuid(read: impl Fn(u32, u32) -> Registers, test: MwaitTest) -> Self {
        let first = read(0, 0);
        let mut id = [0; 12];
        for (bytes, word) in id
            .chunks_exact_mut(4)
            .zip([first.ebx, first.edx, first.ecx])
        {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let last = first.eax;
        let basic = |leaf: u32| {
            if leaf <= last {
                read(leaf, 0)
            } else {
                Registers::default()
            }
        };
        let extended = if read(0x8000_0000, 0).eax >= 0x8000_0007 {
            read(0x8000_0007, 0)
        } else {
            Registers::default()
        };
        let (one, five, six, seven) = (basic(1), basic(5), basic(6), basic(7));
        Self {
            identity: Identity::from_signature(Vendor::from_id(&id), one.eax),
            monitor: one.ecx & 1 << 3 != 0,
            clflush: one.edx & 1 << 19 != 0,
            hypervisor: one.ecx & 1 << 31 != 0,
            mwait: MwaitLeaf::from_registers(five.eax, five.ebx, five.ecx, five.edx),
            arat: six.eax & 1 << 2 != 0,
            sgx: seven.ebx & 1 << 2 != 0,
            amx: seven.edx & 1 << 24 != 0,
            nonstop_tsc: extended.edx & 1 << 8 != 0,
            test,
        }
    }
}

/// The MSRs that the choice looks at, as the boot CPU read them. `None`: reading it faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MsrValues {
    /// 0xE2, PKG_CST_CONFIG_CONTROL.
    pub package_control: Option<u64>,
    /// 0x1FC, POWER_CTL.
    pub power_control: Option<u64>,
    /// 0x3A, FEATURE_CONTROL.
    pub feature_control: Option<u64>,
    /// 0x60B, 0x60C, 0x633, 0x634, 0x635: the interrupt response time limits of PC6 to PC10.
    pub irtl: [Option<u64>; 5],
    /// 0xC001_0055, AMD's INT_PENDING_MSG.
    pub interrupt_pending: Option<u64>,
}

impl MsrValues {
    /// Which MSRs to read on this CPU, so that none is touched that does not matter.
    pub fn wanted(id: &Identity) -> &'static [u32] {
        const INTEL: [u32; 3] = [0xE2, 0x1FC, 0x3A];
        const BXT: [u32; 8] = [0xE2, 0x1FC, 0x3A, 0x60B, 0x60C, 0x633, 0x634, 0x635];
        match (id.vendor, id.family) {
            (Vendor::Intel, 6) if matches!(id.model, 0x5C | 0x7A) => &BXT,
            (Vendor::Intel, 6 | 16..) => &INTEL,
            (Vendor::Amd, 0x0F..=0x11) => &[0xC001_0055],
            _ => &[],
        }
    }

    /// Keeps what was read from an MSR of [`Self::wanted`]. Others are ignored.
    pub fn set(&mut self, msr: u32, value: Option<u64>) {
        match msr {
            0xE2 => self.package_control = value,
            0x1FC => self.power_control = value,
            0x3A => self.feature_control = value,
            0x60B => self.irtl[0] = value,
            0x60C => self.irtl[1] = value,
            0x633 => self.irtl[2] = value,
            0x634 => self.irtl[3] = value,
            0x635 => self.irtl[4] = value,
            0xC001_0055 => self.interrupt_pending = value,
            _ => {}
        }
    }
}

/// How many of what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The largest package number of an online CPU, plus one.
    pub packages: u32,
    /// CPUs online.
    pub cpus: u32,
    /// Some core has two threads online.
    pub smt: bool,
}

impl Default for Topology {
    fn default() -> Self {
        Self {
            packages: 1,
            cpus: 1,
            smt: false,
        }
    }
}

/// What the image can do about a state's side effects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Support {
    /// Another timer (the HPET) stands in for a local APIC timer that stops.
    pub timer_broadcast: bool,
    /// A TSC that stopped is put right on the way out.
    pub restores_tsc: bool,
    /// EOIs are directed, so that the older in-service erratum cannot strike.
    pub directed_eoi: bool,
}

/// What the firmware says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Firmware<'a> {
    /// `_CST`, if there is one that made sense.
    pub cst: Option<&'a Cst>,
    /// The FADT.
    pub fadt: Option<Fadt>,
    /// The processor's P_BLK, if it has one. LVL2 is at +4, LVL3 at +5.
    pub p_blk: Option<u16>,
}

/// Everything that the choice of the C-states depends on.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// The CPU.
    pub cpu: CpuFacts,
    /// Its MSRs.
    pub msrs: MsrValues,
    /// The machine.
    pub topology: Topology,
    /// The image.
    pub support: Support,
    /// The firmware.
    pub firmware: Firmware<'a>,
    /// `idle=`.
    pub idle: IdleMethod,
    /// The other options.
    pub options: &'a CStateOptions,
}

impl<'a> Query<'a> {
    /// A question about a CPU of which nothing but CPUID and the self-test is known.
    pub fn new(cpu: CpuFacts, idle: IdleMethod, options: &'a CStateOptions) -> Self {
        Self {
            cpu,
            msrs: MsrValues::default(),
            topology: Topology::default(),
            support: Support::default(),
            firmware: Firmware::default(),
            idle,
            options,
        }
    }

    /// Does the TSC count on in every C-state, as far as the options let it be believed?
    pub fn nonstop_tsc(&self) -> bool {
        self.cpu.nonstop_tsc && !self.options.tsc_unstable
    }

    /// Does the local APIC timer run on in every C-state? AMD's later families do not say so, and do.
    pub fn arat(&self) -> bool {
        let id = &self.cpu.identity;
        self.cpu.arat
            || (id.vendor == Vendor::Amd && id.family > 0x11)
            || id.vendor == Vendor::Hygon
    }

    /// Does the HPET stop in deep states?
    ///
    /// In PC10, where CPUID reports it and the package limit allows it; on Bay Trail and Cherry Trail in any. A limit that
    /// cannot be read allows everything.
    pub fn hpet_stops(&self) -> bool {
        let id = &self.cpu.identity;
        let limit = self.msrs.package_control.map_or(8, |value| value & 0xF);
        id.is_intel(6, &[0x37, 0x4C])
            || (id.vendor == Vendor::Intel && self.cpu.mwait.reports_pc10() && limit >= 8)
    }

    /// May `_CST` be used?
    pub fn cst(&self) -> Option<&'a Cst> {
        self.firmware.cst.filter(|_| self.options.acpi_cst)
    }
}
