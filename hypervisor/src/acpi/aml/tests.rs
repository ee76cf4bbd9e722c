//! The interpreter on small tables: what is told arrives, and what comes back is understood.

use super::assembler::*;
use super::handler::{Machine, PciAddress};
use super::rules::{Refusals, Rules};
use super::*;
use crate::mm::Range;
use lull_core::cstate::acpi::CstMethod;
use std::sync::Mutex;

/// A machine that has nothing.
struct Empty;

impl Machine for Empty {
    fn read_memory(&self, _: u64, _: u64) -> Option<u64> {
        None
    }
    fn write_memory(&self, _: u64, _: u64, _: u64) -> bool {
        false
    }
    fn read_port(&self, port: u16, _: u16) -> u32 {
        port.into()
    }
    fn write_port(&self, _: u16, _: u16, _: u32) {}
    fn read_pci(&self, _: PciAddress, _: u16) -> u32 {
        0
    }
    fn write_pci(&self, _: PciAddress, _: u16, _: u32) {}
    fn nanoseconds(&self) -> u64 {
        0
    }
}

static REFUSALS: Refusals = Refusals::none();
/// One test at a time counts refusals.
static COUNTING: Mutex<()> = Mutex::new(());

fn run(terms: &[u8], capabilities: Capabilities, enabled: &[u32]) -> Findings {
    let tables = [AmlTable {
        name: "SSDT 1".into(),
        bytes: table(terms),
    }];
    let mut findings = Findings::with_room(8);
    let job = Job {
        tables: &tables,
        without: &[],
        unasked: &[],
        enabled,
        capabilities,
    };
    let ram = Range {
        start: 0,
        end: 0x1000_0000,
    };
    let rules = Rules::new([ram], [], []);
    evaluate(Empty, rules, &REFUSALS, &job, &mut findings);
    findings
}

fn entries(finding: &Finding) -> Vec<(CstMethod, u8, u64)> {
    match &finding.cst {
        Evaluated::List(entries, _) => entries
            .iter()
            .map(|e| (e.method, e.acpi_type.number(), e.latency.get()))
            .collect(),
        other => panic!("{other:?}"),
    }
}

fn methods(findings: &Findings) -> Vec<CstMethod> {
    let finding = findings.processors.first().unwrap();
    entries(finding)
        .into_iter()
        .map(|(method, ..)| method)
        .collect()
}

fn hint(eax: u32) -> CstMethod {
    CstMethod::Mwait {
        hint: lull_core::cstate::MwaitHint::new(eax),
        check_bus_master: false,
    }
}

/// `_CST` by what was told: MWAIT states with bit 9, a port without, HLT if nothing was told.
fn depends_on_told() -> Vec<u8> {
    let rich = list(&[mwait(0, 1, 1), mwait(0x21, 2, 127), mwait(0x60, 3, 1048)]);
    let poor = list(&[state([0x7F, 0, 0, 0], 0, 1, 1), port(0x1816, 2, 90)]);
    let nothing = list(&[state([0x7F, 0, 0, 0], 0, 1, 1)]);
    let body = [
        if_bits(b"TOLD", 1 << 9, &give_back(&rich)),
        if_bits(b"TOLD", !0, &give_back(&poor)),
        give_back(&nothing),
    ];
    method(b"_CST", 0, &body.concat())
}

fn with_pdc() -> Vec<u8> {
    let pdc = method(b"_PDC", 1, &keep_dword(0, 8, b"CAPS", b"TOLD"));
    let body = [pdc, depends_on_told()].concat();
    [
        name(b"TOLD", &integer(0)),
        processor(b"CPU0", 0, 0x1810, &body),
    ]
    .concat()
}

fn with_osc(status: u32) -> Vec<u8> {
    // The status is written into the caller's buffer, which is given back.
    let mark = [
        &[0x8A, 0x6B][..],
        &integer(0),
        b"STAT\x70",
        &integer(status),
        b"STAT",
    ]
    .concat();
    let keep = if status == 0 {
        keep_dword(3, 4, b"CAPS", b"TOLD")
    } else {
        Vec::new()
    };
    let osc = method(b"_OSC", 4, &[keep, mark, give_back(&[0x6B])].concat());
    let pdc = method(b"_PDC", 1, &keep_dword(0, 8, b"CAPS", b"TOLD"));
    let body = [osc, pdc, depends_on_told()].concat();
    [name(b"TOLD", &integer(0)), processor(b"CPU0", 0, 0, &body)].concat()
}

#[test]
fn what_pdc_receives_changes_cst() {
    let rich = run(&with_pdc(), Capabilities::of_lull(true), &[]);
    assert_eq!(methods(&rich), [hint(0), hint(0x21), hint(0x60)]);
    assert!(rich.processors[0].told.pdc && rich.processors[0].told.osc.is_none());
    assert_eq!(rich.p_blk, Some(0x1810));
    let poor = run(&with_pdc(), Capabilities::of_lull(false), &[]);
    assert_eq!(methods(&poor), [CstMethod::Halt, CstMethod::Io(0x1816)]);
    let nothing = run(&with_pdc(), Capabilities::empty(), &[]);
    assert_eq!(methods(&nothing), [CstMethod::Halt]);
}

