//! Does what a guest should not, and must hurt only itself.
//!
//! First the faults that it can survive (`do=`, all by default), each with the exception that a CPU must raise; then the last act
//! (`end=`), from which there is no way back. `PASS` is printed before a last act whose good end is the end of this guest.
//!
//! | `do=` (comma-separated) | |
//! |---|---|
//! | `ud` | undefined opcodes, and those of virtualization, which a guest has no right to |
//! | `div`, `int3`, `gp`, `pf` | #DE, #BP, #GP by a non-canonical address, #PF by an unmapped one |
//! | `msr` | MSRs that do not exist, and the hypervisor's own |
//! | `port` | ports where nothing is, in all sizes |
//! | `registers` | instructions that leave the guest change no register but their own |
//!
//! | `end=` | good end |
//! |---|---|
//! | `triple` (default) | triple fault, after `PASS` |
//! | `port` | like every other kernel, by the exit port |
//! | `touch` | reads and writes memory it does not own, after `PASS`. It then may be ended by the hypervisor, or, as on a PC, read no memory and leave by the exit port. If the memory keeps what was written, `FAIL` follows and the exit code is 0x11 |
//! | `exloop` | raises one exception for ever after `PASS`, interrupts off: `exloop=gp` (default), `ud`, `db` (a data breakpoint on the exception's own stack frame); `for-ms=` ends it after that by the exit port |
//!
//! Figures: `faults` (exceptions raised and taken), `touch_read` (what memory that is not there reads as).
#![no_std]
#![no_main]
#![expect(
    unsafe_code,
    reason = "doing what must not be done is what this kernel is for"
)]

use core::arch::{asm, global_asm};
use core::cell::Cell;
use guest_tests::host::Host;
use guest_tests::trap::{self, Exception, IdtPointer};
use guest_tests::{
    Machine, attempt, check, check_eq, cpu, figure, note, paging, print, tsc, verdict,
};

guest_tests::guest_test! {
    name: "fault",
    summary: "bad opcodes, foreign registers and memory, then a triple fault",
    cmdline: "",
    vcpus: 1,
    memory_mib: 16,
    end: TripleFault,
    main: main,
    ap: trap::no_ap,
    interrupt: trap::no_interrupts,
}

const UD: u8 = 6;
const GP: u8 = 13;

