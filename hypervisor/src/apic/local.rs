//! The registers of the local APIC in both of its modes, behind one type.
//!
//! Intel SDM vol. 3, chapter 13; AMD APM vol. 2, chapter 16.
use super::mmio::Mmio;
use super::msr;
use lull_core::units::CpuId;
use spin::Once;

/// How the local APICs are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Registers in memory, 8-bit ids.
    XApic,
    /// Registers as MSRs, 32-bit ids.
    X2Apic,
}

/// A register, by its xAPIC offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
#[expect(missing_docs, reason = "the manual's names")]
pub enum Register {
    Id = 0x020,
    Version = 0x030,
    TaskPriority = 0x080,
    Eoi = 0x0B0,
    LogicalDestination = 0x0D0,
    DestinationFormat = 0x0E0,
    SpuriousVector = 0x0F0,
    InService = 0x100,
    ErrorStatus = 0x280,
    CommandLow = 0x300,
    CommandHigh = 0x310,
    LvtTimer = 0x320,
    LvtThermal = 0x330,
    LvtPerformance = 0x340,
    LvtLint0 = 0x350,
    LvtLint1 = 0x360,
    LvtError = 0x370,
    InitialCount = 0x380,
    CurrentCount = 0x390,
    DivideConfiguration = 0x3E0,
}

/// Bit of every LVT entry: no interrupt.
pub const LVT_MASKED: u32 = 1 << 16;
/// Delivery mode NMI in an LVT entry.
pub const LVT_NMI: u32 = 0b100 << 8;
/// Software enable in the spurious-vector register.
pub const SOFTWARE_ENABLE: u32 = 1 << 8;

/// The local APIC of the CPU that runs this. The same value works on every CPU: each sees its own registers.
#[derive(Clone, Copy, Debug)]
pub enum LocalApic {
    /// The page of registers.
    XApic(Mmio),
    /// The MSRs from 800h on.
    X2Apic,
}

static LOCAL: Once<LocalApic> = Once::new();

/// The local APIC, once it has been set up.
#[inline]
pub fn get() -> Option<&'static LocalApic> {
    LOCAL.get()
}

/// Makes `apic` the one that [`get`] gives. Only the first call counts.
#[cfg(target_os = "none")]
pub(super) fn set(apic: LocalApic) -> &'static LocalApic {
    LOCAL.call_once(|| apic)
}

impl LocalApic {
    /// Reads a register.
    #[inline]
    pub fn read(&self, register: Register) -> u32 {
        self.read_at(register as u16)
    }

    /// Writes a register. IPIs are not sent by this, but by [`icr::write`](super::icr::write).
    #[inline]
    pub fn write(&self, register: Register, value: u32) {
        match self {
            Self::XApic(page) => page.write32(register as usize, value),
            Self::X2Apic => msr::write(msr::X2APIC + (register as u32 >> 4), value.into()),
        }
    }

    fn read_at(&self, offset: u16) -> u32 {
        match self {
            Self::XApic(page) => page.read32(offset.into()),
            Self::X2Apic => msr::read(msr::X2APIC + (u32::from(offset) >> 4)) as u32,
        }
    }

    /// The mode.
    pub fn mode(&self) -> Mode {
        match self {
            Self::XApic(_) => Mode::XApic,
            Self::X2Apic => Mode::X2Apic,
        }
    }

    /// The id: 8 bits in xAPIC mode, 32 in x2APIC mode.
    pub fn id(&self) -> u32 {
        let id = self.read(Register::Id);
        match self {
            Self::XApic(_) => id >> 24,
            Self::X2Apic => id,
        }
    }

