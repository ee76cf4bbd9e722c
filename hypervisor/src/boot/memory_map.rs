//! Makes a memory map sorted and free of overlaps.
//!
//! Pure. Where two entries say different things about the same bytes, the stricter use holds: reserved over ACPI
//! over usable.

use arrayvec::ArrayVec;

use super::info::{BootError, BootProblem, MAX_MEMORY, MemoryPart};
use crate::mm::Range;

/// What was made of a raw map, and the first overlap, if there was one.
#[derive(Clone, Debug)]
pub struct Normalised {
    /// Sorted, disjoint, neighbours of one kind joined.
    pub parts: ArrayVec<MemoryPart, MAX_MEMORY>,
    /// The first bytes that two entries disagreed about or both claimed as usable.
    pub overlap: Option<BootProblem>,
}

/// Sorts the parts and settles overlaps.
///
/// # Errors
/// More parts come out than fit.
pub fn normalise(raw: &[MemoryPart]) -> Result<Normalised, BootError> {
    let mut parts: ArrayVec<MemoryPart, MAX_MEMORY> = ArrayVec::new();
    let mut overlap = None;
    let too_many = |_| BootError::TooMany {
        what: "parts of the memory map",
        found: raw.len() as u32,
        limit: MAX_MEMORY,
    };
    // Sweep from edge to edge: between two edges the use does not change.
    let mut at = 0;
    while let Some(next) = next_edge(raw, at) {
        let here = Range {
            start: at,
            end: next,
        };
        let mut covering = raw.iter().filter(|p| p.range.overlaps(&here));
        if let Some(kind) = covering.clone().map(|p| p.kind).max() {
            if covering.nth(1).is_some() && overlap.is_none() {
                overlap = Some(BootProblem::MemoryOverlaps(here));
            }
            match parts.last_mut() {
                Some(last) if last.kind == kind && last.range.end == at => last.range.end = next,
                _ => parts
                    .try_push(MemoryPart { range: here, kind })
                    .map_err(too_many)?,
            }
        }
        at = next;
    }
    Ok(Normalised { parts, overlap })
}

/// The lowest start or end above `at`.
fn next_edge(raw: &[MemoryPart], at: u64) -> Option<u64> {
    raw.iter()
        .flat_map(|p| [p.range.start, p.range.end])
        .filter(|edge| *edge > at)
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot::info::MemoryKind;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn part(start: u64, end: u64, kind: MemoryKind) -> MemoryPart {
        MemoryPart {
            range: Range { start, end },
            kind,
        }
    }

    #[test]
    fn parts_are_sorted_and_neighbours_joined() {
        let map = normalise(&[
            part(0x3000, 0x4000, MemoryKind::Usable),
            part(0, 0x1000, MemoryKind::Usable),
            part(0x1000, 0x2000, MemoryKind::Usable),
        ])
        .unwrap();
        assert_eq!(
            map.parts[..],
            [
                part(0, 0x2000, MemoryKind::Usable),
                part(0x3000, 0x4000, MemoryKind::Usable)
            ]
        );
        assert_eq!(map.overlap, None);
    }

    #[test]
    fn the_stricter_use_of_an_overlap_holds_and_is_told() {
        let map = normalise(&[
            part(0, 0x10000, MemoryKind::Usable),
            part(0x4000, 0x6000, MemoryKind::Reserved),
            part(0x5000, 0x8000, MemoryKind::Acpi),
        ])
        .unwrap();
        assert_eq!(
            map.parts[..],
            [
                part(0, 0x4000, MemoryKind::Usable),
                part(0x4000, 0x6000, MemoryKind::Reserved),
                part(0x6000, 0x8000, MemoryKind::Acpi),
                part(0x8000, 0x10000, MemoryKind::Usable),
            ]
        );
        assert_eq!(
            map.overlap,
            Some(BootProblem::MemoryOverlaps(Range {
                start: 0x4000,
                end: 0x5000
            }))
        );
    }

    proptest! {
        #[test]
        fn every_byte_has_the_strictest_use_that_was_said(
            raw in proptest::collection::vec((0u64..60, 1u64..20, 0u8..3), 0..12)
        ) {
            let kinds = [MemoryKind::Usable, MemoryKind::Acpi, MemoryKind::Reserved];
            let raw: Vec<_> = raw.into_iter().map(|(s, n, k)| part(s, s + n, kinds[k as usize])).collect();
            let map = normalise(&raw).unwrap();
            prop_assert!(map.parts.windows(2).all(|w| w[0].range.end <= w[1].range.start));
            for byte in 0..90 {
                let at = Range { start: byte, end: byte + 1 };
                let said = raw.iter().filter(|p| p.range.holds(&at)).map(|p| p.kind).max();
                let found = map.parts.iter().find(|p| p.range.holds(&at)).map(|p| p.kind);
                prop_assert_eq!(said, found);
            }
        }
    }
}
