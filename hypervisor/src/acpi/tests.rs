//! Hand-built tables, whole and damaged.
use super::physmem::mock::Image;
use super::power::{AcpiEnable, Register};
use super::*;

const BASE: u64 = 0x7F0_0000;

/// Puts tables one after the other, and the root table and RSDP last.
struct Builder {
    bytes: Vec<u8>,
    pointers: Vec<u64>,
}

fn checksum(bytes: &mut [u8], at: usize) {
    bytes[at] = 0;
    bytes[at] = bytes.iter().fold(0u8, |s, b| s.wrapping_sub(*b));
}

fn sdt(signature: &[u8; 4], revision: u8, body: &[u8]) -> Vec<u8> {
    let mut t = vec![0u8; 36];
    t[..4].copy_from_slice(signature);
    t[8] = revision;
    t[10..16].copy_from_slice(b"LULL  ");
    t[16..24].copy_from_slice(b"TESTTABL");
    t.extend_from_slice(body);
    let len = (t.len() as u32).to_le_bytes();
    t[4..8].copy_from_slice(&len);
    checksum(&mut t, 9);
    t
}

impl Builder {
    fn new() -> Self {
        Self {
            bytes: vec![0; 16],
            pointers: Vec::new(),
        }
    }
    fn place(&mut self, table: &[u8]) -> u64 {
        let at = BASE + self.bytes.len() as u64;
        self.bytes.extend_from_slice(table);
        at
    }
    fn table(mut self, table: &[u8]) -> Self {
        let at = self.place(table);
        self.pointers.push(at);
        self
    }
    fn rsdt(mut self) -> (Image, u64) {
        let body: Vec<u8> = self
            .pointers
            .iter()
            .flat_map(|p| (*p as u32).to_le_bytes())
            .collect();
        let root = self.place(&sdt(b"RSDT", 1, &body));
        let mut rsdp = [0u8; 20];
        rsdp[..8].copy_from_slice(b"RSD PTR ");
        rsdp[16..20].copy_from_slice(&(root as u32).to_le_bytes());
        checksum(&mut rsdp, 8);
        let at = self.place(&rsdp);
        (
            Image {
                base: BASE,
                bytes: self.bytes,
            },
            at,
        )
    }
    fn xsdt(mut self) -> (Image, u64) {
        let body: Vec<u8> = self.pointers.iter().flat_map(|p| p.to_le_bytes()).collect();
        let root = self.place(&sdt(b"XSDT", 1, &body));
        let mut rsdp = [0u8; 36];
        rsdp[..8].copy_from_slice(b"RSD PTR ");
        rsdp[15] = 2;
        rsdp[20] = 36;
        rsdp[24..32].copy_from_slice(&root.to_le_bytes());
        checksum(&mut rsdp[..20], 8);
        checksum(&mut rsdp, 32);
        let at = self.place(&rsdp);
        (
            Image {
                base: BASE,
                bytes: self.bytes,
            },
            at,
        )
    }
}

fn lapic(id: u8, flags: u8) -> Vec<u8> {
    vec![0, 8, id, id, flags, 0, 0, 0]
}

fn x2apic(id: u32, flags: u32) -> Vec<u8> {
    let mut e = vec![9, 16, 0, 0];
    for word in [id, flags, id] {
        e.extend_from_slice(&word.to_le_bytes());
    }
    e
}

fn madt(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut body = 0xFEE0_0000u32.to_le_bytes().to_vec();
    body.extend_from_slice(&[1, 0, 0, 0]);
    body.extend(entries.concat());
    sdt(b"APIC", 3, &body)
}

fn fadt(dsdt: u32) -> Vec<u8> {
    let mut t = vec![0u8; 244];
    t[40..44].copy_from_slice(&dsdt.to_le_bytes());
    t[48..52].copy_from_slice(&0xB2u32.to_le_bytes());
    t[52] = 2;
    t[64..68].copy_from_slice(&0x604u32.to_le_bytes());
    t[76..80].copy_from_slice(&0x608u32.to_le_bytes());
    t[89] = 2;
    t[91] = 4;
    t[112..116].copy_from_slice(&(1u32 << 10).to_le_bytes());
    t[116..128].copy_from_slice(&[1, 8, 0, 1, 0xF9, 0x0C, 0, 0, 0, 0, 0, 0]);
    t[128] = 0x0F;
    sdt(b"FACP", 3, &t[36..])
}

fn hpet(space: u8) -> Vec<u8> {
    let mut body = 0x8086_A201u32.to_le_bytes().to_vec();
    body.extend_from_slice(&[space, 64, 0, 0]);
    body.extend_from_slice(&0xFED0_0000u64.to_le_bytes());
    body.extend_from_slice(&[0, 0, 0, 0]);
    sdt(b"HPET", 1, &body)
}

fn ids(info: &FirmwareInfo) -> Vec<u32> {
    info.cpus.iter().map(|c| c.apic_id).collect()
}