type Deed = (&'static str, fn(&Faults));

/// The survivable deeds, in the order they are done.
const DEEDS: [Deed; 8] = [
    ("ud", undefined_opcodes),
    ("div", |faults| {
        // SAFETY: faults, or divides.
        let trap = unsafe {
            attempt!("xor ecx, ecx", "div ecx"; inout("rax") 1u64 => _, inout("rdx") 0u64 => _)
        };
        faults.must("DIV by zero", trap, 0);
    }),
    ("int3", |faults| {
        // SAFETY: a trap that the handler knows of.
        faults.must("INT3", unsafe { attempt!("int3") }, 3);
    }),
    ("gp", |faults| {
        // SAFETY: the address is not canonical: nothing is read.
        let trap = unsafe { attempt!("mov rax, [rax]"; inout("rax") 1u64 << 63 => _) };
        faults.must("read of a non-canonical address", trap, GP);
        // SAFETY: selector 0x20 lies beyond the descriptor table: nothing is loaded.
        faults.must(
            "load of a selector beyond the table",
            unsafe { attempt!("mov es, ax"; inout("rax") 0x20u64 => _) },
            GP,
        );
    }),
    ("pf", |faults| {
        // SAFETY: the address is not mapped.
        let trap = unsafe { attempt!("mov [rax], rax"; inout("rax") 6u64 << 30 => _) };
        faults.must("write to an unmapped address", trap, 14);
    }),
    ("msr", model_specific_registers),
    ("port", absent_ports),
    ("registers", untouched_registers),
];

const ENDS: [&str; 4] = ["triple", "port", "touch", "exloop"];

/// How many exceptions came, and on what host.
struct Faults {
    host: Host,
    taken: Cell<u32>,
}

impl Faults {
    fn note(&self, trap: Option<Exception>) {
        self.taken.set(self.taken.get() + u32::from(trap.is_some()));
    }

    /// The exception `vector` must have come.
    fn must(&self, what: &str, trap: Option<Exception>, vector: u8) {
        self.note(trap);
        match trap {
            Some(trap) => check_eq!(trap.vector, vector, format_args!("exception by {what}")),
            None => verdict::fail(format_args!(
                "{what} raised no exception, expected {}",
                trap::name(vector)
            )),
        }
    }

    /// Either nothing came, or the exception `vector`.
    fn may(&self, what: &str, trap: Option<Exception>, vector: u8) {
        self.note(trap);
        if let Some(trap) = trap {
            check_eq!(trap.vector, vector, format_args!("exception by {what}"));
        }
    }
}

fn main(machine: &Machine<'_>) {
    let options = &machine.options;
    let mut end = options.choice("end", &ENDS, 0);
    let deeds = options.text("do");
    let kind = options.choice("exloop", &["gp", "ud", "db"], 0);
    let millis = options.number_if_given("for-ms", 1..=10_000_000);
    options.report_unknown();

    let faults = Faults {
        host: machine.host,
        taken: Cell::new(0),
    };
    let wanted = |name: &str| deeds.is_none_or(|list| list.split(',').any(|word| word == name));
    DEEDS
        .iter()
        .filter(|(name, _)| wanted(name))
        .for_each(|(name, deed)| {
            print!("fault: {name}");
            deed(&faults);
        });
    for word in deeds
        .unwrap_or("")
        .split(',')
        .filter(|word| !word.is_empty())
    {
        // `port` is a deed here: the end is for `end=` to choose, unless the word can mean nothing else.
        if DEEDS.iter().any(|(name, _)| *name == word) {
            continue;
        }
        match ENDS.iter().position(|name| *name == word) {
            Some(index) => end = index,
            None => note!("do={word} is unknown, ignored"),
        }
    }
    figure!("faults", faults.taken.get(), "exceptions");
    print!("fault: end by {}", ENDS.get(end).unwrap_or(&"triple"));
    verdict::pass();
    match end {
        1 => {}
        2 => touch(machine.ram_end),
        3 => exception_loop(kind, millis),
        _ => triple_fault(),
    }
}

/// SVM is offered by CPUID 8000_0001h ECX; without EFER.SVME its instructions are undefined all the same (AMD APM vol. 2,
/// "Enabling SVM"), but for STGI and SKINIT where SKINIT is offered.
fn undefined_opcodes(faults: &Faults) {
    const SKINIT: u32 = 1 << 12;
    let extended = cpu::cpuid(0x8000_0001, 0).ecx;
    // SAFETY: for each: an undefined opcode changes nothing; one that is carried out against the rules finds an operand that
    // it must refuse. RAX points to memory that may be lost.
    unsafe {
        faults.must("UD2", attempt!("ud2"), UD);
        faults.must("UD0", attempt!(".byte 0x0f, 0xff, 0xc0"), UD);
        faults.must(
            "VEX with opcode map 0",
            attempt!(".byte 0xc4, 0x00, 0x00, 0x00"),
            UD,
        );
        faults.must("PUSH ES in long mode", attempt!(".byte 0x06"), UD);
        faults.must(
            "VMRUN",
            attempt!(".byte 0x0f, 0x01, 0xd8"; inout("rax") 0x7000u64 => _),
            UD,
        );
        faults.must(
            "VMLOAD",
            attempt!(".byte 0x0f, 0x01, 0xda"; inout("rax") 0x7000u64 => _),
            UD,
        );
        faults.must(
            "VMSAVE",
            attempt!(".byte 0x0f, 0x01, 0xdb"; inout("rax") 0x7000u64 => _),
            UD,
        );
        faults.must("CLGI", attempt!(".byte 0x0f, 0x01, 0xdd"), UD);
        faults.must(
            "INVLPGA",
            attempt!(".byte 0x0f, 0x01, 0xdf"; inout("rax") 0x7000u64 => _, inout("rcx") 0u64 => _),
            UD,
        );
        if extended & SKINIT == 0 {
            faults.must("STGI", attempt!(".byte 0x0f, 0x01, 0xdc"), UD);
            faults.must(
                "SKINIT",
                attempt!(".byte 0x0f, 0x01, 0xde"; inout("rax") 0x1_0000u64 => _),
                UD,
            );
        }
        // A call to a hypervisor that is not there is undefined; one that is answers, and must not know call -1.
        const NO_CALL: u64 = u64::MAX;
        faults.may(
            "VMMCALL",
            attempt!("mov r12, rbx", "vmmcall", "mov rbx, r12"; inout("rax") NO_CALL => _, out("r12") _),
            UD,
        );
        faults.may(
            "VMCALL",
            attempt!("mov r12, rbx", "vmcall", "mov rbx, r12"; inout("rax") NO_CALL => _, out("r12") _),
            UD,
        );
    }
    if !cpu::features().monitor {
        // SAFETY: names a line of memory and waits for nothing.
        let (monitor, mwait) = unsafe {
            let monitor = attempt!(".byte 0x0f, 0x01, 0xc8"; inout("rax") 0x7000u64 => _, inout("rcx") 0u64 => _, inout("rdx") 0u64 => _);
            (
                monitor,
                attempt!(".byte 0x0f, 0x01, 0xc9"; inout("rax") 0u64 => _, inout("rcx") 0u64 => _),
            )
        };
        // Some hypervisors make NOPs of the two although they hide them.
        let verdict = if faults.host == Host::Lull {
            Faults::must
        } else {
            Faults::may
        };
        verdict(faults, "MONITOR that CPUID hides", monitor, UD);
        verdict(faults, "MWAIT that CPUID hides", mwait, UD);
    }
}

fn model_specific_registers(faults: &Faults) {
    const VM_CR: u32 = 0xc001_0114;
    const VM_HSAVE_PA: u32 = 0xc001_0117;
    const EFER: u32 = 0xc000_0080;
    const SVME: u64 = 1 << 12;
    // Numbers that no CPU has, in the three ranges that the permission maps cover, and one in none.
    for msr in [0x1f00u32, 0xc000_1f00, 0xc001_1f00, 0x1234_5678] {
        // SAFETY: there is nothing behind the number.
        let (read, write) = unsafe {
            let read = attempt!("rdmsr"; inout("rcx") u64::from(msr) => _, inout("rax") 0u64 => _, inout("rdx") 0u64 => _);
            (
                read,
                attempt!("wrmsr"; inout("rcx") u64::from(msr) => _, inout("rax") 0u64 => _, inout("rdx") 0u64 => _),
            )
        };
        faults.may("RDMSR of a number without a register", read, GP);
        faults.may("WRMSR to a number without a register", write, GP);
    }
    // Where the hypervisor saves its own state is none of the guest's business.
    for msr in [VM_HSAVE_PA, VM_CR] {
        let (low, high): (u64, u64);
        // SAFETY: reads.
        let trap = unsafe {
            attempt!("rdmsr"; inout("rcx") u64::from(msr) => _, inout("rax") 0u64 => low, inout("rdx") 0u64 => high)
        };
        faults.may("RDMSR of the hypervisor's own", trap, GP);
        if msr == VM_HSAVE_PA && trap.is_none() {
            check!(
                low == 0 && high == 0,
                "VM_HSAVE_PA reads {high:#x}:{low:#x}: the address of the hypervisor's state"
            );
        }
    }
    if faults.host == Host::Lull {
        let efer = cpu::rdmsr(EFER) | SVME;
        // SAFETY: sets a bit that this guest was not offered; nothing else changes.
        let trap = unsafe {
            attempt!("wrmsr"; inout("rcx") u64::from(EFER) => _, inout("rax") efer & 0xffff_ffff => _, inout("rdx") efer >> 32 => _)
        };
        faults.may("WRMSR of EFER.SVME", trap, GP);
        // SAFETY: an undefined opcode changes nothing.
        faults.must(
            "VMRUN after EFER.SVME",
            unsafe { attempt!(".byte 0x0f, 0x01, 0xd8"; inout("rax") 0x7000u64 => _) },
            UD,
        );
    }
    let reserved = cpu::rdmsr(EFER) | 1 << 63;
    // SAFETY: must be refused as a whole.
    let trap = unsafe {
        attempt!("wrmsr"; inout("rcx") u64::from(EFER) => _, inout("rax") reserved & 0xffff_ffff => _, inout("rdx") reserved >> 32 => _)
    };
    faults.may("WRMSR of a reserved bit of EFER", trap, GP);
    check_eq!(cpu::rdmsr(EFER) >> 63, 0, "reserved bit of EFER");
}

fn absent_ports(faults: &Faults) {
    let _ = faults;
    for port in [0x1234u64, 0x5550, 0xfff0] {
        let (byte, word, double): (u64, u64, u64);
        // SAFETY: there is nothing behind the port.
        unsafe {
            asm!("in al, dx", in("rdx") port, inout("rax") 0u64 => byte, options(nostack));
            asm!("in ax, dx", in("rdx") port, inout("rax") 0u64 => word, options(nostack));
            asm!("in eax, dx", in("rdx") port, inout("rax") 0u64 => double, options(nostack));
            asm!("out dx, al", "out dx, ax", "out dx, eax", in("rdx") port, in("rax") 0xa5a5_a5a5u64, options(nostack));
        }
        check_eq!(byte, 0xff, format_args!("byte from port {port:#x}"));
        check_eq!(word, 0xffff, format_args!("word from port {port:#x}"));
        check_eq!(
            double,
            0xffff_ffff,
            format_args!("doubleword from port {port:#x}")
        );
    }
}

/// The general registers after `$code`, which began with `0x1111111111111111 * (n + 1)` in register `n`, but for the inputs.
/// Order: RAX RCX RDX RBX RBP RSI RDI R8 to R15.
macro_rules! registers_after {
    ($code:literal, $rax:expr, $rcx:expr, $rdx:expr) => {{
        let mut after = [0u64; 15];
        // SAFETY: RBX and RBP, which the compiler keeps for itself, are restored; the others count as changed. The array holds
        // all fifteen that are stored.
        unsafe {
            asm!(
                "push rbx", "push rbp", "push rdi",
                "mov rbx, 0x4444444444444444", "mov rbp, 0x5555555555555555",
                "mov rsi, 0x6666666666666666", "mov rdi, 0x7777777777777777",
                "mov r8, 0x8888888888888888", "mov r9, 0x9999999999999999",
                "mov r10, 0xaaaaaaaaaaaaaaaa", "mov r11, 0xbbbbbbbbbbbbbbbb",
                "mov r12, 0xcccccccccccccccc", "mov r13, 0xdddddddddddddddd",
                "mov r14, 0xeeeeeeeeeeeeeeee", "mov r15, -1",
                $code,
                "push r15", "push r14", "push r13", "push r12", "push r11", "push r10", "push r9", "push r8",
                "push rdi", "push rsi", "push rbp", "push rbx", "push rdx", "push rcx", "push rax",
                "mov rdi, [rsp + 15 * 8]",
                "mov ecx, 15",
                "2:", "pop rax", "mov [rdi], rax", "add rdi, 8", "dec ecx", "jnz 2b",
                "add rsp, 8", "pop rbp", "pop rbx",
                inout("rdi") after.as_mut_ptr() => _,
                inout("rax") $rax => _, inout("rcx") $rcx => _, inout("rdx") $rdx => _,
                out("rsi") _, out("r8") _, out("r9") _, out("r10") _, out("r11") _,
                out("r12") _, out("r13") _, out("r14") _, out("r15") _,
            );
        }
        after
    }};
}

fn untouched_registers(faults: &Faults) {
    let _ = faults;
    const RAX: u64 = 0x1111_1111_1111_1111;
    const RCX: u64 = 0x2222_2222_2222_2222;
    const ABSENT_PORT: u64 = 0x1234;
    const APIC_BASE: u64 = 0x1b;
    for round in 0..100 {
        let after = registers_after!("in al, dx", RAX, RCX, ABSENT_PORT);
        compare(
            "IN",
            round,
            &after,
            [Some(RAX | 0xff), Some(RCX), Some(ABSENT_PORT), None],
        );
        let after = registers_after!("out dx, al", RAX, RCX, ABSENT_PORT);
        compare(
            "OUT",
            round,
            &after,
            [Some(RAX), Some(RCX), Some(ABSENT_PORT), None],
        );
        let after = registers_after!("rdmsr", RAX, APIC_BASE, RCX);
        let base = cpu::rdmsr(APIC_BASE as u32);
        compare(
            "RDMSR",
            round,
            &after,
            [
                Some(base & 0xffff_ffff),
                Some(APIC_BASE),
                Some(base >> 32),
                None,
            ],
        );
        let after = registers_after!("cpuid", 0u64, 0u64, RCX);
        let leaf = cpu::cpuid(0, 0);
        let [a, b, c, d] =
            [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx].map(|value| Some(u64::from(value)));
        compare("CPUID", round, &after, [a, c, d, b]);
    }
}

/// `own`: RAX, RCX, RDX, RBX as the instruction must leave them; `None` where it must leave the pattern.
fn compare(what: &str, round: u32, after: &[u64; 15], own: [Option<u64>; 4]) {
    for (index, &found) in after.iter().enumerate() {
        let pattern = 0x1111_1111_1111_1111 * (index as u64 + 1);
        let expected = own.get(index).copied().flatten().unwrap_or(pattern);
        check!(
            found == expected,
            "{what} in round {round} left {found:#x} in register {index}, expected {expected:#x}"
        );
    }
}

/// Memory right above its own, in the hole below 4 GiB, and far above.
fn touch(ram_end: Option<u64>) {
    const HOLE: u64 = 0xd000_0000;
    const PATTERN: u64 = 0x4c75_6c6c_2166_6c61;
    let width = (cpu::cpuid(0x8000_0008, 0).eax & 0xff).clamp(36, 48);
    let above = ram_end
        .map(|end| end.next_multiple_of(1 << 20) + (1 << 20))
        .filter(|&above| above < HOLE);
    for physical in above.into_iter().chain([HOLE, 1 << (width - 2)]) {
        print!("fault: touching {physical:#x}");
        let at = paging::map_spare(physical);
        // SAFETY: the mapping is the kernel's own, and no object of the program lies there, whatever the memory behind it is.
        let (before, after) = unsafe {
            let before = at.read_volatile();
            at.write_volatile(PATTERN);
            (before, at.read_volatile())
        };
        figure!("touch_read", before, "value");
        let _ = paging::map_spare(0);
        check!(
            after != PATTERN,
            "memory at {physical:#x}, which is not this guest's, keeps what is written"
        );
        check!(
            before == u64::MAX || before == 0,
            "memory at {physical:#x}, which is not this guest's, reads {before:#x}"
        );
    }
}

/// An empty descriptor table, and then an exception.
fn triple_fault() -> ! {
    let empty = IdtPointer { limit: 0, base: 0 };
    // SAFETY: nothing runs on this CPU any more.
    unsafe { asm!("lidt [{}]", "ud2", in(reg) &raw const empty, options(noreturn)) };
}

// Handlers that go straight back to the instruction that faulted, until the TSC passes the limit: then to the end of the loop.
// They may use any register: the loops keep nothing in them but RSI.
global_asm!(
    ".pushsection .text.exloop, \"ax\", @progbits",
    ".globl exloop_with_error, exloop_without_error, exloop_limit, exloop_count, exloop_end",
    "exloop_with_error:",
    "add rsp, 8",
    "exloop_without_error:",
    "inc qword ptr [exloop_count]",
    "rdtsc",
    "shl rdx, 32",
    "or rax, rdx",
    "cmp rax, [exloop_limit]",
    "jb 2f",
    "lea rax, [rip + exloop_end]",
    "mov [rsp], rax",
    "2: mov rax, rsi",
    "iretq",
    "exloop_end: ret",
    ".popsection",
    ".pushsection .data.exloop, \"aw\", @progbits",
    ".balign 8",
    "exloop_limit: .quad 0",
    "exloop_count: .quad 0",
    ".popsection",
);

/// Raises one exception for ever, or for `millis`.
fn exception_loop(kind: usize, millis: Option<u64>) {
    unsafe extern "C" {
        fn exloop_with_error();
        fn exloop_without_error();
        static mut exloop_limit: u64;
        static exloop_count: u64;
    }
    let limit = millis.map_or(u64::MAX, |millis| {
        cpu::now().after(tsc::rate().millis(millis)).0
    });
    let gate = |handler: unsafe extern "C" fn()| {
        let target = handler as *const () as u64;
        [
            target & 0xffff | 0x08 << 16 | 0x8e00 << 32 | (target >> 16 & 0xffff) << 48,
            target >> 32,
        ]
    };
    let mut gates = [gate(exloop_without_error); 32];
    for vector in [8, 10, 11, 12, 13, 14, 17] {
        if let Some(place) = gates.get_mut(vector) {
            *place = gate(exloop_with_error);
        }
    }
    let pointer = IdtPointer {
        limit: 32 * 16 - 1,
        base: gates.as_ptr() as u64,
    };
    // SAFETY: interrupts are off and stay so; the gates outlive their use, since the table is put back before the return; the
    // handlers change RAX and RDX only.
    unsafe {
        (&raw mut exloop_limit).write_volatile(limit);
        asm!("lidt [{}]", in(reg) &raw const pointer, options(readonly, nostack));
        match kind {
            1 => {
                asm!("call 3f", "jmp 4f", "3: ud2", "4:", out("rax") _, out("rdx") _, in("rsi") 0u64)
            }
            2 => debug_loop(),
            _ => {
                asm!("call 3f", "jmp 4f", "3: mov rax, [rsi]", "4:", inout("rax") 0u64 => _, out("rdx") _, in("rsi") 1u64 << 63)
            }
        }
        trap::load();
        figure!(
            "exloop_count",
            (&raw const exloop_count).read_volatile(),
            "exceptions"
        );
    }
}

/// A data breakpoint on the stack slot that the frame of #DB itself is written to: on a CPU that delivers the second #DB from
/// within the delivery of the first, this never ends and takes no interrupt (CVE-2015-8104): a hypervisor must intercept #DB.
///
/// # Safety
/// The handlers of `exloop_*` must be in place.
unsafe fn debug_loop() {
    // SAFETY: the debug registers are cleared afterwards; the slot lies below the stack pointer, where only the frame is written.
    unsafe {
        asm!(
            "call 3f",
            "jmp 4f",
            // RSP as the CPU aligns it for the frame, minus one word: where SS is pushed.
            "3: mov rax, rsp",
            "and rax, -16",
            "sub rax, 8",
            "mov dr0, rax",
            "mov eax, 0x00090402", // breakpoint 0: enabled, on writes, 8 bytes wide
            "mov dr7, rax",
            "5: int3",
            "jmp 5b",
            "4: xor eax, eax",
            "mov dr7, rax",
            "mov dr6, rax",
            out("rax") _, out("rdx") _, in("rsi") 0u64,
        );
    }
}
