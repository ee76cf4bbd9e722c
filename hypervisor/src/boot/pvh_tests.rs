use super::super::info::{BootProblem, MAX_CMDLINE, MemoryKind, Module};
use super::*;
use crate::mm::Range;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

/// Physical memory from address 0 on.
struct Memory(Vec<u8>);

impl Physical for Memory {
    fn bytes(&self, address: u64, len: usize) -> Option<&[u8]> {
        let start = usize::try_from(address).ok()?;
        self.0.get(start..start.checked_add(len)?)
    }
}

const INFO: usize = 0x100;
const MAP: usize = 0x200;
const MODULES: usize = 0x400;
const CMDLINE: usize = 0x800;

impl Memory {
    fn good() -> Self {
        let mut memory = Self(vec![0; 0x2000]);
        memory.u32(INFO, MAGIC);
        memory.u32(INFO + 4, 1);
        memory.u64(INFO + 40, MAP as u64);
        memory.memory(&[
            (0, 0x9_fc00, 1),
            (0x9_fc00, 0x400, 2),
            (0x10_0000, 0x700_0000, 1),
            (0x710_0000, 0x1000, 3),
        ]);
        memory.u64(INFO + 32, 0xf_5000);
        memory.u64(INFO + 24, CMDLINE as u64);
        memory.0[CMDLINE..CMDLINE + 10].copy_from_slice(b"loglvl=err");
        memory.modules(&[(0x500_0000, 0x1234)]);
        memory
    }
    fn u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    fn u64(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    fn memory(&mut self, entries: &[(u64, u64, u32)]) {
        self.u32(INFO + 48, entries.len() as u32);
        for (i, &(start, len, kind)) in entries.iter().enumerate() {
            self.u64(MAP + i * 24, start);
            self.u64(MAP + i * 24 + 8, len);
            self.u32(MAP + i * 24 + 16, kind);
        }
    }
    fn modules(&mut self, entries: &[(u64, u64)]) {
        self.u32(INFO + 12, entries.len() as u32);
        self.u64(INFO + 16, MODULES as u64);
        for (i, &(start, len)) in entries.iter().enumerate() {
            self.u64(MODULES + i * 32, start);
            self.u64(MODULES + i * 32 + 8, len);
        }
    }
    fn parse(&self) -> Result<BootInfo, BootError> {
        parse(self, INFO as u64)
    }
}

#[test]
fn a_good_start_info_is_read_whole() {
    let boot = Memory::good().parse().unwrap();
    assert_eq!(&*boot.cmdline, "loglvl=err");
    assert_eq!(boot.rsdp, Some(0xf_5000));
    assert_eq!(
        boot.modules[..],
        [Module {
            range: Range {
                start: 0x500_0000,
                end: 0x500_1234
            }
        }]
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
fn what_is_no_start_info_is_refused() {
    let mut memory = Memory::good();
    memory.u32(INFO, 0x2BAD_B002);
    assert_eq!(
        memory.parse().unwrap_err(),
        BootError::BadMagic(0x2BAD_B002)
    );
    let mut memory = Memory::good();
    memory.u32(INFO + 4, 0);
    assert_eq!(memory.parse().unwrap_err(), BootError::BadVersion(0));
    assert!(matches!(
        parse(&Memory::good(), u64::MAX - 3),
        Err(BootError::Unreadable {
            what: "start info",
            ..
        })
    ));
}

#[test]
fn a_missing_or_unreadable_memory_map_is_refused() {
    let mut memory = Memory::good();
    memory.u64(INFO + 40, 0);
    assert_eq!(memory.parse().unwrap_err(), BootError::NoMemoryMap);
    memory.u64(INFO + 40, 0x1ff0);
    assert_eq!(
        memory.parse().unwrap_err(),
        BootError::Unreadable {
            what: "memory map",
            address: 0x1ff0
        }
    );
    memory.u32(INFO + 48, u32::MAX);
    assert!(matches!(
        memory.parse().unwrap_err(),
        BootError::TooMany {
            found: u32::MAX,
            ..
        }
    ));
}

#[test]
fn empty_memory_entries_are_left_out_and_bad_ones_told() {
    let mut memory = Memory::good();
    memory.memory(&[(0x1000, 0, 1), (u64::MAX, 2, 1), (0x2000, 0x1000, 1)]);
    let boot = memory.parse().unwrap();
    assert_eq!(boot.problems[..], [BootProblem::MemoryPartBad { index: 1 }]);
    assert_eq!(boot.memory.len(), 1);
}

#[test]
fn bad_modules_are_refused() {
    let mut memory = Memory::good();
    memory.modules(&[(0x5000, 0x1000), (0x5fff, 0x10)]);
    assert!(matches!(
        memory.parse().unwrap_err(),
        BootError::ModulesOverlap(..)
    ));
    memory.modules(&[(0x5000, 0)]);
    assert_eq!(
        memory.parse().unwrap_err(),
        BootError::ModuleBad { index: 0 }
    );
    memory.modules(&[(u64::MAX, 0x10)]);
    assert_eq!(
        memory.parse().unwrap_err(),
        BootError::ModuleBad { index: 0 }
    );
    memory.u32(INFO + 12, 9);
    assert!(matches!(
        memory.parse().unwrap_err(),
        BootError::TooMany {
            what: "boot modules",
            found: 9,
            ..
        }
    ));
}

#[test]
fn a_command_line_that_is_too_long_or_not_text_is_cut_and_told() {
    let mut memory = Memory::good();
    memory.0[CMDLINE..CMDLINE + MAX_CMDLINE + 1].fill(b'a');
    let boot = memory.parse().unwrap();
    assert_eq!(boot.cmdline.len(), MAX_CMDLINE);
    assert_eq!(boot.problems[..], [BootProblem::CmdlineTooLong]);
    let mut memory = Memory::good();
    memory.0[CMDLINE + 3] = 0xff;
    let boot = memory.parse().unwrap();
    assert_eq!(&*boot.cmdline, "log");
    assert_eq!(boot.problems[..], [BootProblem::CmdlineNotText { at: 3 }]);
    let mut memory = Memory::good();
    memory.u64(INFO + 24, 0);
    assert_eq!(&*memory.parse().unwrap().cmdline, "");
}

proptest! {
    #[test]
    fn no_start_info_can_make_it_panic(noise in proptest::collection::vec(any::<u8>(), 56), map in proptest::collection::vec(any::<u8>(), 240)) {
        let mut memory = Memory::good();
        memory.0[INFO + 8..INFO + 56].copy_from_slice(&noise[8..]);
        memory.0[MAP..MAP + 240].copy_from_slice(&map);
        let _ = memory.parse();
        memory.u64(INFO + 40, MAP as u64);
        memory.u32(INFO + 48, 10);
        let _ = memory.parse();
    }
}
