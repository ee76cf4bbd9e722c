//! Which controls are switched on: wanted and allowed (SDM vol. 3, appendix A.2 to A.5).
//!
//! A capability MSR says of each bit whether it may be 0 (lower half clear) and whether it may be 1 (upper half set).

use alloc::vec::Vec;
use core::fmt;

pub use x86::vmx::vmcs::control::{
    EntryControls, ExitControls, PinbasedControls, PrimaryControls, SecondaryControls,
};

/// How much a control is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Set; without it no guest can run.
    Needed,
    /// Set and cleared while guests run; without it none can.
    OnDemand,
    /// Set where it is offered.
    Useful,
    /// Must be clear: what it does is not handled.
    Unwanted,
}

/// A wish about one bit.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// The bit, as a mask.
    pub bit: u32,
    /// As the manual calls it.
    pub name: &'static str,
    /// How much.
    pub need: Need,
}

/// A processor that cannot do as needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The control cannot be set.
    CannotSet(&'static str),
    /// The control cannot be cleared.
    CannotClear(&'static str),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CannotSet(name) => write!(f, "the processor does not offer the control {name:?}"),
            Self::CannotClear(name) => write!(
                f,
                "the processor does not let the control {name:?} be switched off"
            ),
        }
    }
}

/// The value of one field of controls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adjusted {
    /// What goes into the VMCS.
    pub value: u32,
    /// Useful controls that are not offered.
    pub dropped: Vec<&'static str>,
}

/// Makes the value from wishes and a capability MSR.
///
/// # Errors
/// The first wish that cannot be fulfilled.
pub fn adjust(wishes: &[Wish], capability: u64) -> Result<Adjusted, Refused> {
    let (must, may) = (capability as u32, (capability >> 32) as u32);
    let mut adjusted = Adjusted {
        value: must,
        dropped: Vec::new(),
    };
    for wish in wishes {
        let allowed = may & wish.bit == wish.bit;
        match wish.need {
            Need::Needed | Need::OnDemand if !allowed => {
                return Err(Refused::CannotSet(wish.name));
            }
            Need::OnDemand | Need::Unwanted if must & wish.bit != 0 => {
                return Err(Refused::CannotClear(wish.name));
            }
            Need::Needed => adjusted.value |= wish.bit,
            Need::Useful if allowed => adjusted.value |= wish.bit,
            Need::Useful => adjusted.dropped.push(wish.name),
            Need::OnDemand | Need::Unwanted => {}
        }
    }
    Ok(adjusted)
}

macro_rules! wishes {
    ($type:ty: $($need:ident $bit:ident $name:literal),+ $(,)?) => {
        [$(Wish { bit: <$type>::$bit.bits(), name: $name, need: Need::$need }),+]
    };
}

/// Pin-based controls.
pub const PIN: [Wish; 5] = wishes![PinbasedControls:
    Needed EXTERNAL_INTERRUPT_EXITING "external-interrupt exiting",
    Needed NMI_EXITING "NMI exiting",
    Needed VIRTUAL_NMIS "virtual NMIs",
    Useful VMX_PREEMPTION_TIMER "VMX-preemption timer",
    Unwanted POSTED_INTERRUPTS "process posted interrupts",
];

/// Primary processor-based controls.
pub const PRIMARY: [Wish; 18] = wishes![PrimaryControls:
    OnDemand INTERRUPT_WINDOW_EXITING "interrupt-window exiting",
    OnDemand NMI_WINDOW_EXITING "NMI-window exiting",
    Needed USE_TSC_OFFSETTING "use TSC offsetting",
    Needed HLT_EXITING "HLT exiting",
    Needed MWAIT_EXITING "MWAIT exiting",
    Needed MONITOR_EXITING "MONITOR exiting",
    Needed RDPMC_EXITING "RDPMC exiting",
    Needed UNCOND_IO_EXITING "unconditional I/O exiting",
    Needed USE_MSR_BITMAPS "use MSR bitmaps",
    Needed SECONDARY_CONTROLS "activate secondary controls",
    Useful USE_TPR_SHADOW "use TPR shadow",
    Unwanted INVLPG_EXITING "INVLPG exiting",
    Unwanted RDTSC_EXITING "RDTSC exiting",
    Unwanted CR3_LOAD_EXITING "CR3-load exiting",
    Unwanted CR3_STORE_EXITING "CR3-store exiting",
    Unwanted MOV_DR_EXITING "MOV-DR exiting",
    Unwanted USE_IO_BITMAPS "use I/O bitmaps",
    Unwanted MONITOR_TRAP_FLAG "monitor trap flag",
];

