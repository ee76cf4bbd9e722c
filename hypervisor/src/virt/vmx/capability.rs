//! What this processor's VMX offers (SDM vol. 3, appendix A), and whether firmware lets it be used.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Write};

use raw_cpuid::CpuIdReader;
use x86::msr;

use super::apic::ApicControls;
use super::controls::{self, Adjusted, PrimaryControls, Refused, SecondaryControls, Wish, adjust};
use crate::virt::stage2::MaxPage;

/// MSRs of this CPU, or of one that a test makes up.
pub trait ReadMsr {
    /// The value; `None` if there is no such MSR.
    fn read(&self, msr: u32) -> Option<u64>;
}

impl<F: Fn(u32) -> Option<u64>> ReadMsr for F {
    fn read(&self, msr: u32) -> Option<u64> {
        self(msr)
    }
}

const FEATURE_CONTROL_LOCK: u64 = 1 << 0;
const FEATURE_CONTROL_IN_SMX: u64 = 1 << 1;
const FEATURE_CONTROL_OUTSIDE_SMX: u64 = 1 << 2;

/// IA32_FEATURE_CONTROL that lets VMXON pass, for a CPU whose firmware left it open.
pub const FEATURE_CONTROL_ON: u64 = FEATURE_CONTROL_LOCK | FEATURE_CONTROL_OUTSIDE_SMX;

/// What firmware has done with VMX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Firmware {
    /// It may be used.
    Allows,
    /// It has decided nothing: Lull allows it, by writing [`FEATURE_CONTROL_ON`].
    LeftOpen,
}

/// Why there is no VMX to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoVmx {
    /// CPUID does not offer it.
    Absent,
    /// There is CPUID's bit, but not this MSR.
    NoMsr {
        /// Its name.
        name: &'static str,
    },
    /// IA32_FEATURE_CONTROL is locked, with VMX off.
    SwitchedOff,
    /// IA32_FEATURE_CONTROL is locked, with VMX for measured launches only.
    OnlyInSmx,
    /// A control is not as needed.
    Control(Refused),
    /// Something of EPT is missing.
    Ept(&'static str),
    /// A VMCS does not fit a page.
    VmcsSize(u64),
    /// CR0 or CR4 cannot be as VMX wants them.
    FixedBits {
        /// Which register.
        register: &'static str,
        /// Bits that Lull has set and VMX forbids.
        forbidden: u64,
    },
}

impl fmt::Display for NoVmx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("the CPU does not offer VMX"),
            Self::NoMsr { name } => write!(f, "VMX present, but {name} cannot be read"),
            Self::SwitchedOff => f.write_str(
                "firmware switched VMX off (IA32_FEATURE_CONTROL, locked); switch on \"Intel Virtualization Technology\" or \"VMX\" in its setup",
            ),
            Self::OnlyInSmx => f.write_str(
                "firmware allows VMX after a measured launch only (IA32_FEATURE_CONTROL, locked); switch off \"Trusted Execution\" or allow VMX outside SMX in its setup",
            ),
            Self::Control(Refused::CannotSet("enable EPT" | "activate secondary controls")) => {
                f.write_str("VMX present, but without EPT, which Lull needs")
            }
            Self::Control(Refused::CannotSet("unrestricted guest")) => f.write_str(
                "VMX present, but without unrestricted guest (real mode in a guest), which Lull needs",
            ),
            Self::Control(refused) => write!(f, "VMX present, but {refused}, which Lull needs"),
            Self::Ept(what) => write!(f, "VMX present, but its EPT lacks {what}, which Lull needs"),
            Self::VmcsSize(bytes) => {
                write!(f, "VMX present, but its VMCS has {bytes} bytes: more than a page")
            }
            Self::FixedBits {
                register,
                forbidden,
            } => write!(f, "VMX present, but it forbids bits {forbidden:#x} of {register}"),
        }
    }
}

