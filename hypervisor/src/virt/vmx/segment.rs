//! Segments as a VMCS holds them, and as everybody else does (SDM vol. 3, 27.4.1, table 27-2).

use crate::virt::{Segment, SegmentAttributes};

/// The segment register holds nothing.
const UNUSABLE: u32 = 1 << 16;
/// Type, S, DPL, P: the same bits in both forms.
const LOW: u16 = 0x00ff;
/// AVL, L, D/B, G: bits 8 to 11 there, 12 to 15 here.
const HIGH_SHIFT: u32 = 4;

/// Access rights to attributes. What is not usable keeps its privilege level only: that of SS is the CPU's.
pub fn attributes(rights: u32) -> SegmentAttributes {
    let [low, high, _, _] = rights.to_le_bytes();
    let all =
        SegmentAttributes::from_bits_retain(u16::from(low) | u16::from(high & 0xf0) << HIGH_SHIFT);
    if rights & UNUSABLE != 0 {
        all & SegmentAttributes::DPL
    } else {
        all
    }
}

/// Attributes to access rights. A segment that is not present cannot be used.
pub fn rights(attributes: SegmentAttributes) -> u32 {
    let bits = attributes.bits();
    let high = u32::from(bits & !LOW) << HIGH_SHIFT;
    let unusable = if attributes.contains(SegmentAttributes::PRESENT) {
        0
    } else {
        UNUSABLE
    };
    u32::from(bits & LOW) | high | unusable
}

/// A segment from the four fields of a VMCS.
pub fn segment(selector: u64, access: u64, limit: u64, base: u64) -> Segment {
    Segment {
        selector: selector as u16,
        attributes: attributes(access as u32),
        limit: limit as u32,
        base,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_say_the_same() {
        for (rights_form, attribute_form) in [
            (0xa09b, 0xa9b), // 64-bit code
            (0xc093, 0xc93), // flat data
            (0x009b, 0x09b), // real-mode code
            (0x008b, 0x08b), // busy TSS
            (0x0082, 0x082), // LDT
            (0xf0ff, 0xfff),
        ] {
            let form = SegmentAttributes::from_bits_retain(attribute_form);
            assert_eq!(attributes(rights_form), form, "{rights_form:#x}");
            assert_eq!(rights(form), rights_form, "{attribute_form:#x}");
        }
    }

    #[test]
    fn an_unusable_segment_has_a_privilege_level_and_no_more() {
        assert_eq!(attributes(0x1_c0f3), SegmentAttributes::DPL);
        assert_eq!(attributes(0x1_0000), SegmentAttributes::empty());
        assert_eq!(rights(SegmentAttributes::empty()), 0x1_0000);
        assert_eq!(rights(SegmentAttributes::DPL), 0x1_0060);
    }

    #[test]
    fn the_limit_is_in_bytes_already() {
        let flat = segment(8, 0xa09b, 0xffff_ffff, 0);
        assert_eq!((flat.selector, flat.limit, flat.base), (8, u32::MAX, 0));
    }
}
