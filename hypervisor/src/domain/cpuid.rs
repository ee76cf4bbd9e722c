//! What a guest sees in CPUID.
//!
//! The real CPU's answer, with taken out what a guest cannot have (nested virtualization, MONITOR, performance
//! counters, ...), put in what Lull itself provides (x2APIC, TSC-deadline timer, the hypervisor leaves), and with
//! ids and topology that follow the vCPU's index: one package, one core a vCPU, no siblings.
//!
//! Everything is by lists of what passes, so that a feature of tomorrow's CPUs is hidden until someone thought
//! about it. Leaves: AMD APM vol. 3 appendix E, SDM 2A CPUID.

use lull_core::units::TickRate;

/// EAX, EBX, ECX, EDX.
pub type Regs = [u32; 4];

/// The CPU below.
pub trait RawCpuid {
    /// CPUID with this leaf in EAX and subleaf in ECX.
    fn cpuid(&self, leaf: u32, subleaf: u32) -> Regs;
}

/// The real CPU that this code runs on.
#[derive(Clone, Copy, Debug)]
pub struct Native;

impl RawCpuid for Native {
    fn cpuid(&self, leaf: u32, subleaf: u32) -> Regs {
        let r = raw_cpuid::native_cpuid::cpuid_count(leaf, subleaf);
        [r.eax, r.ebx, r.ecx, r.edx]
    }
}

/// The vCPU that asks.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// Its index, which is its APIC id.
    pub index: u32,
    /// vCPUs of its guest.
    pub count: u32,
    /// Its CR4.
    pub cr4: u64,
    /// Its XCR0.
    pub xcr0: u64,
    /// Whether its APIC is globally enabled.
    pub apic: bool,
    /// Rate of its TSC and of its APIC timer.
    pub rate: TickRate,
}

/// Highest basic leaf that is passed on.
const BASIC_MOST: u32 = 0x16;
/// Highest extended leaf.
const EXTENDED_MOST: u32 = 0x8000_001e;
/// First and last leaf of the hypervisor's own.
const HYPERVISOR: u32 = 0x4000_0000;
const HYPERVISOR_MOST: u32 = 0x4000_0010;

/// "Lull" three times.
const SIGNATURE: u32 = u32::from_le_bytes(*b"Lull");

const CR4_OSXSAVE: u64 = 1 << 18;

/// Leaf 1 ECX: SSE3, PCLMUL, SSSE3, FMA, CX16, PCID, SSE4.1, SSE4.2, MOVBE, POPCNT, AES, XSAVE, AVX, F16C, RDRAND.
const ECX1: u32 = 1
    | 1 << 1
    | 1 << 9
    | 1 << 12
    | 1 << 13
    | 1 << 17
    | 1 << 19
    | 1 << 20
    | 1 << 22
    | 1 << 23
    | 1 << 25
    | 1 << 26
    | 1 << 28
    | 1 << 29
    | 1 << 30;
/// Leaf 1 ECX: what Lull provides itself: x2APIC, TSC-deadline, running under a hypervisor.
const ECX1_OURS: u32 = 1 << 21 | 1 << 24 | 1 << 31;
const ECX1_XSAVE: u32 = 1 << 26;
const ECX1_OSXSAVE: u32 = 1 << 27;
/// Leaf 1 EDX: FPU VME DE PSE TSC MSR PAE MCE CX8 APIC SEP MTRR PGE MCA CMOV PAT PSE36 CLFSH MMX FXSR SSE SSE2 HTT.
const EDX1: u32 = 0x1788_bbff | 1 << 16 | 1 << 28;
const EDX1_APIC: u32 = 1 << 9;
const EDX1_HTT: u32 = 1 << 28;
/// Leaf 7 EBX: FSGSBASE BMI1 AVX2 SMEP BMI2 ERMS INVPCID RDSEED ADX SMAP CLFLUSHOPT CLWB SHA.
const EBX7: u32 = 1
    | 1 << 3
    | 1 << 5
    | 1 << 7
    | 1 << 8
    | 1 << 9
    | 1 << 10
    | 1 << 18
    | 1 << 19
    | 1 << 20
    | 1 << 23
    | 1 << 24
    | 1 << 29;
