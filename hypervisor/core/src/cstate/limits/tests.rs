//! The codes against the published ones.

use super::*;
use crate::cstate::tables::tests::{hex, rows};
use std::collections::BTreeMap;
use std::vec::Vec;

const CODES_TSV: &str = include_str!("../vectors/limit_codes.tsv");
const MODELS_TSV: &str = include_str!("../vectors/limit_models.tsv");

#[test]
fn all_codes_are_the_published_ones() {
    let mut codes: BTreeMap<&str, Vec<(u8, &str)>> = BTreeMap::new();
    for row in rows(CODES_TSV) {
        let code = (row[1].parse().unwrap(), row[2]);
        codes.entry(row[0]).or_default().push(code);
    }
    assert_eq!(codes.len(), 9);
    let published: Vec<Vec<&str>> = rows(MODELS_TSV).collect();
    assert_eq!(published.len(), PACKAGE_CONTROLS.len());
    for (row, mine) in published.iter().zip(&PACKAGE_CONTROLS) {
        assert_eq!(mine.family, row[0].parse::<u16>().unwrap());
        assert_eq!(u64::from(mine.model), hex(row[1]));
        assert_eq!(mine.codes, codes[row[3]], "{}", row[2]);
        let mut extras = Extras::empty();
        extras.set(Extras::C1_COUNTER, row[4] == "yes");
        extras.set(Extras::AUTO_CONVERSION, row[5] == "yes");
        assert_eq!(mine.extras, extras, "{}", row[2]);
    }
}

#[test]
fn a_code_means_what_the_model_says() {
    let of = |family, model| {
        PackageControl::of(&Identity {
            vendor: Vendor::Intel,
            family,
            model,
            stepping: 0,
        })
    };
    // The same code, three meanings.
    assert_eq!(of(6, 0x55).unwrap().limit(0x8402), Some("PC6N"));
    assert_eq!(of(6, 0x3C).unwrap().limit(0x8402), Some("PC3"));
    assert_eq!(of(6, 0x6A).unwrap().limit(0x1400_0402), Some("PC6"));
    assert_eq!(of(6, 0x55).unwrap().limit(0x8404), None);
    // Families other than 6.
    assert_eq!(of(18, 0x01).unwrap().limit(8), Some("unlimited"));
    assert_eq!(of(19, 0x01).unwrap().limit(0), Some("PC0"));
    assert_eq!(of(6, 0x0F), None);
    assert!(of(6, 0x55).unwrap().converts(1 << 16) && !of(6, 0x6A).unwrap().converts(1 << 16));
    let amd = Identity {
        vendor: Vendor::Amd,
        family: 6,
        model: 0x55,
        stepping: 0,
    };
    assert_eq!(PackageControl::of(&amd), None);
}
