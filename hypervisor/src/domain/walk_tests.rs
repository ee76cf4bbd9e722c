//! Walks through tables of every format, and through hostile ones.
use super::*;
use proptest::prelude::*;
use std::vec;

const PG: u64 = 1 << 31;

fn memory() -> GuestMemory {
    GuestMemory::leaked(0x10_0000)
}

fn long(cr3: u64) -> GuestCpuState {
    GuestCpuState {
        cr0: PG | 1 | CR0_WP,
        cr3,
        cr4: CR4_PAE,
        efer: 1 << 10 | EFER_NXE,
        ..GuestCpuState::default()
    }
}

fn put(memory: &GuestMemory, at: u64, entry: u64) {
    memory.write_u64(at, entry).expect("in range");
}

/// PML4 at 1000h, PDPT at 2000h, PD at 3000h, PT at 4000h; all for linear 0 and up.
fn four_levels(memory: &GuestMemory) -> GuestCpuState {
    put(memory, 0x1000, 0x2007);
    put(memory, 0x2000, 0x3007);
    put(memory, 0x3000, 0x4007);
    put(memory, 0x4000, 0x8007);
    put(memory, 0x4008, 0x9005 | NO_EXECUTE);
    put(memory, 0x4010, 0xa003);
    put(memory, 0x3008, 0x20_0000 | LARGE | 7);
    put(memory, 0x2008, 0x4000_0000 | LARGE | 7);
    long(0x1000)
}

fn pf(address: u64, error: u32) -> Result<u64, Fault> {
    Err(Fault::Page { address, error })
}

#[test]
fn without_paging_addresses_are_physical_and_wrap() {
    let cpu = GuestCpuState {
        cr0: 1,
        ..GuestCpuState::default()
    };
    assert_eq!(
        translate(&memory(), &cpu, 0x1_0000_1234, Access::Read),
        Ok(0x1234)
    );
}

#[test]
fn four_levels_with_all_page_sizes() {
    let m = memory();
    let cpu = four_levels(&m);
    assert_eq!(translate(&m, &cpu, 0x123, Access::Fetch), Ok(0x8123));
    assert_eq!(translate(&m, &cpu, 0x20_1234, Access::Write), Ok(0x20_1234));
    assert_eq!(
        translate(&m, &cpu, 0x4123_4567, Access::Read),
        Ok(0x4123_4567)
    );
    assert_eq!(
        translate(&m, &cpu, 0x3000, Access::Write),
        pf(0x3000, 2),
        "not present"
    );
    assert_eq!(
        translate(&m, &cpu, 1 << 47, Access::Read),
        Err(Fault::Protection),
        "not canonical"
    );
    assert_eq!(
        translate(&m, &cpu, u64::MAX << 47, Access::Read),
        pf(u64::MAX << 47, 0)
    );
}

#[test]
fn rights_are_those_of_the_guest() {
    let m = memory();
    let mut cpu = four_levels(&m);
    assert_eq!(translate(&m, &cpu, 0x1000, Access::Read), Ok(0x9000));
    assert_eq!(translate(&m, &cpu, 0x1000, Access::Write), pf(0x1000, 3));
    assert_eq!(translate(&m, &cpu, 0x1000, Access::Fetch), pf(0x1000, 0x11));
    cpu.cr0 &= !CR0_WP;
    assert_eq!(
        translate(&m, &cpu, 0x1000, Access::Write),
        Ok(0x9000),
        "kernel without CR0.WP"
    );
    cpu.cpl = 3;
    assert_eq!(translate(&m, &cpu, 0x1000, Access::Write), pf(0x1000, 7));
    assert_eq!(
        translate(&m, &cpu, 0x2000, Access::Read),
        pf(0x2000, 5),
        "kernel page"
    );
    cpu.cpl = 0;
    cpu.cr4 |= CR4_SMAP | CR4_SMEP;
    assert_eq!(translate(&m, &cpu, 0, Access::Read), pf(0, 1));
    assert_eq!(translate(&m, &cpu, 0, Access::Fetch), pf(0, 0x11));
    cpu.rflags |= RFLAGS_AC;
    assert_eq!(translate(&m, &cpu, 0, Access::Read), Ok(0x8000));
    cpu.efer &= !EFER_NXE;
    cpu.cr4 = CR4_PAE;
    assert_eq!(
        translate(&m, &cpu, 0x1000, Access::Fetch),
        Ok(0x9000),
        "NX is ignored without NXE"
    );
}