/// Leaf 7 ECX: UMIP, VAES, VPCLMULQDQ, RDPID.
const ECX7: u32 = 1 << 2 | 1 << 9 | 1 << 10 | 1 << 22;
/// Leaf 7 EDX: FSRM, and MD_CLEAR, which tells of a behaviour of VERW, not of an MSR.
const EDX7: u32 = 1 << 4 | 1 << 10;
/// Leaf D subleaf 1 EAX: XSAVEOPT, XSAVEC, XGETBV with ECX=1. No XSAVES: IA32_XSS is not offered.
const EAX_D1: u32 = 0b111;
/// Leaf 8000_0001h ECX: LAHF, CMP legacy off, CR8, LZCNT, SSE4A, misaligned SSE, prefetch.
const ECX81: u32 = 1 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8;
/// Leaf 8000_0001h EDX: the bits shared with leaf 1, SYSCALL, NX, MMXEXT, FFXSR, 1 GiB pages, RDTSCP, long mode.
const EDX81: u32 =
    0x0183_f3ff & !(1 << 19) | 1 << 11 | 1 << 20 | 1 << 22 | 1 << 25 | 1 << 26 | 1 << 27 | 1 << 29;
/// Leaf 8000_0007h EDX: the TSC never stops.
const EDX87_NONSTOP: u32 = 1 << 8;
/// Leaf 8000_0008h EBX: CLZERO, XSAVEERPTR, WBNOINVD.
const EBX88: u32 = 1 | 1 << 2 | 1 << 9;

/// Answers CPUID.
pub fn cpuid(raw: &impl RawCpuid, who: &Asker, leaf: u32, subleaf: u32) -> Regs {
    let basic = raw.cpuid(0, 0)[0].min(BASIC_MOST);
    let extended = raw.cpuid(0x8000_0000, 0)[0].min(EXTENDED_MOST);
    match leaf {
        0 => {
            let [_, b, c, d] = raw.cpuid(0, 0);
            // The topology leaf is there whether or not the CPU has it.
            [basic.max(0xb), b, c, d]
        }
        HYPERVISOR..=HYPERVISOR_MOST => hypervisor(who, leaf),
        0xb => topology(who, subleaf),
        _ if leaf <= basic => basic_leaf(raw, who, leaf, subleaf),
        _ if leaf >= 0x8000_0000 && leaf <= extended => extended_leaf(raw, who, leaf, extended),
        _ => [0; 4],
    }
}

fn hypervisor(who: &Asker, leaf: u32) -> Regs {
    let khz = u32::try_from(who.rate.hz() / 1000).unwrap_or(u32::MAX);
    match leaf {
        HYPERVISOR => [HYPERVISOR_MOST, SIGNATURE, SIGNATURE, SIGNATURE],
        HYPERVISOR_MOST => [khz, khz, 0, 0],
        _ => [0; 4],
    }
}

fn basic_leaf(raw: &impl RawCpuid, who: &Asker, leaf: u32, subleaf: u32) -> Regs {
    let r = raw.cpuid(leaf, subleaf);
    let [a, b, c, d] = r;
    match leaf {
        1 => {
            let mut ecx = c & ECX1 | ECX1_OURS;
            if ecx & ECX1_XSAVE != 0 && who.cr4 & CR4_OSXSAVE != 0 {
                ecx |= ECX1_OSXSAVE;
            }
            let mut edx =
                (d & EDX1 & !(EDX1_APIC | EDX1_HTT)) | if who.apic { EDX1_APIC } else { 0 };
            if who.count > 1 {
                edx |= EDX1_HTT;
            }
            [
                a,
                b & 0xffff | who.count.min(255) << 16 | who.index << 24,
                ecx,
                edx,
            ]
        }
        // Cache descriptors.
        2 => r,
        // Caches: each shared by one thread, in a package of as many cores as there are vCPUs.
        4 if a & 0x1f != 0 => [a & 0x3fff | (cores(who) - 1) << 26, b, c, d],
        6 => [a & 1 << 2, 0, 0, 0],
        7 if subleaf == 0 => [0, b & EBX7, c & ECX7, d & EDX7],
        0xd => xsave(raw, who, subleaf),
        0x15 | 0x16 => r,
        _ => [0; 4],
    }
}

