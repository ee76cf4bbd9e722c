//! Every reason to refuse a kernel, and that no file makes the check panic.
use super::super::fixture::{ElfBuilder, Load};
use super::*;
use proptest::prelude::*;

const MEMORY: u64 = 8 << 20;

fn good() -> ElfBuilder {
    ElfBuilder::new()
        .load(Load::new(0x10_0000, b"code".to_vec(), 0x1000))
        .entry(0x10_0002)
}

fn refused(elf: &ElfBuilder) -> ElfProblem {
    PvhImage::parse(&elf.build(), MEMORY).expect_err("must be refused")
}

#[test]
fn a_good_kernel_is_read_at_any_alignment() {
    let file = good()
        .load(Load::new(0x20_0000, b"data".to_vec(), 4))
        .build();
    for shift in 0..8 {
        let mut shifted = vec![0u8; shift];
        shifted.extend_from_slice(&file);
        let image = PvhImage::parse(&shifted[shift..], MEMORY).expect("good");
        assert_eq!(image.entry, 0x10_0002);
        assert_eq!(image.segments.len(), 2);
        assert_eq!(
            image.segments[0],
            Segment {
                paddr: 0x10_0000,
                data: b"code",
                memsz: 0x1000
            }
        );
        assert_eq!(
            image.segments[1],
            Segment {
                paddr: 0x20_0000,
                data: b"data",
                memsz: 4
            }
        );
    }
}

#[test]
fn another_kind_of_file_is_named() {
    assert_eq!(PvhImage::parse(b"", MEMORY), Err(ElfProblem::NotElf));
    assert_eq!(
        PvhImage::parse(b"#!/bin/sh\n", MEMORY),
        Err(ElfProblem::NotElf)
    );
    assert_eq!(
        refused(&good().patch(4, &[1])),
        ElfProblem::Not64Bit { class: 1 }
    );
    assert_eq!(refused(&good().patch(5, &[2])), ElfProblem::NotLittleEndian);
    assert_eq!(
        refused(&good().patch(18, &[0xb7, 0])),
        ElfProblem::NotX86 { machine: 0xb7 }
    );
    assert_eq!(
        refused(&good().patch(16, &[1, 0])),
        ElfProblem::NotExecutable { kind: 1 }
    );
    assert_eq!(
        refused(&good().patch(54, &[32, 0])),
        ElfProblem::HeaderSize { size: 32 }
    );
    assert_eq!(
        refused(&good().patch(56, &[65, 0])),
        ElfProblem::TooManyHeaders { count: 65 }
    );
    assert_eq!(refused(&good().patch(56, &[0, 0])), ElfProblem::NoSegments);
}

#[test]
fn a_truncated_file_is_named_wherever_it_ends() {
    let file = good().build();
    for len in 4..file.len() {
        match PvhImage::parse(&file[..len], MEMORY) {
            Err(ElfProblem::Truncated { have, need, .. }) => {
                assert_eq!(have, len as u64);
                assert!(need > have);
            }
            other => panic!("{len} bytes of {}: {other:?}", file.len()),
        }
    }
}

#[test]
fn segments_must_fit() {
    let over = |paddr, memsz| refused(&good().load(Load::new(paddr, vec![1], memsz)));
    assert_eq!(
        over(0x70_0000, 0x10_0001),
        ElfProblem::OutsideMemory {
            paddr: 0x70_0000,
            memsz: 0x10_0001,
            memory: MEMORY
        }
    );
    assert!(matches!(
        over(u64::MAX - 1, 0x1000),
        ElfProblem::OutsideMemory { .. }
    ));
    assert!(matches!(
        over(0x9_dfff, 2),
        ElfProblem::OverReserved {
            name: "boot information",
            ..
        }
    ));
    assert!(matches!(
        over(0xf_ffff, 1),
        ElfProblem::OverReserved {
            name: "ACPI tables",
            ..
        }
    ));
    assert_eq!(
        over(0xf_f000, 0),
        ElfProblem::FileLargerThanMemory {
            paddr: 0xf_f000,
            filesz: 1,
            memsz: 0
        }
    );
    assert_eq!(
        over(0x10_0fff, 1),
        ElfProblem::Overlap {
            first: 0x10_0000..0x10_1000,
            second: 0x10_0fff..0x10_1000
        }
    );
    assert!(matches!(
        refused(&ElfBuilder::new().entry(0)),
        ElfProblem::NoSegments
    ));
}

#[test]
fn the_entry_must_be_in_a_segment_below_4_gib() {
    assert_eq!(
        refused(&good().entry(0x10_1000)),
        ElfProblem::EntryOutside { entry: 0x10_1000 }
    );
    assert_eq!(
        refused(&good().entry(0xf_ffff)),
        ElfProblem::EntryOutside { entry: 0xf_ffff }
    );
    assert_eq!(
        refused(&good().entry(1 << 32)),
        ElfProblem::EntryTooHigh { entry: 1 << 32 }
    );
    assert_eq!(refused(&good().without_note()), ElfProblem::NoPvhNote);
    assert_eq!(
        refused(&good().note_desc(vec![0; 3])),
        ElfProblem::BadPvhNote { len: 3 }
    );
    let narrow = good()
        .note_desc(0x10_0003u32.to_le_bytes().to_vec())
        .build();
    assert_eq!(
        PvhImage::parse(&narrow, MEMORY).expect("good").entry,
        0x10_0003
    );
}

#[test]
fn the_message_names_what_is_wrong_and_what_is_expected() {
    let outside = ElfProblem::OutsideMemory {
        paddr: 0x10_0000,
        memsz: 0x80_0000,
        memory: MEMORY,
    };
    assert_eq!(
        outside.to_string(),
        "segment at 0x100000 of 0x800000 bytes does not fit the guest's memory of 8192 KiB"
    );
    assert_eq!(outside.expected(), "segments within the guest's memory");
    assert!(
        ElfProblem::NoPvhNote
            .expected()
            .contains("XEN_ELFNOTE_PHYS32_ENTRY")
    );
    let overlap = ElfProblem::Overlap {
        first: 0x1000..0x3000,
        second: 0x2000..0x4000,
    }
    .to_string();
    assert!(
        !overlap.contains('\n') && overlap.contains("0x1000..0x3000"),
        "{overlap}"
    );
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        let _ = PvhImage::parse(&bytes, MEMORY);
    }

    #[test]
    fn a_mutated_kernel_never_panics_and_what_passes_is_sound(
        changes in proptest::collection::vec((0usize..400, any::<u8>()), 1..12),
        cut in 0usize..64,
    ) {
        let mut file = good().load(Load::new(0x20_0000, b"data".to_vec(), 0x10)).build();
        let len = file.len();
        for (at, value) in changes {
            file[at % len] = value;
        }
        file.truncate(len - cut);
        if let Ok(image) = PvhImage::parse(&file, MEMORY) {
            prop_assert!(image.segments.iter().any(|s| s.range().contains(&image.entry.into())));
            for (i, a) in image.segments.iter().enumerate() {
                prop_assert!(a.range().end <= MEMORY && a.data.len() as u64 <= a.memsz);
                prop_assert!(image.segments.iter().skip(i + 1).all(|b| !intersects(&a.range(), &b.range())));
            }
        }
    }
}