fn whole() -> Builder {
    let mut b = Builder::new();
    let dsdt = b.place(&sdt(b"DSDT", 1, b"\x08_S5_\x12\x06\x04\x0a\x05\x00\x00"));
    b.table(&madt(&[
        lapic(0, 1),
        lapic(2, 1),
        vec![1, 12, 7, 0, 0, 0, 0xC0, 0xFE, 0, 0, 0, 0],
        vec![2, 10, 0, 0, 2, 0, 0, 0, 0, 0],
        vec![2, 10, 0, 4, 20, 0, 0, 0, 0xF, 0],
        vec![4, 6, 0xFF, 0, 0, 1],
        x2apic(300, 1),
    ]))
    .table(&fadt(dsdt as u32))
    .table(&hpet(0))
}

#[test]
fn a_whole_machine() {
    for (image, rsdp) in [whole().rsdt(), whole().xsdt()] {
        let info = read(&image, Some(rsdp));
        assert_eq!(info.problems, []);
        assert_eq!(ids(&info), [0, 2, 300]);
        assert_eq!(info.local_apic, Some(0xFEE0_0000));
        assert_eq!(
            info.io_apics,
            [IoApicEntry {
                id: 7,
                address: 0xFEC0_0000,
                gsi_base: 0
            }]
        );
        assert_eq!(
            info.isa_wiring(0),
            Wiring {
                gsi: 2,
                active_low: false,
                level: false
            }
        );
        assert_eq!(
            info.isa_wiring(4),
            Wiring {
                gsi: 20,
                active_low: true,
                level: true
            }
        );
        assert_eq!(
            info.isa_wiring(3),
            Wiring {
                gsi: 3,
                active_low: false,
                level: false
            }
        );
        assert_eq!(
            info.hpet,
            Some(HpetEntry {
                address: 0xFED0_0000
            })
        );
        assert_eq!(
            info.pm_timer,
            Some(PmTimer {
                port: 0x608,
                is_32_bit: false
            })
        );
        assert_eq!(
            info.reset,
            Some(power::ResetRegister {
                register: Register::Port(0xCF9),
                value: 0x0F
            })
        );
        let off = info.power_off.unwrap();
        assert_eq!(
            (
                off.control_a,
                off.control_b,
                off.sleep_type.a,
                off.sleep_type.b
            ),
            (0x604, None, 5, 0)
        );
        assert_eq!(
            off.enable,
            Some(AcpiEnable {
                port: 0xB2,
                value: 2
            })
        );
    }
}

#[test]
fn disabled_absent_and_doubled_cpus_are_named() {
    let table = madt(&[
        lapic(0, 1),
        lapic(1, 0),
        lapic(2, 2),
        lapic(3, 1),
        lapic(0, 1),
        x2apic(3, 1),
        lapic(255, 1),
    ]);
    let (image, rsdp) = Builder::new().table(&table).table(&fadt(0)).rsdt();
    let info = read(&image, Some(rsdp));
    assert_eq!(ids(&info), [0, 3]);
    let said: Vec<_> = info
        .problems
        .iter()
        .map(|p| (p.name.as_str(), p.why.split(',').next().unwrap()))
        .collect();
    assert_eq!(
        said,
        [
            ("APIC id 1", "disabled by firmware"),
            (
                "APIC id 2",
                "can be added to the running machine but are not there"
            ),
            ("APIC ids 0, 3", "listed more than once in the MADT"),
        ]
    );
}

#[test]
fn more_cpus_than_supported() {
    let many: Vec<_> = (0..300).map(|id| x2apic(id, 1)).collect();
    let (image, rsdp) = Builder::new().table(&madt(&many)).table(&fadt(0)).xsdt();
    let info = read(&image, Some(rsdp));
    assert_eq!(info.cpus.len(), 256);
    assert_eq!(
        info.problems[0].name,
        "APIC ids 256, 257, 258, 259, 260, 261, 262, 263 and 36 more"
    );
    assert_eq!(info.problems[0].expected, "at most 256 CPUs");
}

#[test]
fn no_rsdp_and_damaged_rsdp_leave_one_cpu() {
    let (mut image, rsdp) = whole().rsdt();
    let info = read(&image, Some(rsdp - 16));
    assert_eq!((info.cpus.len(), info.problems.len()), (0, 1));
    assert!(
        info.problems[0].why.contains("RSD PTR"),
        "{:?}",
        info.problems
    );
    assert_eq!(read(&image, None).problems[0].name, "RSDP");
    assert_eq!(read(&image, Some(u64::MAX - 3)).problems.len(), 1);

    let at = (rsdp - BASE) as usize;
    image.bytes[at + 16] ^= 1;
    let info = read(&image, Some(rsdp));
    assert_eq!(info.problems[0].why, "wrong checksum: running on one CPU");
}