#[test]
fn what_osc_receives_changes_cst_and_pdc_is_not_needed() {
    let rich = run(&with_osc(0), Capabilities::of_lull(true), &[]);
    assert_eq!(methods(&rich), [hint(0), hint(0x21), hint(0x60)]);
    let told = rich.processors[0].told;
    assert!(told.osc.unwrap().accepted() && !told.pdc);
    assert_eq!(told.osc.unwrap().granted, Some(0x31A));
    let poor = run(&with_osc(0), Capabilities::of_lull(false), &[]);
    assert_eq!(methods(&poor), [CstMethod::Halt, CstMethod::Io(0x1816)]);
}

#[test]
fn where_osc_refuses_pdc_tells() {
    let findings = run(&with_osc(4), Capabilities::of_lull(true), &[]);
    assert_eq!(methods(&findings), [hint(0), hint(0x21), hint(0x60)]);
    let told = findings.processors[0].told;
    assert!(!told.osc.unwrap().accepted() && told.pdc);
    assert!(findings.remarks[0].1.contains("does not know the UUID"));
}

#[test]
fn a_method_may_end_with_an_if() {
    let pdc = method(
        b"_PDC",
        1,
        &[
            keep_dword(0, 8, b"CAPS", b"TOLD"),
            if_bits(b"TOLD", 1, &[0x70, 0, b'\\', b'T', b'O', b'L', b'D']),
        ]
        .concat(),
    );
    let body = [pdc, depends_on_told()].concat();
    let terms = [name(b"TOLD", &integer(0)), processor(b"CPU0", 0, 0, &body)].concat();
    let findings = run(&terms, Capabilities::of_lull(true), &[]);
    assert_eq!(findings.remarks.as_slice(), []);
    assert_eq!(methods(&findings), [hint(0), hint(0x21), hint(0x60)]);
}

#[test]
fn processors_that_are_not_enabled_are_not_asked() {
    let one = |object: &[u8; 4], id| {
        let cst = name(b"_CST", &list(&[mwait(0, 1, u32::from(id))]));
        processor(object, id, 0, &cst)
    };
    let terms = [one(b"CPU0", 0), one(b"CPU1", 1), one(b"CPU2", 2)].concat();
    let asked = |enabled: &[u32]| -> Vec<u32> {
        let findings = run(&terms, Capabilities::empty(), enabled);
        findings.processors.iter().map(|f| f.processor).collect()
    };
    assert_eq!(asked(&[]), [0, 1, 2]);
    assert_eq!(asked(&[2, 0]), [0, 2]);
    assert_eq!(asked(&[9]), []);
}

#[test]
fn broken_frames_methods_and_tables_are_named() {
    let number = processor(b"CPU0", 0, 0, &name(b"_CST", &integer(7)));
    let findings = run(&number, Capabilities::empty(), &[]);
    assert_eq!(
        findings.processors[0].cst,
        Evaluated::Refused(CstFault::NotAList)
    );
    // Local0, into which nothing was stored, is no list; a name that nobody defines is an error.
    let unset = processor(b"CPU0", 0, 0, &method(b"_CST", 0, &give_back(&[0x60])));
    let findings = run(&unset, Capabilities::empty(), &[]);
    assert_eq!(
        findings.processors[0].cst,
        Evaluated::Refused(CstFault::NotAList)
    );
    let unknown = processor(b"CPU0", 0, 0, &method(b"_CST", 0, &give_back(b"NOPE")));
    let findings = run(&unknown, Capabilities::empty(), &[]);
    let Evaluated::Failed(why) = &findings.processors[0].cst else {
        panic!("{findings:?}")
    };
    assert!(why.contains("there is no NOPE"), "{why}");
    // No such opcode: what came before is used.
    let good = processor(b"CPU0", 0, 0, &name(b"_CST", &list(&[mwait(0, 1, 1)])));
    let findings = run(&[good, vec![0x02]].concat(), Capabilities::empty(), &[]);
    assert_eq!(methods(&findings), [hint(0)]);
    assert_eq!(findings.remarks[0].0.as_str(), "SSDT 1");
}