/// Reads IA32_FEATURE_CONTROL (SDM vol. 3, 25.7).
///
/// # Errors
/// VMX must not be used here.
pub fn firmware(msrs: &impl ReadMsr) -> Result<Firmware, NoVmx> {
    let control = msrs.read(msr::IA32_FEATURE_CONTROL).ok_or(NoVmx::NoMsr {
        name: "IA32_FEATURE_CONTROL",
    })?;
    if control & FEATURE_CONTROL_LOCK == 0 {
        Ok(Firmware::LeftOpen)
    } else if control & FEATURE_CONTROL_OUTSIDE_SMX != 0 {
        Ok(Firmware::Allows)
    } else if control & FEATURE_CONTROL_IN_SMX != 0 {
        Err(NoVmx::OnlyInSmx)
    } else {
        Err(NoVmx::SwitchedOff)
    }
}

/// What is offered, and the controls made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Goes into the first word of every VMCS.
    pub revision: u32,
    /// Pin-based controls.
    pub pin: u32,
    /// Primary processor-based controls.
    pub primary: u32,
    /// Secondary processor-based controls.
    pub secondary: u32,
    /// VM-exit controls.
    pub exit: u32,
    /// VM-entry controls.
    pub entry: u32,
    /// Bits of CR0 that are fixed, in VMX operation.
    pub cr0: Fixed,
    /// Bits of CR4 that are fixed, in VMX operation.
    pub cr4: Fixed,
    /// The preemption timer counts once every two to this power ticks of the TSC; `None` without it.
    pub timer_shift: Option<u32>,
    /// The instruction information tells segment and address size of INS and OUTS.
    pub string_io_info: bool,
    /// Largest page.
    pub max_page: MaxPage,
    /// EPT keeps accessed and dirty flags.
    pub accessed_dirty: bool,
    /// How the translations of one guest's linear addresses are dropped.
    pub invvpid: Option<Invvpid>,
    /// RDTSCP, and with it TSC_AUX.
    pub tsc_aux: bool,
    /// How a guest's APIC is virtualized.
    pub apic: ApicControls,
    /// Useful controls that are not offered.
    pub dropped: Vec<&'static str>,
}

/// Bits that must be set, and that may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// Must be 1.
    pub ones: u64,
    /// May be 1.
    pub may: u64,
}

/// The narrowest INVVPID that drops all of one VPID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Invvpid {
    /// One VPID.
    SingleContext = 1,
    /// All VPIDs.
    AllContexts = 2,
}

const MSR_BASIC: u32 = msr::IA32_VMX_BASIC;
const BASIC_TRUE_CONTROLS: u64 = 1 << 55;
const BASIC_STRING_IO: u64 = 1 << 54;

const EPT_FOUR_LEVELS: u64 = 1 << 6;
const EPT_WRITE_BACK: u64 = 1 << 14;
const EPT_2M: u64 = 1 << 16;
const EPT_1G: u64 = 1 << 17;
const EPT_INVEPT: u64 = 1 << 20;
const EPT_ACCESSED_DIRTY: u64 = 1 << 21;
const EPT_INVEPT_ALL: u64 = 1 << 26;
const EPT_INVVPID: u64 = 1 << 32;
const EPT_INVVPID_SINGLE: u64 = 1 << 41;
const EPT_INVVPID_ALL: u64 = 1 << 42;

struct Reader<'a, M>(&'a M);

impl<M: ReadMsr> Reader<'_, M> {
    fn get(&self, msr: u32, name: &'static str) -> Result<u64, NoVmx> {
        self.0.read(msr).ok_or(NoVmx::NoMsr { name })
    }

    fn fixed(&self, zero: (u32, &'static str), one: (u32, &'static str)) -> Result<Fixed, NoVmx> {
        Ok(Fixed {
            ones: self.get(zero.0, zero.1)?,
            may: self.get(one.0, one.1)?,
        })
    }
}

impl Capabilities {
    /// Whether CPUID offers VMX.
    pub fn in_cpuid(cpuid: &impl CpuIdReader) -> bool {
        cpuid.cpuid1(1).ecx & (1 << 5) != 0
    }

