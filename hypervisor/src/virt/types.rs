//! The vendor-neutral words of virtualization: registers, exits, injections.

use alloc::string::String;

use bitflags::bitflags;

/// A general register, numbered as instructions encode it (AMD APM vol. 3, 1.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Gpr {
    /// Accumulator.
    Rax = 0,
    /// Counter.
    Rcx = 1,
    /// Data.
    Rdx = 2,
    /// Base.
    Rbx = 3,
    /// Stack pointer.
    Rsp = 4,
    /// Frame pointer.
    Rbp = 5,
    /// Source index.
    Rsi = 6,
    /// Destination index.
    Rdi = 7,
    /// Extended register 8.
    R8 = 8,
    /// Extended register 9.
    R9 = 9,
    /// Extended register 10.
    R10 = 10,
    /// Extended register 11.
    R11 = 11,
    /// Extended register 12.
    R12 = 12,
    /// Extended register 13.
    R13 = 13,
    /// Extended register 14.
    R14 = 14,
    /// Extended register 15.
    R15 = 15,
}

impl Gpr {
    /// All registers in encoding order.
    pub const ALL: [Self; 16] = [
        Self::Rax,
        Self::Rcx,
        Self::Rdx,
        Self::Rbx,
        Self::Rsp,
        Self::Rbp,
        Self::Rsi,
        Self::Rdi,
        Self::R8,
        Self::R9,
        Self::R10,
        Self::R11,
        Self::R12,
        Self::R13,
        Self::R14,
        Self::R15,
    ];

    /// Position in encoding order.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The register that an instruction encodes as `number`, if below 16.
    pub fn from_encoding(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// A segment register, numbered as instructions and AMD's port I/O exits encode it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SegmentRegister {
    /// Extra segment.
    Es = 0,
    /// Code segment.
    Cs = 1,
    /// Stack segment.
    Ss = 2,
    /// Data segment.
    Ds = 3,
    /// F segment.
    Fs = 4,
    /// G segment.
    Gs = 5,
}

bitflags! {
    /// Segment attributes: bits 40 to 47 and 52 to 55 of a descriptor, packed into 12 bits (AMD APM vol. 2, 15.5.1).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct SegmentAttributes: u16 {
        /// Accessed (data, code); first bit of the type.
        const ACCESSED = 1 << 0;
        /// Writable data, or readable code.
        const READ_WRITE = 1 << 1;
        /// Expand-down data, or conforming code.
        const DIRECTION = 1 << 2;
        /// Code.
        const CODE = 1 << 3;
        /// Code or data, not a system segment.
        const USER = 1 << 4;
        /// Descriptor privilege level, both bits.
        const DPL = 0b11 << 5;
        /// Present.
        const PRESENT = 1 << 7;
        /// Available to software.
        const AVAILABLE = 1 << 8;
        /// 64-bit code.
        const LONG = 1 << 9;
        /// 32-bit default size.
        const BIG = 1 << 10;
        /// The limit counts 4 KiB units (in the descriptor; `Segment::limit` is always in bytes).
        const GRANULARITY = 1 << 11;
    }
}

/// A segment register with its hidden part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Segment {
    /// Visible selector.
    pub selector: u16,
    /// Attributes.
    pub attributes: SegmentAttributes,
    /// Last valid offset, in bytes.
    pub limit: u32,
    /// Linear base address.
    pub base: u64,
}

/// What an instruction decoder and a page walker need to know of a guest CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct GuestCpuState {
    /// CR0.
    pub cr0: u64,
    /// CR2.
    pub cr2: u64,
    /// CR3.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
    /// EFER as the guest sees it.
    pub efer: u64,
    /// RFLAGS.
    pub rflags: u64,
    /// RIP.
    pub rip: u64,
    /// Current privilege level.
    pub cpl: u8,
    /// Code segment.
    pub cs: Segment,
    /// Stack segment.
    pub ss: Segment,
    /// Data segment.
    pub ds: Segment,
    /// Extra segment.
    pub es: Segment,
    /// F segment.
    pub fs: Segment,
    /// G segment.
    pub gs: Segment,
}

impl GuestCpuState {
    /// Segment by name.
    pub fn segment(&self, register: SegmentRegister) -> Segment {
        match register {
            SegmentRegister::Es => self.es,
            SegmentRegister::Cs => self.cs,
            SegmentRegister::Ss => self.ss,
            SegmentRegister::Ds => self.ds,
            SegmentRegister::Fs => self.fs,
            SegmentRegister::Gs => self.gs,
        }
    }

    /// CR0.PG.
    pub fn paging(&self) -> bool {
        self.cr0 & (1 << 31) != 0
    }

    /// EFER.LMA: 64-bit or compatibility mode.
    pub fn long_mode(&self) -> bool {
        self.efer & (1 << 10) != 0
    }