    /// Gives this CPU its bit of the flat logical model, if it is one of the first eight; others have none. Before
    /// [`reset`](Self::reset), which enables it by software. In x2APIC mode the logical id is made by hardware (Intel SDM vol. 3,
    /// 13.6.2.2 and 13.12.10.2).
    pub fn set_flat_id(&self, cpu: CpuId) {
        const FLAT: u32 = !0;
        if let Self::XApic(_) = self {
            self.write(Register::DestinationFormat, FLAT);
            let member = 1_u8.checked_shl(cpu.get()).unwrap_or(0);
            self.write(Register::LogicalDestination, u32::from(member) << 24);
        }
    }

    /// Is any interrupt in service: taken, and not ended yet?
    pub fn is_in_service(&self) -> bool {
        (0..8).any(|word| self.read_at(Register::InService as u16 + 0x10 * word) != 0)
    }

    /// Brings the registers of this CPU into a known state: everything masked but NMI on LINT1, all priorities let
    /// through, software-enabled with `spurious` as spurious vector. Old interrupts in service are ended.
    pub fn reset(&self, spurious: u8) {
        // Entries above LINT1's exist only where the version register says so.
        let last_entry = self.read(Register::Version) >> 16 & 0xFF;
        self.write(Register::TaskPriority, 0);
        self.write(Register::LvtTimer, LVT_MASKED);
        self.write(Register::LvtLint0, LVT_MASKED);
        self.write(Register::LvtLint1, LVT_NMI);
        for (entry, register) in [
            (3, Register::LvtError),
            (4, Register::LvtPerformance),
            (5, Register::LvtThermal),
        ] {
            if last_entry >= entry {
                self.write(register, LVT_MASKED);
            }
        }
        self.write(
            Register::SpuriousVector,
            SOFTWARE_ENABLE | u32::from(spurious),
        );
        // Firmware may have been left inside a handler. Each EOI ends one; there cannot be more than 256.
        for _ in 0..256 {
            if !self.is_in_service() {
                break;
            }
            self.write(Register::Eoi, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reset_masks_what_exists_and_lets_nmi_through() {
        let mut page = vec![0xAAu32; 0x400 / 4];
        // The version register: the last LVT entry is number 3.
        page[0x30 / 4] = 3 << 16 | 0x14;
        page[0x100 / 4..0x180 / 4].fill(0);
        let apic = LocalApic::XApic(Mmio::over(&mut page));
        apic.reset(0xFF);
        assert_eq!(page[0x350 / 4], LVT_MASKED);
        assert_eq!(page[0x360 / 4], 0x400);
        assert_eq!(page[0x370 / 4], LVT_MASKED);
        assert_eq!(
            (page[0x340 / 4], page[0x330 / 4]),
            (0xAA, 0xAA),
            "entries that do not exist are left alone"
        );
        assert_eq!(page[0xF0 / 4], 0x1FF);
        assert_eq!(page[0x80 / 4], 0);
    }

    #[test]
    fn the_first_eight_cpus_have_a_bit_each() {
        for (cpu, expected) in [(0, 1 << 24), (7, 1 << 31), (8, 0), (40, 0)] {
            let mut page = vec![0u32; 0x400 / 4];
            LocalApic::XApic(Mmio::over(&mut page)).set_flat_id(CpuId::new(cpu));
            assert_eq!((page[0xE0 / 4], page[0xD0 / 4]), (u32::MAX, expected));
        }
    }

    #[test]
    fn one_bit_in_any_word_is_in_service() {
        for word in 0..8 {
            let mut page = vec![0u32; 0x400 / 4];
            assert!(!LocalApic::XApic(Mmio::over(&mut page)).is_in_service());
            page[(0x100 + 0x10 * word) / 4] = 1 << 31;
            assert!(LocalApic::XApic(Mmio::over(&mut page)).is_in_service());
        }
    }

    #[test]
    fn xapic_id_is_in_the_top_byte() {
        let mut page = vec![0u32; 0x400 / 4];
        page[0x20 / 4] = 0x2A00_0000;
        assert_eq!(LocalApic::XApic(Mmio::over(&mut page)).id(), 0x2A);
    }
}