    /// Reads CPUID and the capability MSRs, and makes the controls.
    ///
    /// # Errors
    /// What Lull needs and this processor does not have.
    pub fn read(cpuid: &impl CpuIdReader, msrs: &impl ReadMsr) -> Result<Self, NoVmx> {
        if !Self::in_cpuid(cpuid) {
            return Err(NoVmx::Absent);
        }
        let reader = Reader(msrs);
        let basic = reader.get(MSR_BASIC, "IA32_VMX_BASIC")?;
        let size = basic >> 32 & 0x1fff;
        if size > 4096 {
            return Err(NoVmx::VmcsSize(size));
        }
        // The MSRs without "true" insist on some controls that later processors let be cleared.
        let capability = |plain: u32, truly: u32, name| {
            let which = if basic & BASIC_TRUE_CONTROLS != 0 {
                truly
            } else {
                plain
            };
            reader.get(which, name)
        };
        let mut dropped = Vec::new();
        let mut fulfil = |wishes: &[Wish], capability: u64| {
            let Adjusted {
                value,
                dropped: more,
            } = adjust(wishes, capability).map_err(NoVmx::Control)?;
            dropped.extend(more);
            Ok(value)
        };

        let primary_allows = capability(
            msr::IA32_VMX_PROCBASED_CTLS,
            msr::IA32_VMX_TRUE_PROCBASED_CTLS,
            "IA32_VMX_PROCBASED_CTLS",
        )?;
        // First, so that the lack of EPT is called by its name.
        let mut primary = fulfil(&controls::PRIMARY, primary_allows)?;
        let secondary_allows =
            reader.get(msr::IA32_VMX_PROCBASED_CTLS2, "IA32_VMX_PROCBASED_CTLS2")?;
        let mut secondary = fulfil(&controls::SECONDARY, secondary_allows)?;
        if primary & PrimaryControls::USE_TPR_SHADOW.bits() == 0 {
            primary |= fulfil(&controls::WITHOUT_TPR_SHADOW, primary_allows)?;
        }
        if secondary & SecondaryControls::PAUSE_LOOP_EXITING.bits() == 0 {
            primary |= fulfil(&controls::WITHOUT_PAUSE_LOOP_EXITING, primary_allows)?;
        }
        let pin_allows = capability(
            msr::IA32_VMX_PINBASED_CTLS,
            msr::IA32_VMX_TRUE_PINBASED_CTLS,
            "IA32_VMX_PINBASED_CTLS",
        )?;
        let pin = fulfil(&controls::PIN, pin_allows)?;
        let exit = fulfil(
            &controls::EXIT,
            capability(
                msr::IA32_VMX_EXIT_CTLS,
                msr::IA32_VMX_TRUE_EXIT_CTLS,
                "IA32_VMX_EXIT_CTLS",
            )?,
        )?;
        let entry = fulfil(
            &controls::ENTRY,
            capability(
                msr::IA32_VMX_ENTRY_CTLS,
                msr::IA32_VMX_TRUE_ENTRY_CTLS,
                "IA32_VMX_ENTRY_CTLS",
            )?,
        )?;

        let ept = reader.get(msr::IA32_VMX_EPT_VPID_CAP, "IA32_VMX_EPT_VPID_CAP")?;
        for (bits, what) in [
            (EPT_FOUR_LEVELS, "tables of four levels"),
            (EPT_WRITE_BACK, "tables in write-back memory"),
            (EPT_2M, "2 MiB pages"),
            (EPT_INVEPT | EPT_INVEPT_ALL, "INVEPT for all contexts"),
        ] {
            if ept & bits != bits {
                return Err(NoVmx::Ept(what));
            }
        }
        let invvpid = match ept {
            _ if ept & EPT_INVVPID == 0 => None,
            _ if ept & EPT_INVVPID_SINGLE != 0 => Some(Invvpid::SingleContext),
            _ if ept & EPT_INVVPID_ALL != 0 => Some(Invvpid::AllContexts),
            _ => None,
        };
        let vpid = SecondaryControls::ENABLE_VPID.bits();
        if secondary & vpid != 0 && invvpid.is_none() {
            // Tags that cannot be dropped are worse than none.
            secondary &= !vpid;
            dropped.push("INVVPID");
        }
        let misc = reader.get(msr::IA32_VMX_MISC, "IA32_VMX_MISC")?;
        let timer = pin & controls::PinbasedControls::VMX_PREEMPTION_TIMER.bits() != 0;
        let extended = if cpuid.cpuid1(0x8000_0000).eax >= 0x8000_0001 {
            cpuid.cpuid1(0x8000_0001).edx
        } else {
            0
        };
        Ok(Self {
            revision: basic as u32 & 0x7fff_ffff,
            pin,
            primary,
            secondary,
            exit,
            entry,
            cr0: reader.fixed(
                (msr::IA32_VMX_CR0_FIXED0, "IA32_VMX_CR0_FIXED0"),
                (msr::IA32_VMX_CR0_FIXED1, "IA32_VMX_CR0_FIXED1"),
            )?,
            cr4: reader.fixed(
                (msr::IA32_VMX_CR4_FIXED0, "IA32_VMX_CR4_FIXED0"),
                (msr::IA32_VMX_CR4_FIXED1, "IA32_VMX_CR4_FIXED1"),
            )?,
            timer_shift: timer.then_some(misc as u32 & 0x1f),
            string_io_info: basic & BASIC_STRING_IO != 0,
            max_page: if ept & EPT_1G != 0 {
                MaxPage::Size1G
            } else {
                MaxPage::Size2M
            },
            accessed_dirty: ept & EPT_ACCESSED_DIRTY != 0,
            invvpid: invvpid.filter(|_| secondary & vpid != 0),
            tsc_aux: extended & (1 << 27) != 0
                && secondary & SecondaryControls::ENABLE_RDTSCP.bits() != 0,
            apic: ApicControls::offered(primary, secondary_allows, pin_allows),
            dropped,
        })
    }