    /// Default code size in bits: 16, 32 or 64.
    pub fn code_bits(&self) -> u32 {
        if self.long_mode() && self.cs.attributes.contains(SegmentAttributes::LONG) {
            64
        } else if self.cs.attributes.contains(SegmentAttributes::BIG)
            && self.cr0 & 1 != 0
            && self.rflags & (1 << 17) == 0
        {
            32
        } else {
            16
        }
    }
}

/// Where a vCPU begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartState {
    /// Xen PVH: 32-bit protected mode, flat segments, paging off, EBX = address of `hvm_start_info`.
    Pvh {
        /// Guest-physical entry point.
        entry: u32,
        /// Guest-physical address of `hvm_start_info`.
        start_info: u32,
    },
    /// Start-up IPI: real mode at `vector << 12`.
    Sipi {
        /// Page number of the first instruction.
        vector: u8,
    },
    /// After INIT; not runnable.
    WaitForSipi,
}

/// An event for a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injection {
    /// External interrupt with this vector.
    Interrupt(u8),
    /// Non-maskable interrupt.
    Nmi,
    /// Exception at the current instruction.
    Exception {
        /// Vector, 0 to 31.
        vector: u8,
        /// Error code, for vectors that have one.
        error: Option<u32>,
    },
}

impl Injection {
    /// #UD.
    pub const UD: Self = Self::Exception {
        vector: 6,
        error: None,
    };
    /// #GP(0).
    pub const GP0: Self = Self::Exception {
        vector: 13,
        error: Some(0),
    };
}

/// The guest gets #GP(0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gp;

/// Called around the guest's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateEvent {
    /// The gate is passed, the guest runs next.
    Entering,
    /// The guest has just been left; handlers of physical interrupts have not run yet.
    Left,
}

/// Address size of a string instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressSize {
    /// 16 bits.
    Bits16,
    /// 32 bits.
    Bits32,
    /// 64 bits.
    Bits64,
}

/// An access to an I/O port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoExit {
    /// First port.
    pub port: u16,
    /// Bytes: 1, 2 or 4.
    pub size: u8,
    /// OUT or OUTS.
    pub write: bool,
    /// INS or OUTS.
    pub string: bool,
    /// With REP prefix.
    pub rep: bool,
    /// Address size of INS and OUTS.
    pub address_size: AddressSize,
    /// Segment of OUTS where hardware names it.
    pub segment: Option<SegmentRegister>,
    /// Address of the next instruction.
    pub next_rip: Option<u64>,
}

/// Why the guest stopped running.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Exit {
    /// A physical interrupt was taken, or the gate was closed because the wake word had an event. Look at the word.
    Event,
    /// The backend dealt with it. Evaluate pending interrupts and enter again.
    Handled,
    /// The last exit of several was answered, and counted, at the [gate](super::Gate). Evaluate pending interrupts and the
    /// timer, and enter again.
    Answered,
    /// HLT.
    Hlt,
    /// PAUSE, or as many in a row as the filter allows.
    Pause,
    /// MONITOR.
    Monitor,
    /// MWAIT.
    Mwait,
    /// CPUID.
    Cpuid,
    /// RDMSR of an MSR that is not let through.
    Rdmsr,
    /// WRMSR of an MSR that is not let through.
    Wrmsr,
    /// Port I/O.
    Io(IoExit),
    /// XSETBV.
    Xsetbv,
    /// VMMCALL or VMCALL.
    Hypercall,
    /// MOV to CR8, intercepted while a window is asked for. Set CR8, evaluate interrupts, step over it.
    Cr8Write,
    /// INVD or WBINVD: nothing to do but to step over it.
    CacheFlush,
    /// Access to guest-physical memory that is not mapped, or not so.
    NestedFault {
        /// Guest-physical address.
        gpa: u64,
        /// A write.
        write: bool,
        /// An instruction fetch.
        fetch: bool,
        /// A translation was there, the access was not allowed.
        present: bool,
        /// The access was of the guest's page walk, not of the instruction itself.
        page_walk: bool,
    },
    /// The guest has written a register of the APIC that the processor [virtualizes](super::VirtCpu::show_apic), and is past the
    /// instruction; what the write does is left to the caller.
    ApicWrite {
        /// The register's offset in the page.
        offset: u32,
        /// What was written.
        value: u32,
    },
    /// #DB or #AC, intercepted so that a guest cannot loop in their delivery. Inject it back.
    Exception {
        /// Vector.
        vector: u8,
        /// Error code (0 for vectors without one).
        error: u32,
    },
    /// The guest can take an external interrupt now.
    InterruptWindow,
    /// An instruction that guests do not have (VMRUN, SKINIT, INVLPGA, ...). Inject #UD.
    Undefined,
    /// RDPMC. Inject #GP(0): guests have no performance counters.
    Rdpmc,
    /// Triple fault.
    TripleFault,
    /// INIT reached the physical CPU.
    Init,
    /// NMI reached the physical CPU; its handler has run.
    Nmi,
    /// The processor refused the state of the vCPU, or left it for a reason that we do not know. The guest cannot go on.
    Invalid {
        /// What is wrong, for people.
        reason: String,
    },
}
