use super::super::info::{BootProblem, MAX_CMDLINE, MAX_MODULES, MemoryKind, Module};
use super::*;
use crate::mm::Range;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

const AT: u64 = 0x1_0000;

/// Boot information in the making.
struct Info(Vec<u8>);

impl Physical for Info {
    fn bytes(&self, address: u64, len: usize) -> Option<&[u8]> {
        let start = usize::try_from(address.checked_sub(AT)?).ok()?;
        self.0.get(start..start.checked_add(len)?)
    }
}

impl Info {
    fn new() -> Self {
        Self(vec![0; HEAD])
    }
    fn tag(mut self, kind: u32, payload: &[u8]) -> Self {
        self.0.extend_from_slice(&kind.to_le_bytes());
        let size = (TAG_HEAD + payload.len()) as u32;
        self.0.extend_from_slice(&size.to_le_bytes());
        self.0.extend_from_slice(payload);
        self.0.resize(self.0.len().next_multiple_of(ALIGN), 0);
        self
    }
    fn memory(self, entry_size: u32, entries: &[(u64, u64, u32)]) -> Self {
        let mut payload = [entry_size.to_le_bytes(), [0; 4]].concat();
        for (start, len, kind) in entries {
            payload.extend_from_slice(&start.to_le_bytes());
            payload.extend_from_slice(&len.to_le_bytes());
            payload.extend_from_slice(&kind.to_le_bytes());
            payload.resize(payload.len() + entry_size as usize - MEMORY_ENTRY, 0);
        }
        self.tag(MEMORY_MAP, &payload)
    }
    fn module(self, start: u32, end: u32) -> Self {
        let payload = [&start.to_le_bytes()[..], &end.to_le_bytes(), b"name\0"].concat();
        self.tag(MODULE, &payload)
    }
    fn end(mut self) -> Self {
        self = self.tag(END, &[]);
        let size = self.0.len() as u32;
        self.0[..4].copy_from_slice(&size.to_le_bytes());
        self
    }
    fn parse(&self) -> Result<(BootInfo, Option<Rsdp>), BootError> {
        parse(self, MAGIC, AT)
    }
}

fn good() -> Info {
    Info::new()
        .tag(COMMAND_LINE, b"loglvl=err\0")
        .tag(2, b"GRUB\0")
        .module(0x60_0000, 0x60_1234)
        .module(0x50_0000, 0x50_1000)
        .memory(
            24,
            &[
                (0, 0x9_fc00, 1),
                (0x9_fc00, 0x400, 2),
                (0x10_0000, 0x700_0000, 1),
                (0x710_0000, 0x1000, 3),
            ],
        )
        .tag(ACPI_OLD, &[1; RSDP_V1])
}

#[test]
fn good_boot_information_is_read_whole() {
    let (boot, rsdp) = good().end().parse().unwrap();
    assert_eq!(&*boot.cmdline, "loglvl=err");
    assert_eq!(rsdp.unwrap()[..], [1; RSDP_V1]);
    let module = |start, end| Module {
        range: Range { start, end },
    };
    assert_eq!(
        boot.modules[..],
        [module(0x50_0000, 0x50_1000), module(0x60_0000, 0x60_1234)],
        "sorted"
    );
    let kinds: Vec<_> = boot
        .memory
        .iter()
        .map(|p| (p.range.start, p.kind))
        .collect();
    assert_eq!(
        kinds,
        [
            (0, MemoryKind::Usable),
            (0x9_fc00, MemoryKind::Reserved),
            (0x10_0000, MemoryKind::Usable),
            (0x710_0000, MemoryKind::Acpi)
        ]
    );
    assert!(boot.problems.is_empty());
}

#[test]
fn the_newer_rsdp_wins_in_either_order() {
    let old = || Info::new().memory(24, &[(0, 0x1000, 1)]);
    for info in [
        old()
            .tag(ACPI_OLD, &[1; RSDP_V1])
            .tag(ACPI_NEW, &[2; RSDP_V2]),
        old()
            .tag(ACPI_NEW, &[2; RSDP_V2])
            .tag(ACPI_OLD, &[1; RSDP_V1]),
    ] {
        let (_, rsdp) = info.end().parse().unwrap();
        assert_eq!(rsdp.unwrap()[..], [2; RSDP_V2]);
    }
    let (_, rsdp) = old()
        .tag(ACPI_OLD, &[1; RSDP_V1])
        .tag(ACPI_NEW, &[2; 9])
        .end()
        .parse()
        .unwrap();
    assert_eq!(rsdp.unwrap().len(), RSDP_V1, "a short one does not count");
}

