//! The models against the published list, and the arithmetic of family and model.

use super::*;
use crate::cstate::tables::tests::{hex, rows};
use std::vec::Vec;

const LINUX_TSV: &str = include_str!("../vectors/linux_models.tsv");
const XEN_TSV: &str = include_str!("../vectors/xen_models.tsv");

fn intel(family: u16, model: u8) -> Identity {
    Identity {
        vendor: Vendor::Intel,
        family,
        model,
        stepping: 0,
    }
}

/// The models whose C1E promotion Lull sets, since nobody does any more and their tables have C1E alone.
const SETS_C1E: [u8; 4] = [0x97, 0x9A, 0xAA, 0xBE];

#[test]
fn all_models_are_as_linux_has_them() {
    let published: Vec<Vec<&str>> = rows(LINUX_TSV).collect();
    assert_eq!(published.len(), 53);
    for (row, model) in published.iter().zip(&MODELS) {
        let &[
            family,
            number,
            symbol,
            _,
            table,
            demote,
            _,
            byt,
            c1e,
            c1_demotion,
            use_acpi,
            fixup,
        ] = row.as_slice()
        else {
            panic!("{row:?}");
        };
        assert_eq!(model.family, family.parse::<u16>().unwrap());
        assert_eq!(u64::from(model.model), hex(number), "{symbol}");
        assert_eq!(symbol.strip_prefix("INTEL_").unwrap(), model.name);
        match model.table {
            Some(found) => assert_eq!(found.name, table, "{symbol}"),
            None => assert_eq!(table, "-(ACPI _CST only)", "{symbol}"),
        }
        let mut quirks = match hex(demote) {
            0 => Quirks::empty(),
            0x600_0000 => Quirks::CLEAR_C1_C3_DEMOTION,
            0x200_0000 => Quirks::CLEAR_C6_DEMOTION,
            other => panic!("{other:#x}"),
        };
        quirks.set(Quirks::ZERO_DEMOTION_POLICY, byt == "yes");
        quirks.set(Quirks::DISABLE_C1E_PROMOTION, c1e == "yes");
        quirks.set(Quirks::C1_DEMOTION_CONTROL, c1_demotion == "yes");
        quirks.set(Quirks::CST_SWITCHES, use_acpi == "yes");
        quirks |= match fixup {
            "-" => Quirks::empty(),
            "ivt socket-count" => Quirks::BY_SOCKETS,
            "bxt IRTL" => Quirks::BY_IRTL,
            "sklh C8/C9 off if PC10 and !SGX" => Quirks::PC10_NEEDS_SGX,
            "skx PC6-limit" | "spr PC6-limit" => Quirks::BY_PC6_LIMIT,
            other => panic!("{other}"),
        };
        quirks.set(
            Quirks::ENABLE_C1E_PROMOTION,
            SETS_C1E.contains(&model.model),
        );
        assert_eq!(model.quirks, quirks, "{symbol}");
    }
}

#[test]
fn xen_knows_no_model_that_is_not_here_and_gives_none_another_table() {
    for row in rows(XEN_TSV) {
        let found = intel(6, hex(row[1]) as u8).model_record().unwrap();
        assert_eq!(found.table.unwrap().name, row[4], "{}", row[2]);
    }
}

#[test]
fn models_are_sorted_and_found_by_family_and_vendor_too() {
    assert!(MODELS.is_sorted_by_key(|model| (model.family, model.model)));
    assert_eq!(intel(6, 0x55).model_record().unwrap().name, "SKYLAKE_X");
    // Nova Lake is family 18, Diamond Rapids 19: whoever looks at the model alone finds Nehalem's neighbours there.
    assert_eq!(intel(18, 0x55).model_record(), None);
    let amd = Identity {
        vendor: Vendor::Amd,
        ..intel(6, 0x55)
    };
    assert_eq!(amd.model_record(), None);
    // Client siblings without a table of their own get none.
    for model in [
        0x7E, 0x8C, 0x8D, 0xA5, 0xA6, 0xA7, 0xAC, 0xB7, 0xBA, 0xBD, 0xBF, 0xC5, 0xC6, 0xD5,
    ] {
        assert_eq!(intel(6, model).model_record(), None, "{model:#x}");
    }
}

#[test]
fn signatures_are_taken_apart_as_the_manuals_say() {
    for (vendor, eax, family, model, stepping) in [
        (Vendor::Intel, 0x0005_0654, 6, 0x55, 4),
        (Vendor::Intel, 0x000B_06A2, 6, 0xBA, 2),
        (Vendor::Intel, 0x0030_0F10, 18, 0x01, 0),
        (Vendor::Intel, 0x0040_0F11, 19, 0x01, 1),
        (Vendor::Amd, 0x00A0_0F11, 0x19, 0x01, 1),
        (Vendor::Amd, 0x00B0_0F21, 0x1A, 0x02, 1),
        (Vendor::Amd, 0x0006_0FB1, 0x0F, 0x6B, 1),
        (Vendor::Hygon, 0x0090_0F01, 0x18, 0x00, 1),
        (Vendor::Intel, u32::MAX, 0x0F + 0xFF, 0xFF, 0xF),
    ] {
        let expected = Identity {
            vendor,
            family,
            model,
            stepping,
        };
        assert_eq!(Identity::from_signature(vendor, eax), expected, "{eax:#x}");
        // Bits 15:12 say nothing of the model.
        let plain = eax & 0x0FFF_0FFF;
        assert_eq!(expected.signature(), Some(plain), "{eax:#x}");
        assert_eq!(Vendor::from_id(&vendor.id()), vendor);
    }
    assert_eq!(intel(6, 0x55).to_string(), "Intel 06_55 stepping 0");
}

#[test]
fn zen_is_named_family_by_family() {
    let zen = |vendor, family| {
        Identity {
            vendor,
            family,
            ..Identity::default()
        }
        .zen()
    };
    for family in [0x17, 0x19, 0x1A] {
        assert!(zen(Vendor::Amd, family), "{family:#x}");
        assert!(!zen(Vendor::Hygon, family), "{family:#x}");
    }
    assert!(zen(Vendor::Hygon, 0x18) && !zen(Vendor::Amd, 0x18));
    for family in [0x0F, 0x10, 0x15, 0x16, 0x1B] {
        assert!(!zen(Vendor::Amd, family), "{family:#x}");
    }
}
