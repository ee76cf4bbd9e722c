//! Names and shapes of the APIC's registers (SDM 3A, table 11-1 and 11-6).
//!
//! A register is named by its number, which is the page offset divided by 16 and the MSR minus 800h.

/// Register numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reg {
    /// Id.
    Id,
    /// Version.
    Version,
    /// Task priority.
    Tpr,
    /// Arbitration priority (xAPIC only, obsolete: zero).
    Apr,
    /// Processor priority.
    Ppr,
    /// End of interrupt.
    Eoi,
    /// Logical destination.
    Ldr,
    /// Destination format (xAPIC only).
    Dfr,
    /// Spurious-interrupt vector.
    Svr,
    /// In service, 32 vectors.
    Isr(usize),
    /// Trigger mode, 32 vectors.
    Tmr(usize),
    /// Requested, 32 vectors.
    Irr(usize),
    /// Error status.
    Esr,
    /// Interrupt command (x2APIC: all 64 bits).
    Icr,
    /// High half of the interrupt command (xAPIC only).
    IcrHigh,
    /// Local vector table.
    Lvt(Lvt),
    /// Initial count.
    InitialCount,
    /// Current count.
    CurrentCount,
    /// Divide configuration.
    Divide,
    /// Self IPI (x2APIC only).
    SelfIpi,
}

/// Entries of the local vector table, in register order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lvt {
    /// Timer.
    Timer = 0,
    /// Thermal sensor.
    Thermal = 1,
    /// Performance counters.
    Performance = 2,
    /// Pin 0.
    Lint0 = 3,
    /// Pin 1.
    Lint1 = 4,
    /// Errors.
    Error = 5,
}

/// LVT mask bit.
pub const LVT_MASKED: u32 = 1 << 16;

/// Entries of the LVT.
pub const LVT_COUNT: usize = 6;

impl Lvt {
    /// Bits that software can write.
    pub const fn writable(self) -> u32 {
        match self {
            Self::Timer => 0x7_00ff,
            Self::Thermal | Self::Performance => 0x1_07ff,
            Self::Lint0 | Self::Lint1 => 0x1_a7ff,
            Self::Error => 0x1_00ff,
        }
    }
}

impl Reg {
    /// By register number (page offset / 16, MSR - 800h).
    pub fn from_number(number: u32) -> Option<Self> {
        let row = |base: u32| usize::try_from(number - base).unwrap_or(0);
        Some(match number {
            0x02 => Self::Id,
            0x03 => Self::Version,
            0x08 => Self::Tpr,
            0x09 => Self::Apr,
            0x0a => Self::Ppr,
            0x0b => Self::Eoi,
            0x0d => Self::Ldr,
            0x0e => Self::Dfr,
            0x0f => Self::Svr,
            0x10..=0x17 => Self::Isr(row(0x10)),
            0x18..=0x1f => Self::Tmr(row(0x18)),
            0x20..=0x27 => Self::Irr(row(0x20)),
            0x28 => Self::Esr,
            0x30 => Self::Icr,
            0x31 => Self::IcrHigh,
            0x32 => Self::Lvt(Lvt::Timer),
            0x33 => Self::Lvt(Lvt::Thermal),
            0x34 => Self::Lvt(Lvt::Performance),
            0x35 => Self::Lvt(Lvt::Lint0),
            0x36 => Self::Lvt(Lvt::Lint1),
            0x37 => Self::Lvt(Lvt::Error),
            0x38 => Self::InitialCount,
            0x39 => Self::CurrentCount,
            0x3e => Self::Divide,
            0x3f => Self::SelfIpi,
            _ => return None,
        })
    }

    /// Its number.
    pub fn number(self) -> u32 {
        let row = |base: u32, row: usize| base + u32::try_from(row).unwrap_or(0);
        match self {
            Self::Id => 0x02,
            Self::Version => 0x03,
            Self::Tpr => 0x08,
            Self::Apr => 0x09,
            Self::Ppr => 0x0a,
            Self::Eoi => 0x0b,
            Self::Ldr => 0x0d,
            Self::Dfr => 0x0e,
            Self::Svr => 0x0f,
            Self::Isr(index) => row(0x10, index),
            Self::Tmr(index) => row(0x18, index),
            Self::Irr(index) => row(0x20, index),
            Self::Esr => 0x28,
            Self::Icr => 0x30,
            Self::IcrHigh => 0x31,
            Self::Lvt(which) => row(0x32, which as usize),
            Self::InitialCount => 0x38,
            Self::CurrentCount => 0x39,
            Self::Divide => 0x3e,
            Self::SelfIpi => 0x3f,
        }
    }

    /// Whether an x2APIC has it.
    pub fn in_x2apic(self) -> bool {
        !matches!(self, Self::Apr | Self::Dfr | Self::IcrHigh)
    }

    /// Whether RDMSR of it works on an x2APIC.
    pub fn x2apic_readable(self) -> bool {
        self.in_x2apic() && !matches!(self, Self::Eoi | Self::SelfIpi)
    }

    /// The bits that WRMSR may set on an x2APIC; `None` for a read-only register.
    pub fn x2apic_writable(self) -> Option<u64> {
        Some(match self {
            Self::Tpr | Self::SelfIpi => 0xff,
            Self::Eoi | Self::Esr => 0,
            Self::Svr => 0x1ff,
            Self::Icr => super::icr::Icr::X2APIC_BITS,
            // The delivery status (bit 12) and remote IRR (bit 14) are read-only, not reserved.
            Self::Lvt(lvt) => u64::from(lvt.writable() | 1 << 12 | 1 << 14),
            Self::InitialCount => 0xffff_ffff,
            Self::Divide => 0xb,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_is_known_by_its_number() {
        let all: Vec<Reg> = (0..0x100).filter_map(Reg::from_number).collect();
        assert_eq!(all.len(), 46);
        for reg in all {
            assert_eq!(Reg::from_number(reg.number()), Some(reg));
        }
    }
}
