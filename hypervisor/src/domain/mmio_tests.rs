//! One of each form, by its bytes.
use super::super::fixture::MockCpu;
use super::*;
use iced_x86::{Decoder, DecoderOptions};
use proptest::prelude::*;

/// A device register that remembers.
struct Cell {
    value: u64,
    writes: std::vec::Vec<(usize, u64)>,
}

impl Target for Cell {
    fn read(&mut self, size: usize) -> u64 {
        self.value & mask(size)
    }
    fn write(&mut self, size: usize, value: u64) {
        self.writes.push((size, value & mask(size)));
    }
}

fn run(
    bits: u32,
    code: &[u8],
    cpu: &mut MockCpu,
    value: u64,
) -> (Cell, Result<Flags, Unsupported>) {
    let mut cell = Cell {
        value,
        writes: std::vec::Vec::new(),
    };
    let instruction = Decoder::new(bits, code, DecoderOptions::NONE).decode();
    let result = emulate(cpu, &instruction, &mut cell);
    (cell, result)
}

const OLD: u64 = 0xaaaa_bbbb_cccc_dddd;
const MEM: u64 = 0x1122_3344_5566_8899;

/// `code`, RAX after it.
#[test]
fn loads() {
    let cases: [(&str, &[u8], u64); 9] = [
        ("mov eax,[rdi]", &[0x8b, 0x07], 0x5566_8899),
        ("mov rax,[rdi]", &[0x48, 0x8b, 0x07], MEM),
        ("mov ax,[rdi]", &[0x66, 0x8b, 0x07], 0xaaaa_bbbb_cccc_8899),
        ("mov al,[rdi]", &[0x8a, 0x07], 0xaaaa_bbbb_cccc_dd99),
        ("mov ah,[rdi]", &[0x8a, 0x27], 0xaaaa_bbbb_cccc_99dd),
        ("movzx eax,byte [rdi]", &[0x0f, 0xb6, 0x07], 0x99),
        ("movsx eax,byte [rdi]", &[0x0f, 0xbe, 0x07], 0xffff_ff99),
        (
            "movsx rax,word [rdi]",
            &[0x48, 0x0f, 0xbf, 0x07],
            0xffff_ffff_ffff_8899,
        ),
        (
            "mov eax,[moffs]",
            &[0xa1, 0x20, 0, 0xe0, 0xfe, 0, 0, 0, 0],
            0x5566_8899,
        ),
    ];
    for (name, code, rax) in cases {
        let mut cpu = MockCpu::new();
        cpu.set_gpr(Gpr::Rax, OLD);
        let (cell, result) = run(64, code, &mut cpu, MEM);
        assert_eq!((result, cpu.gpr(Gpr::Rax)), (Ok(None), rax), "{name}");
        assert!(cell.writes.is_empty(), "{name}");
    }
}

#[test]
fn stores() {
    let cases: [(&str, &[u8], (usize, u64)); 8] = [
        ("mov [rdi],eax", &[0x89, 0x07], (4, 0xcccc_dddd)),
        ("mov [rdi],rax", &[0x48, 0x89, 0x07], (8, OLD)),
        ("mov [rdi],ax", &[0x66, 0x89, 0x07], (2, 0xdddd)),
        ("mov [rdi],ah", &[0x88, 0x27], (1, 0xdd)),
        (
            "mov dword [rdi],imm",
            &[0xc7, 0x07, 4, 3, 2, 0x81],
            (4, 0x8102_0304),
        ),
        (
            "mov qword [rdi],imm",
            &[0x48, 0xc7, 0x07, 4, 3, 2, 0x81],
            (8, 0xffff_ffff_8102_0304),
        ),
        ("mov byte [rdi],imm", &[0xc6, 0x07, 5], (1, 5)),
        ("movnti [rdi],eax", &[0x0f, 0xc3, 0x07], (4, 0xcccc_dddd)),
    ];
    for (name, code, write) in cases {
        let mut cpu = MockCpu::new();
        cpu.set_gpr(Gpr::Rax, OLD);
        let (cell, result) = run(64, code, &mut cpu, MEM);
        assert_eq!(
            (result, cell.writes.as_slice()),
            (Ok(None), &[write][..]),
            "{name}"
        );
        assert_eq!(cpu.gpr(Gpr::Rax), OLD, "{name}");
    }
}

#[test]
fn exchanges_and_arithmetic() {
    let run = |code: &[u8], rax, value| {
        let mut cpu = MockCpu::new();
        cpu.set_gpr(Gpr::Rax, rax);
        let (cell, result) = run(64, code, &mut cpu, value);
        (result, cpu.gpr(Gpr::Rax), cell.writes)
    };
    assert_eq!(
        run(&[0x87, 0x07], 0xffff_0000_1234, 0x99),
        (Ok(None), 0x99, std::vec![(4, 0x1234)])
    );
    assert_eq!(
        run(&[0x21, 0x07], 0xf, 0xf1),
        (Ok(Some(0)), 0xf, std::vec![(4, 1)]),
        "and [rdi],eax"
    );
    assert_eq!(
        run(&[0x81, 0x0f, 0, 1, 0, 0], 7, 0xf0),
        (Ok(Some(4)), 7, std::vec![(4, 0x1f0)]),
        "or [rdi],100h"
    );
    assert_eq!(
        run(&[0x83, 0x27, 0xf0], 7, 0x1ff),
        (Ok(Some(4)), 7, std::vec![(4, 0x1f0)]),
        "and [rdi],-10h"
    );
    assert_eq!(
        run(&[0x23, 0x07], 0xf, 0xf0),
        (Ok(Some(0x44)), 0, std::vec![]),
        "and eax,[rdi]"
    );
    assert_eq!(
        run(&[0x2b, 0x07], 5, 3),
        (Ok(Some(0)), 2, std::vec![]),
        "sub eax,[rdi]"
    );
    assert_eq!(
        run(&[0x29, 0x07], 3, 5),
        (Ok(Some(0)), 3, std::vec![(4, 2)]),
        "sub [rdi],eax"
    );
    assert_eq!(
        run(&[0xf7, 0x07, 0, 0x10, 0, 0], 1, 0xfff),
        (Ok(Some(0x44)), 1, std::vec![]),
        "test"
    );
    assert_eq!(
        run(&[0x39, 0x07], 6, 5),
        (Ok(Some(0x95)), 6, std::vec![]),
        "cmp [rdi],eax"
    );
    assert_eq!(
        run(&[0x3b, 0x07], 6, 5),
        (Ok(Some(0)), 6, std::vec![]),
        "cmp eax,[rdi]"
    );
}

#[test]
fn other_instructions_are_named() {
    let mut cpu = MockCpu::new();
    for code in [
        &[0xa5u8][..],
        &[0x0f, 0x6f, 0x07],
        &[0xff, 0x07],
        &[0xff, 0x37],
        &[0x8e, 0x1f],
        &[0xab],
    ] {
        let (cell, result) = run(64, code, &mut cpu, 1);
        assert!(matches!(result, Err(Unsupported(_))), "{code:x?}");
        assert!(cell.writes.is_empty());
    }
    assert!(
        Unsupported(Mnemonic::Movsd)
            .to_string()
            .starts_with("Movsd on a device's memory; expected")
    );
}

proptest! {
    #[test]
    fn arbitrary_code_never_panics(code in proptest::collection::vec(any::<u8>(), 1..16), bits in 0usize..3) {
        let mut cpu = MockCpu::new();
        let _ = run([16, 32, 64][bits], &code, &mut cpu, MEM);
    }
}