#[test]
fn ram_is_not_for_firmware() {
    let _one = COUNTING.lock().unwrap();
    REFUSALS.clear();
    // OperationRegion (RAM_, SystemMemory, 0x100000, 4); Field (RAM_, DWordAcc) { DATA, 32 }
    let region = [
        &[0x5B, 0x80][..],
        b"RAM_",
        &[0],
        &integer(0x10_0000),
        &integer(4),
        &[0x5B, 0x81, 11],
        b"RAM_",
        &[3],
        b"DATA",
        &[32],
    ]
    .concat();
    let store = [&[0x70][..], &integer(0x1234), b"\\DATA"].concat();
    let answer = give_back(&list(&[mwait(0, 1, 1)]));
    let cst = method(b"_CST", 0, &[store, answer].concat());
    let terms = [region, processor(b"CPU0", 0, 0, &cst)].concat();
    let findings = run(&terms, Capabilities::empty(), &[]);
    assert_eq!(methods(&findings), [hint(0)]);
    assert!(
        REFUSALS
            .to_string()
            .ends_with("the first a write to memory at 0x100000")
            || REFUSALS
                .to_string()
                .ends_with("the first a read of memory at 0x100000"),
        "{REFUSALS}"
    );
}

#[test]
fn a_gap_in_a_region_may_be_longer_than_the_table() {
    // OperationRegion (REGI, SystemIO, 0x1000, 0x4000); Field (REGI, ByteAcc) { Offset (0x2000), DATA, 8 }
    let region = [
        &[0x5B, 0x80][..],
        b"REGI",
        &[1],
        &integer(0x1000),
        &integer(0x4000),
        &[0x5B, 0x81, 15],
        b"REGI",
        &[1],
        &[0, 0x80, 0, 0x10],
        b"DATA",
        &[8],
    ]
    .concat();
    // Reading it gives the lower byte of its port, 0x3000.
    let then = give_back(&list(&[mwait(0x20, 3, 9)]));
    let body = [
        sized(
            &[0xA0],
            &[&[0x93][..], &integer(0), b"DATA", &then].concat(),
        ),
        give_back(&list(&[mwait(0, 1, 1)])),
    ];
    let cst = method(b"_CST", 0, &body.concat());
    let findings = run(
        &[region, processor(b"CPU0", 0, 0, &cst)].concat(),
        Capabilities::empty(),
        &[],
    );
    assert_eq!(findings.remarks.as_slice(), []);
    assert_eq!(methods(&findings), [hint(0x20)]);
}

#[test]
fn names_in_a_table_are_found_by_their_letters() {
    let with = AmlTable {
        name: "SSDT 1".into(),
        bytes: table(&with_pdc()),
    };
    assert!(with.mentions(b"_CST") && !with.mentions(b"_PSS"));
    assert!(!with.may_load());
}

/// A table of a `_CST` for CPU0 with one entry, as bytes.
fn dynamic() -> Vec<u8> {
    let cst = name(b"_CST", &list(&[mwait(0x31, 2, 253)]));
    let scope = sized(&[0x10], &[&b"\\\x2E_PR_CPU0"[..], &cst].concat());
    let mut table = table(&scope);
    let length = table.len() as u32;
    table[4..8].copy_from_slice(&length.to_le_bytes());
    let sum = table.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    table[9] = table[9].wrapping_sub(sum);
    table
}

/// `Name (TABL, Buffer () { table }) ; Load (TABL, Local0)` in `_PDC`.
fn loads(table: &[u8]) -> Vec<u8> {
    let load = [&[0x5B, 0x20][..], b"TABL\x60"].concat();
    let told = keep_dword(0, 8, b"CAPS", b"TOLD");
    let pdc = method(b"_PDC", 1, &[load, told].concat());
    let held = super::assembler::buffer(table);
    let body = [name(b"TABL", &held), pdc].concat();
    [name(b"TOLD", &integer(0)), processor(b"CPU0", 0, 0, &body)].concat()
}

#[test]
fn a_table_that_pdc_loads_counts() {
    let findings = run(&loads(&dynamic()), Capabilities::of_lull(true), &[]);
    assert_eq!(findings.remarks.as_slice(), []);
    assert_eq!(methods(&findings), [hint(0x31)]);
    assert!(findings.processors[0].told.pdc);
}

#[test]
fn a_table_that_cannot_be_loaded_is_named_and_the_method_goes_on() {
    let mut wrong = dynamic();
    wrong[40] ^= 1;
    let mut long = dynamic();
    long[5] = 9;
    for (table, why) in [
        (wrong, "the table's checksum is wrong"),
        (long, "the table's length is "),
        (vec![1, 2, 3], "the table's length is 0"),
    ] {
        let cst = name(b"_CST", &list(&[mwait(0, 1, 1)]));
        let other = processor(b"CPU1", 1, 0, &cst);
        let findings = run(
            &[loads(&table), other].concat(),
            Capabilities::of_lull(true),
            &[],
        );
        assert_eq!(methods(&findings), [hint(0)]);
        let (name, said) = findings.remarks[0];
        assert_eq!(name.as_str(), "\\_PR_.CPU0");
        assert!(
            said.starts_with("the table at TABL is not loaded: ") && said.contains(why),
            "{said}"
        );
        assert_eq!(findings.remarks.len(), 1, "{findings:?}");
    }
}