/// Cores in the package as leaf 4 counts them: at most 64.
fn cores(who: &Asker) -> u32 {
    who.count.clamp(1, 64)
}

/// Leaf Bh: one thread a core, all cores in one package.
fn topology(who: &Asker, subleaf: u32) -> Regs {
    let kind = |level: u32| level << 8 | subleaf & 0xff;
    match subleaf {
        0 => [0, 1, kind(1), who.index],
        1 => [width(who.count), who.count, kind(2), who.index],
        _ => [0, 0, subleaf & 0xff, who.index],
    }
}

/// Bits that the APIC ids of `count` vCPUs need.
fn width(count: u32) -> u32 {
    count.next_power_of_two().trailing_zeros()
}

/// States that a guest may enable: x87, SSE, AVX, AVX-512. Others need more than saving them.
const XSTATES: u32 = 0b1110_0111;

/// Bits of XCR0 that a guest may set.
pub fn offered_xstates(raw: &impl RawCpuid) -> u64 {
    (raw.cpuid(0xd, 0)[0] & XSTATES).into()
}

fn xsave(raw: &impl RawCpuid, who: &Asker, subleaf: u32) -> Regs {
    let offered = raw.cpuid(0xd, 0)[0] & XSTATES;
    let area = |enabled: u64| {
        (2..63u32)
            .filter(|i| enabled & 1 << i != 0)
            .map(|i| raw.cpuid(0xd, i))
            .fold(576, |end, [size, offset, ..]| {
                end.max(offset.saturating_add(size))
            })
    };
    match subleaf {
        0 => [offered, area(who.xcr0 | 1), area(offered.into()), 0],
        1 => {
            let [a, b, ..] = raw.cpuid(0xd, 1);
            [a & EAX_D1, if a & 2 != 0 { b } else { 0 }, 0, 0]
        }
        2..32 if offered & 1 << subleaf != 0 => {
            let [size, offset, flags, _] = raw.cpuid(0xd, subleaf);
            // Bit 0 would say that it is managed by IA32_XSS.
            [size, offset, flags & !1, 0]
        }
        _ => [0; 4],
    }
}

fn extended_leaf(raw: &impl RawCpuid, who: &Asker, leaf: u32, most: u32) -> Regs {
    let r = raw.cpuid(leaf, 0);
    let [a, b, c, d] = r;
    match leaf {
        0x8000_0000 => [most, b, c, d],
        0x8000_0001 => {
            let apic = if who.apic { EDX1_APIC } else { 0 };
            [a, b, c & ECX81, (d & EDX81 & !EDX1_APIC) | (d & apic)]
        }
        // Name, caches.
        0x8000_0002..=0x8000_0006 => r,
        0x8000_0007 => [0, 0, 0, d & EDX87_NONSTOP],
        0x8000_0008 => {
            // Physical addresses are the host's: the tables above are walked by the same hardware.
            [
                a & 0xffff,
                b & EBX88,
                width(who.count) << 12 | (who.count - 1) & 0xff,
                0,
            ]
        }
        // Extended APIC id; core id, one thread a core; one node.
        0x8000_001e => [who.index, who.index & 0xff, 0, 0],
        _ => [0; 4],
    }
}

#[cfg(test)]
#[path = "cpuid_tests.rs"]
mod tests;