#[test]
fn what_is_no_boot_information_is_refused() {
    let info = good().end();
    assert_eq!(
        parse(&info, 0x2BAD_B002, AT).unwrap_err(),
        BootError::NotMultiboot2(0x2BAD_B002)
    );
    assert!(matches!(
        parse(&info, MAGIC, AT + 0x10_0000).unwrap_err(),
        BootError::Unreadable { .. }
    ));
    for size in [0, 7, u32::MAX] {
        let mut info = good().end();
        info.0[..4].copy_from_slice(&size.to_le_bytes());
        assert_eq!(info.parse().unwrap_err(), BootError::BadSize(size));
    }
    assert_eq!(
        Info::new().end().parse().unwrap_err(),
        BootError::NoMemoryMap
    );
}

#[test]
fn tags_of_an_impossible_size_are_refused() {
    for size in [0, 7, 0x1000, u32::MAX] {
        let mut info = good().end();
        info.0[HEAD + 4..HEAD + 8].copy_from_slice(&u32::to_le_bytes(size));
        assert_eq!(
            info.parse().unwrap_err(),
            BootError::BadTag {
                kind: COMMAND_LINE,
                at: HEAD
            }
        );
    }
    let short = Info::new().tag(MODULE, &[0; 7]).end();
    assert!(matches!(
        short.parse().unwrap_err(),
        BootError::BadTag { kind: MODULE, .. }
    ));
    for entry_size in [0u32, 19, 25] {
        let payload = [&entry_size.to_le_bytes()[..], &[0; 4 + 24]].concat();
        let odd = Info::new().tag(MEMORY_MAP, &payload).end();
        assert!(
            matches!(
                odd.parse().unwrap_err(),
                BootError::BadTag {
                    kind: MEMORY_MAP,
                    ..
                }
            ),
            "{entry_size}"
        );
    }
}

#[test]
fn bad_modules_are_refused() {
    let twice = good().module(0x60_0000, 0x60_0001).end();
    assert!(matches!(
        twice.parse().unwrap_err(),
        BootError::ModulesOverlap(..)
    ));
    let empty = good().module(0x70_0000, 0x70_0000).end();
    assert_eq!(
        empty.parse().unwrap_err(),
        BootError::ModuleBad { index: 2 }
    );
    let many = (1..=MAX_MODULES as u32 + 1).fold(Info::new(), |info, i| {
        info.module(i * 0x1000, i * 0x1000 + 1)
    });
    assert!(matches!(
        many.end().parse().unwrap_err(),
        BootError::TooMany {
            what: "boot modules",
            ..
        }
    ));
}

#[test]
fn the_first_command_line_counts_and_is_cut_where_it_must_be() {
    let two = good().tag(COMMAND_LINE, b"second\0").end();
    assert_eq!(&*two.parse().unwrap().0.cmdline, "loglvl=err");
    let long = Info::new()
        .tag(COMMAND_LINE, &[b'a'; MAX_CMDLINE + 1])
        .memory(20, &[(0, 0x1000, 1)])
        .end();
    let (boot, _) = long.parse().unwrap();
    assert_eq!(boot.cmdline.len(), MAX_CMDLINE);
    assert_eq!(boot.problems[..], [BootProblem::CmdlineTooLong]);
}

proptest! {
    #[test]
    fn no_boot_information_can_make_it_panic(
        noise in proptest::collection::vec(any::<u8>(), 0..400), at in 4usize..300, size in any::<u32>()
    ) {
        let mut info = good().end();
        let end = info.0.len().min(at + noise.len());
        if at < end {
            info.0[at..end].copy_from_slice(&noise[..end - at]);
        }
        let _ = info.parse();
        info.0[..4].copy_from_slice(&size.to_le_bytes());
        let _ = info.parse();
    }

    #[test]
    fn tags_of_noise_cannot_make_it_panic(
        tags in proptest::collection::vec((0u32..20, proptest::collection::vec(any::<u8>(), 0..60)), 0..20)
    ) {
        let info = tags.iter().fold(Info::new(), |info, (kind, payload)| info.tag(*kind, payload));
        let _ = info.end().parse();
    }
}