#[test]
fn a_large_bit_where_none_may_be_is_a_reserved_bit() {
    let m = memory();
    let cpu = four_levels(&m);
    put(&m, 0x1000, 0x2007 | LARGE);
    assert_eq!(translate(&m, &cpu, 0, Access::Read), pf(0, 9));
}

#[test]
fn pae_and_legacy() {
    let m = memory();
    put(&m, 0x1020 + 8, 0x3001);
    put(&m, 0x3000 + 8 * 3, 0x4003);
    put(&m, 0x4000 + 8 * 5, 0x7003);
    put(&m, 0x3000, 0xe0_0000 | LARGE | 3);
    let cpu = GuestCpuState {
        cr0: PG | 1,
        cr3: 0x1020,
        cr4: CR4_PAE,
        ..GuestCpuState::default()
    };
    assert_eq!(translate(&m, &cpu, 0x4060_5abc, Access::Write), Ok(0x7abc));
    assert_eq!(
        translate(&m, &cpu, 0x4000_0abc, Access::Write),
        Ok(0xe0_0abc)
    );
    assert_eq!(translate(&m, &cpu, 0x0000_0abc, Access::Read), pf(0xabc, 0));

    let m = memory();
    m.write_u32(0x1000 + 4, 0x3003).expect("in range");
    m.write_u32(0x3000 + 8, 0x5003).expect("in range");
    m.write_u32(0x1000 + 8, 0x0080_2083).expect("in range");
    let mut cpu = GuestCpuState {
        cr0: PG | 1,
        cr3: 0x1000,
        cr4: CR4_PSE,
        ..GuestCpuState::default()
    };
    assert_eq!(translate(&m, &cpu, 0x40_2345, Access::Read), Ok(0x5345));
    assert_eq!(
        translate(&m, &cpu, 0x80_2345, Access::Read),
        Ok(0x1_0080_2345),
        "PSE-36"
    );
    cpu.cr4 = 0;
    assert_eq!(
        translate(&m, &cpu, 0x80_2345, Access::Read),
        pf(0x80_2345, 9),
        "no PSE: a table outside memory"
    );
}

#[test]
fn copies_cross_pages() {
    let m = memory();
    let cpu = four_levels(&m);
    put(&m, 0x4008, 0xc007);
    write(&m, &cpu, 0xffe, &[1, 2, 3, 4]).expect("both pages are there");
    let mut bytes = [0; 4];
    m.read(0x8ffe, &mut bytes[..2]).expect("in range");
    m.read(0xc000, &mut bytes[2..]).expect("in range");
    assert_eq!(bytes, [1, 2, 3, 4]);
    let mut back = [0; 4];
    read(&m, &cpu, 0xffe, Access::Read, &mut back).expect("both pages are there");
    assert_eq!(back, bytes);
    put(&m, 0x4008, 0);
    assert_eq!(
        read(&m, &cpu, 0xffe, Access::Read, &mut back),
        Err(Fault::Page {
            address: 0x1000,
            error: 0
        })
    );
    put(&m, 0x4000, 0xffff_f007);
    assert_eq!(
        read(&m, &cpu, 0, Access::Read, &mut back),
        Err(Fault::NoMemory { gpa: 0xffff_f000 })
    );
}

#[test]
fn tables_outside_memory_and_tables_of_themselves_end() {
    let m = memory();
    put(&m, 0x1000, 0x1007);
    assert_eq!(
        translate(&m, &long(0x1000), 0, Access::Read),
        Ok(0x1000),
        "recursive"
    );
    assert_eq!(translate(&m, &long(ADDRESS), 0, Access::Read), pf(0, 9));
}

proptest! {
    #[test]
    fn hostile_tables_never_panic(
        entries in proptest::collection::vec((0u64..0x600, any::<u64>()), 0..40),
        cr0 in any::<u64>(), cr3 in any::<u64>(), cr4 in any::<u64>(), efer in any::<u64>(),
        linear in any::<u64>(), cpl in 0u8..4, small in any::<bool>(),
    ) {
        let m = GuestMemory::leaked(0x4000);
        for (slot, entry) in entries {
            put(&m, slot * 8, if small { entry & 0x3fff } else { entry });
        }
        let cr3 = if small { cr3 & 0x3fff } else { cr3 };
        let cpu = GuestCpuState { cr0: cr0 | PG, cr3, cr4, efer, cpl, ..GuestCpuState::default() };
        let mut buffer = vec![0u8; 9000];
        for access in [Access::Read, Access::Write, Access::Fetch] {
            let _ = read(&m, &cpu, linear, access, &mut buffer);
        }
        let _ = write(&m, &cpu, linear, &buffer);
    }
}
