//! IN, OUT, INS, OUTS.
use super::super::fixture::MockCpu;
use super::*;
use crate::virt::Segment;
use std::vec::Vec;

struct Setup {
    cpu: MockCpu,
    memory: GuestMemory,
    devices: Devices,
    lines: Vec<String>,
}

fn setup() -> Setup {
    let (cpu, memory) = (MockCpu::new(), GuestMemory::leaked(0x4000));
    Setup {
        cpu,
        memory,
        devices: Devices::default(),
        lines: Vec::new(),
    }
}

impl Setup {
    fn run(&mut self, io: IoExit) -> IoResult {
        let lines = &mut self.lines;
        access(
            &io,
            &mut self.cpu,
            &self.memory,
            &mut self.devices,
            &mut |l| lines.push(l),
        )
    }
    fn gpr(&self, r: Gpr) -> u64 {
        self.cpu.gpr(r)
    }
    fn rip(&self) -> u64 {
        self.cpu.state().cpu.rip
    }
}

fn io(port: u16, size: u8, write: bool) -> IoExit {
    let address_size = AddressSize::Bits64;
    IoExit {
        port,
        size,
        write,
        string: false,
        rep: false,
        address_size,
        segment: None,
        next_rip: Some(0x77),
    }
}

fn rep(port: u16, size: u8, write: bool) -> IoExit {
    IoExit {
        string: true,
        rep: true,
        ..io(port, size, write)
    }
}

#[test]
fn in_changes_as_much_of_rax_as_the_access_is_wide() {
    for (size, rax) in [
        (1, 0x1122_3344_5566_77e9),
        (2, 0x1122_3344_5566_ffe9),
        (4, 0xffff_ffe9),
    ] {
        let mut s = setup();
        s.cpu.set_gpr(Gpr::Rax, 0x1122_3344_5566_7788);
        assert_eq!(s.run(io(0xe9, size, false)), IoResult::Resume);
        assert_eq!((s.gpr(Gpr::Rax), s.rip()), (rax, 0x77));
    }
}

#[test]
fn out_prints_and_ends() {
    let mut s = setup();
    for byte in b"hi\n" {
        s.cpu.set_gpr(Gpr::Rax, 0xffff_ff00 | u64::from(*byte));
        assert_eq!(s.run(io(0xe9, 1, true)), IoResult::Resume);
    }
    assert_eq!(s.lines, ["hi"]);
    s.cpu.set_gpr(Gpr::Rax, 0x10);
    assert_eq!(s.run(io(0xf4, 4, true)), IoResult::Exit(0x10));
}

#[test]
fn outs_reads_memory_through_the_segment() {
    let mut s = setup();
    s.memory.write(0x1100, b"one\ntwo\n").expect("in range");
    s.cpu.set_gpr(Gpr::Rsi, 0x1100);
    s.cpu.set_gpr(Gpr::Rcx, 8);
    assert_eq!(s.run(rep(0xe9, 1, true)), IoResult::Resume);
    assert_eq!(s.lines, ["one", "two"]);
    assert_eq!(
        (s.gpr(Gpr::Rsi), s.gpr(Gpr::Rcx), s.rip()),
        (0x1108, 0, 0x77)
    );

    s.cpu.state().cpu.gs.base = 0x1000;
    s.cpu.set_gpr(Gpr::Rsi, 0x103);
    s.cpu.state().cpu.rflags |= DIRECTION;
    let io = IoExit {
        rep: false,
        segment: Some(SegmentRegister::Gs),
        ..rep(0xe9, 1, true)
    };
    assert_eq!(s.run(io), IoResult::Resume);
    assert_eq!((s.lines.len(), s.gpr(Gpr::Rsi)), (3, 0x102));
}

