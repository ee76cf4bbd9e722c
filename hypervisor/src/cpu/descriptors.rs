//! Descriptors as the CPU reads them: selectors, TSS descriptors, interrupt gates.

/// Selector of the 64-bit code segment.
pub const CODE: u16 = 8;
/// Selector of the data segment.
pub const DATA: u16 = 16;
/// Selector of the task state segment of this CPU.
pub const TSS: u16 = 24;

/// The two words of an available 64-bit TSS descriptor. Intel SDM vol. 3, 9.2.3.
#[must_use]
pub const fn tss_descriptor(base: u64, limit: u64) -> [u64; 2] {
    let low = (limit & 0xFFFF)
        | ((base & 0x00FF_FFFF) << 16)
        | (0x89 << 40)
        | ((limit >> 16 & 0xF) << 48)
        | ((base >> 24 & 0xFF) << 56);
    [low, base >> 32]
}

/// The two words of an interrupt gate with DPL 0. Intel SDM vol. 3, 7.14.1.
#[must_use]
pub const fn gate(address: u64, ist: u8) -> [u64; 2] {
    let low = (address & 0xFFFF)
        | ((CODE as u64) << 16)
        | ((ist as u64) << 32)
        | (0x8E << 40)
        | ((address >> 16 & 0xFFFF) << 48);
    [low, address >> 32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tss_descriptor_scatters_its_base() {
        let [low, high] = tss_descriptor(0x1122_3344_5566_7788, 103);
        assert_eq!(low, 0x5500_8966_7788_0067);
        assert_eq!(high, 0x1122_3344);
    }

    #[test]
    fn a_gate_scatters_its_address_and_names_its_stack() {
        let [low, high] = gate(0x1122_3344_5566_7788, 3);
        assert_eq!(low, 0x5566_8E03_0008_7788);
        assert_eq!(high, 0x1122_3344);
    }
}
