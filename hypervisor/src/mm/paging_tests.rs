use super::*;
use alloc::vec::Vec;
use proptest::prelude::*;

/// Tables in a `Vec`: table n is at address `n * 4096`.
struct Memory {
    tables: Vec<[u64; ENTRIES]>,
    room: usize,
    giant: bool,
}

impl Memory {
    fn new(giant: bool) -> (Self, u64) {
        let mut memory = Self {
            tables: Vec::new(),
            room: 10_000,
            giant,
        };
        let root = memory.allocate().unwrap();
        (memory, root)
    }
}

impl Tables for Memory {
    fn read(&self, table: u64, index: usize) -> u64 {
        self.tables[(table / FRAME) as usize][index]
    }
    fn write(&mut self, table: u64, index: usize, entry: u64) {
        self.tables[(table / FRAME) as usize][index] = entry;
    }
    fn allocate(&mut self) -> Result<u64, FrameError> {
        if self.tables.len() == self.room {
            return Err(FrameError::OutOfMemory {
                size: FRAME,
                align: FRAME,
            });
        }
        self.tables.push([0; ENTRIES]);
        Ok((self.tables.len() as u64 - 1) * FRAME)
    }
    fn largest_page_level(&self) -> u32 {
        if self.giant { 3 } else { 2 }
    }
}

fn sizes(memory: &Memory, root: u64) -> Vec<(u64, u64)> {
    let mut pages = Vec::new();
    walk(memory, root, &mut |p| pages.push((p.address, p.size)));
    pages
}

#[test]
fn the_largest_pages_that_fit_are_used() {
    let (mut memory, root) = Memory::new(true);
    set(
        &mut memory,
        root,
        Range {
            start: 0x3fdf_f000,
            end: 0x8020_1000,
        },
        Some(Access::Data),
    )
    .unwrap();
    assert_eq!(
        sizes(&memory, root),
        [
            (0x3fdf_f000, FRAME),
            (0x3fe0_0000, 2 << 20),
            (0x4000_0000, 1 << 30),
            (0x8000_0000, 2 << 20),
            (0x8020_0000, FRAME)
        ]
    );
    let (mut memory, root) = Memory::new(false);
    set(
        &mut memory,
        root,
        Range {
            start: 0x4000_0000,
            end: 0x8000_0000,
        },
        Some(Access::Data),
    )
    .unwrap();
    assert_eq!(
        sizes(&memory, root).len(),
        512,
        "2 MiB pages where the CPU has no 1 GiB ones"
    );
}

#[test]
fn a_guard_page_is_cut_out_of_a_large_page_and_nothing_else_changes() {
    let (mut memory, root) = Memory::new(true);
    set(
        &mut memory,
        root,
        Range {
            start: 0,
            end: 1 << 30,
        },
        Some(Access::Data),
    )
    .unwrap();
    set(
        &mut memory,
        root,
        Range {
            start: 0x20_3000,
            end: 0x20_4000,
        },
        None,
    )
    .unwrap();
    assert_eq!(find(&memory, root, 0x20_3fff), None);
    for address in [0x20_2fff, 0x20_4000, 0x40_0000, 0x3fff_ffff] {
        let page = find(&memory, root, address).unwrap();
        assert!(
            page.writable && !page.executable && page.physical == page.address,
            "{page:x?}"
        );
    }
    assert_eq!(find(&memory, root, 0x20_4000).unwrap().size, FRAME);
    assert_eq!(find(&memory, root, 0x40_0000).unwrap().size, 2 << 20);
}

#[test]
fn each_access_has_its_rights() {
    let (mut memory, root) = Memory::new(true);
    let frame = |n: u64| Range {
        start: n * FRAME,
        end: (n + 1) * FRAME,
    };
    for (n, access) in [Access::Code, Access::ReadOnly, Access::Data, Access::Device]
        .into_iter()
        .enumerate()
    {
        set(&mut memory, root, frame(n as u64), Some(access)).unwrap();
    }
    let rights = |n: u64| {
        let page = find(&memory, root, n * FRAME).unwrap();
        (page.writable, page.executable, page.device)
    };
    assert_eq!(rights(0), (false, true, false));
    assert_eq!(rights(1), (false, false, false));
    assert_eq!(rights(2), (true, false, false));
    assert_eq!(rights(3), (true, false, true));
}

#[test]
fn splitting_keeps_device_memory_uncached() {
    let (mut memory, root) = Memory::new(true);
    set(
        &mut memory,
        root,
        Range {
            start: 0,
            end: 1 << 30,
        },
        Some(Access::Device),
    )
    .unwrap();
    set(
        &mut memory,
        root,
        Range {
            start: 0,
            end: FRAME,
        },
        Some(Access::ReadOnly),
    )
    .unwrap();
    assert!(find(&memory, root, FRAME).unwrap().device);
    assert!(find(&memory, root, 5 << 21).unwrap().device);
}

#[test]
fn running_out_of_tables_is_an_error() {
    let (mut memory, root) = Memory::new(true);
    memory.room = 2;
    let full = set(
        &mut memory,
        root,
        Range {
            start: 0,
            end: FRAME,
        },
        Some(Access::Data),
    );
    assert_eq!(
        full,
        Err(FrameError::OutOfMemory {
            size: FRAME,
            align: FRAME
        })
    );
}

#[test]
fn addresses_beyond_the_lower_half_are_left_out() {
    let (mut memory, root) = Memory::new(true);
    set(
        &mut memory,
        root,
        Range {
            start: END - FRAME,
            end: u64::MAX,
        },
        Some(Access::Data),
    )
    .unwrap();
    assert_eq!(sizes(&memory, root), [(END - FRAME, FRAME)]);
}

proptest! {
    #[test]
    fn the_last_word_on_a_page_holds(
        steps in proptest::collection::vec((0u64..0x4000, 1u64..0x1000, 0u8..4), 1..12),
        probes in proptest::collection::vec(0u64..0x5000, 50),
        giant: bool,
    ) {
        let (mut memory, root) = Memory::new(giant);
        for &(start, frames, what) in &steps {
            let range = Range::new(start * FRAME, frames * FRAME);
            let access = [None, Some(Access::Data), Some(Access::ReadOnly), Some(Access::Code)][what as usize];
            set(&mut memory, root, range, access).unwrap();
        }
        for probe in probes {
            let last = steps.iter().rev().find(|(s, n, _)| (*s..s + n).contains(&probe)).map_or(0, |s| s.2);
            let found = find(&memory, root, probe * FRAME).map_or(0, |p| {
                assert!(p.address == p.physical);
                match (p.writable, p.executable) {
                    (true, false) => 1,
                    (false, false) => 2,
                    (false, true) => 3,
                    (true, true) => 9,
                }
            });
            prop_assert_eq!(found, last);
        }
    }
}