#[test]
fn a_prefix_names_the_segment_if_hardware_does_not() {
    let mut s = setup();
    s.memory.write(0x2000, &[0x64, 0x6e]).expect("in range");
    {
        let mut state = s.cpu.state();
        state.cpu.rip = 0x2000;
        state.cpu.fs.base = 0x3000;
    }
    s.memory.write(0x3008, b"\n").expect("in range");
    s.cpu.set_gpr(Gpr::Rsi, 8);
    assert_eq!(
        s.run(IoExit {
            rep: false,
            ..rep(0xe9, 1, true)
        }),
        IoResult::Resume
    );
    assert_eq!(s.lines, [""]);
}

#[test]
fn ins_writes_memory_and_a_long_one_is_done_in_pieces() {
    let mut s = setup();
    s.cpu.set_gpr(Gpr::Rdi, 0x1000);
    s.cpu.set_gpr(Gpr::Rcx, 600);
    assert_eq!(s.run(rep(0xe9, 2, false)), IoResult::Resume);
    assert_eq!(
        (s.gpr(Gpr::Rcx), s.gpr(Gpr::Rdi), s.rip()),
        (88, 0x1400, 0),
        "not finished"
    );
    assert_eq!(s.run(rep(0xe9, 2, false)), IoResult::Resume);
    assert_eq!(
        (s.gpr(Gpr::Rcx), s.gpr(Gpr::Rdi), s.rip()),
        (0, 0x14b0, 0x77)
    );
    assert_eq!(s.memory.read_u32(0x14ac), Ok(0xffe9_ffe9));
    assert_eq!(s.memory.read_u32(0x14b0), Ok(0));
}

#[test]
fn a_count_of_zero_does_nothing() {
    let mut s = setup();
    s.cpu.set_gpr(Gpr::Rcx, 1 << 32);
    let io = IoExit {
        address_size: AddressSize::Bits32,
        ..rep(0xf4, 1, true)
    };
    assert_eq!(s.run(io), IoResult::Resume);
    assert_eq!(
        (s.rip(), s.gpr(Gpr::Rcx)),
        (0x77, 0),
        "the count is 32 bits wide"
    );
}

#[test]
fn memory_that_is_not_there_faults_with_the_progress_kept() {
    let mut s = setup();
    s.cpu.set_gpr(Gpr::Rdi, 0x3ffe);
    s.cpu.set_gpr(Gpr::Rcx, 5);
    assert_eq!(s.run(rep(0xe9, 1, false)), IoResult::Resume);
    assert_eq!((s.gpr(Gpr::Rcx), s.gpr(Gpr::Rdi), s.rip()), (3, 0x4000, 0));
    assert_eq!(s.cpu.state().pending, [crate::virt::Injection::GP0]);
}

#[test]
fn segment_limits_hold_outside_64_bit_mode() {
    let mut s = setup();
    {
        let mut state = s.cpu.state();
        state.cpu.efer = 0;
        let attributes = SegmentAttributes::BIG | SegmentAttributes::READ_WRITE;
        state.cpu.cs.attributes = SegmentAttributes::BIG;
        state.cpu.es = Segment {
            base: 0x1000,
            limit: 0xf,
            attributes,
            selector: 8,
        };
    }
    let one = |di| {
        (
            IoExit {
                rep: false,
                address_size: AddressSize::Bits32,
                ..rep(0xe9, 4, false)
            },
            di,
        )
    };
    for ((io, di), fits) in [
        (one(0xc), true),
        (one(0xd), false),
        (one(u64::from(u32::MAX)), false),
    ] {
        s.cpu.state().pending.clear();
        s.cpu.set_gpr(Gpr::Rdi, di);
        assert_eq!(s.run(io), IoResult::Resume);
        assert_eq!(s.cpu.state().pending.is_empty(), fits, "{di:#x}");
    }
    assert_eq!(s.memory.read_u32(0x100c), Ok(0xffff_ffe9));
    s.cpu.state().pending.clear();
    s.cpu.state().cpu.es.attributes = SegmentAttributes::BIG;
    s.cpu.set_gpr(Gpr::Rdi, 0);
    assert_eq!(s.run(one(0).0), IoResult::Resume);
    assert_eq!(s.cpu.state().pending.len(), 1, "read-only segment");
}