    /// Whether this CPU can do all that `first`, another one, was set up for.
    pub fn covers(&self, first: &Self) -> bool {
        let all = |mine: u32, other: u32| mine & other == other;
        self.revision == first.revision
            && all(self.pin, first.pin)
            && all(self.primary, first.primary)
            && all(self.secondary, first.secondary)
            && self.timer_shift == first.timer_shift
            && (self.max_page == first.max_page || self.max_page == MaxPage::Size1G)
            && self.accessed_dirty >= first.accessed_dirty
            && self.apic.covers(&first.apic)
    }

    /// Whether the guest's task priority is kept by the processor.
    pub fn tpr_shadow(&self) -> bool {
        self.primary & PrimaryControls::USE_TPR_SHADOW.bits() != 0
    }

    /// Whether the processor counts the PAUSEs of a spin loop.
    pub fn counts_pauses(&self) -> bool {
        self.secondary & SecondaryControls::PAUSE_LOOP_EXITING.bits() != 0
    }

    /// For one log line: what is used, and what is missing. `posts`: whether interrupts are posted.
    pub fn describe(&self, posts: bool) -> String {
        let mut line = String::new();
        let page = if self.max_page == MaxPage::Size1G {
            "1 GiB"
        } else {
            "2 MiB"
        };
        let _ = write!(line, "EPT (pages up to {page}), unrestricted guest");
        let mut lead = "; with";
        for (there, name) in [
            (self.invvpid.is_some(), "VPID"),
            (self.timer_shift.is_some(), "preemption timer"),
            (self.tpr_shadow(), "TPR shadow"),
            (self.apic.x2apic != 0, "virtual x2APIC"),
            (posts, "posted interrupts"),
            (self.counts_pauses(), "PAUSE-loop exiting"),
            (self.accessed_dirty, "accessed and dirty flags"),
        ] {
            if there {
                let _ = write!(line, "{lead} {name}");
                lead = ",";
            }
        }
        let mut lead = "; without";
        for name in &self.dropped {
            let _ = write!(line, "{lead} {name}");
            lead = ",";
        }
        line
    }
}

#[cfg(test)]
#[path = "capability_tests.rs"]
pub(in crate::virt) mod tests;