#[test]
fn a_damaged_table_is_left_out_and_the_rest_used() {
    let mut bad = madt(&[lapic(0, 1), lapic(1, 1)]);
    bad[50] ^= 0x10;
    let (image, rsdp) = Builder::new()
        .table(&bad)
        .table(&fadt(0))
        .table(&hpet(0))
        .rsdt();
    let info = read(&image, Some(rsdp));
    assert!(info.cpus.is_empty() && info.hpet.is_some() && info.pm_timer.is_some());
    assert_eq!(
        (
            info.problems[0].name.as_str(),
            info.problems[0].why.as_str()
        ),
        ("APIC", "wrong checksum, table not used")
    );
    assert_eq!(info.problems[1].why, "there is none: running on one CPU");
}

#[test]
fn a_damaged_xsdt_falls_back_to_the_rsdt() {
    let mut b = Builder::new();
    let at = b.place(&madt(&[lapic(9, 1)]));
    let rsdt = b.place(&sdt(b"RSDT", 1, &(at as u32).to_le_bytes()));
    let mut broken = sdt(b"XSDT", 1, &at.to_le_bytes());
    broken[40] ^= 1;
    let xsdt = b.place(&broken);
    let mut rsdp = [0u8; 36];
    rsdp[..8].copy_from_slice(b"RSD PTR ");
    rsdp[15] = 2;
    rsdp[16..20].copy_from_slice(&(rsdt as u32).to_le_bytes());
    rsdp[20] = 36;
    rsdp[24..32].copy_from_slice(&xsdt.to_le_bytes());
    checksum(&mut rsdp[..20], 8);
    checksum(&mut rsdp, 32);
    let at = b.place(&rsdp);
    let info = read(
        &Image {
            base: BASE,
            bytes: b.bytes,
        },
        Some(at),
    );
    assert_eq!(ids(&info), [9]);
    assert_eq!(info.problems[0].name, "XSDT");
}

#[test]
fn a_truncated_madt_gives_what_stands_before_the_damage() {
    for (tail, words) in [
        (vec![0u8, 8, 5], "length 8 with 3 bytes left"),
        (vec![0], "cut"),
        (vec![0, 0, 1, 1], "length 0"),
        (vec![0, 6, 5, 5, 1, 0], "length 6"),
        (
            vec![9, 15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            "length 15",
        ),
    ] {
        let (image, rsdp) = Builder::new()
            .table(&madt(&[lapic(0, 1), vec![0x80, 2], lapic(1, 1), tail]))
            .table(&fadt(0))
            .rsdt();
        let info = read(&image, Some(rsdp));
        assert_eq!(ids(&info), [0, 1]);
        assert!(info.problems[0].why.contains(words), "{:?}", info.problems);
    }
}

#[test]
fn tables_that_lie_about_their_length() {
    for length in [0u32, 35, 0x7FFF_FFFF, 1 << 20] {
        let mut bad = madt(&[lapic(0, 1)]);
        bad[4..8].copy_from_slice(&length.to_le_bytes());
        let (image, rsdp) = Builder::new().table(&bad).table(&hpet(0)).rsdt();
        let info = read(&image, Some(rsdp));
        assert!(info.cpus.is_empty() && info.hpet.is_some(), "{length}");
        assert_eq!(info.problems[0].name, "APIC");
    }
    // A MADT that ends before its own fixed part.
    let (image, rsdp) = Builder::new().table(&sdt(b"APIC", 1, &[0; 3])).rsdt();
    assert!(
        read(&image, Some(rsdp)).problems[0]
            .why
            .contains("expected 44 or more")
    );
}

#[test]
fn odd_fadt_and_hpet_are_refused() {
    let (image, rsdp) = Builder::new()
        .table(&sdt(b"FACP", 1, &[0; 20]))
        .table(&hpet(1))
        .table(&sdt(b"HPET", 1, &[]))
        .rsdt();
    let info = read(&image, Some(rsdp));
    assert!(info.hpet.is_none() && info.pm_timer.is_none() && info.power_off.is_none());
    let names: Vec<_> = info.problems.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["APIC", "HPET", "FACP"]);

    let mut wide = fadt(0);
    wide[89] = 200;
    checksum(&mut wide, 9);
    let (image, rsdp) = Builder::new().table(&wide).rsdt();
    assert!(
        read(&image, Some(rsdp))
            .problems
            .iter()
            .any(|p| p.why.contains("PM1_CNT_LEN 200"))
    );
}

#[test]
fn pointers_into_nowhere_are_named() {
    let mut b = Builder::new();
    b.pointers = vec![0, 0xFFFF_FFF0];
    let (image, rsdp) = b.table(&madt(&[lapic(4, 1)])).table(&fadt(0x1000)).rsdt();
    let info = read(&image, Some(rsdp));
    assert_eq!(ids(&info), [4]);
    assert_eq!(
        info.problems
            .iter()
            .filter(|p| p.why.contains("no memory at"))
            .count(),
        3,
        "{:?}",
        info.problems
    );
}