/// More primary controls where there is no TPR shadow: the task priority is then ours to keep.
pub const WITHOUT_TPR_SHADOW: [Wish; 2] = wishes![PrimaryControls:
    Needed CR8_LOAD_EXITING "CR8-load exiting",
    Needed CR8_STORE_EXITING "CR8-store exiting",
];

/// One more primary control where spin loops are not counted.
pub const WITHOUT_PAUSE_LOOP_EXITING: [Wish; 1] = wishes![PrimaryControls:
    Needed PAUSE_EXITING "PAUSE exiting",
];

/// Secondary processor-based controls.
pub const SECONDARY: [Wish; 10] = wishes![SecondaryControls:
    Needed ENABLE_EPT "enable EPT",
    Needed UNRESTRICTED_GUEST "unrestricted guest",
    Useful ENABLE_VPID "enable VPID",
    Useful ENABLE_RDTSCP "enable RDTSCP",
    Useful ENABLE_INVPCID "enable INVPCID",
    Useful WBINVD_EXITING "WBINVD exiting",
    Useful PAUSE_LOOP_EXITING "PAUSE-loop exiting",
    Unwanted DTABLE_EXITING "descriptor-table exiting",
    Unwanted RDRAND_EXITING "RDRAND exiting",
    Unwanted RDSEED_EXITING "RDSEED exiting",
];

/// VM-exit controls.
pub const EXIT: [Wish; 7] = wishes![ExitControls:
    Needed SAVE_DEBUG_CONTROLS "save debug controls",
    Needed HOST_ADDRESS_SPACE_SIZE "host address-space size",
    Needed ACK_INTERRUPT_ON_EXIT "acknowledge interrupt on exit",
    Needed SAVE_IA32_PAT "save IA32_PAT",
    Needed LOAD_IA32_PAT "load IA32_PAT (exit)",
    Needed SAVE_IA32_EFER "save IA32_EFER",
    Needed LOAD_IA32_EFER "load IA32_EFER (exit)",
];

/// VM-entry controls. "IA-32e mode guest" follows the guest.
pub const ENTRY: [Wish; 4] = wishes![EntryControls:
    Needed LOAD_DEBUG_CONTROLS "load debug controls",
    OnDemand IA32E_MODE_GUEST "IA-32e mode guest",
    Needed LOAD_IA32_PAT "load IA32_PAT (entry)",
    Needed LOAD_IA32_EFER "load IA32_EFER (entry)",
];

#[cfg(test)]
mod tests {
    use super::*;

    const A: u32 = 1 << 3;
    const B: u32 = 1 << 5;

    fn with(need: Need, must: u32, may: u32) -> Result<Adjusted, Refused> {
        adjust(
            &[Wish {
                bit: A,
                name: "A",
                need,
            }],
            u64::from(may) << 32 | u64::from(must),
        )
    }

    #[test]
    fn a_control_is_set_if_it_is_wanted_and_allowed() {
        assert_eq!(with(Need::Needed, B, A | B).unwrap().value, A | B);
        assert_eq!(with(Need::Needed, B, B), Err(Refused::CannotSet("A")));
        assert_eq!(with(Need::Useful, B, A | B).unwrap().value, A | B);
        let without = with(Need::Useful, B, B).unwrap();
        assert_eq!((without.value, without.dropped), (B, alloc::vec!["A"]));
    }

    #[test]
    fn what_is_switched_must_be_free_both_ways() {
        assert_eq!(with(Need::OnDemand, B, A | B).unwrap().value, B);
        assert_eq!(with(Need::OnDemand, 0, B), Err(Refused::CannotSet("A")));
        assert_eq!(with(Need::OnDemand, A, A), Err(Refused::CannotClear("A")));
    }

    #[test]
    fn what_the_processor_insists_on_must_not_hurt() {
        assert_eq!(with(Need::Unwanted, A, A), Err(Refused::CannotClear("A")));
        assert_eq!(with(Need::Unwanted, B, A | B).unwrap().value, B);
        assert_eq!(
            with(Need::Unwanted, A, A).unwrap_err().to_string(),
            "the processor does not let the control \"A\" be switched off"
        );
    }
}
