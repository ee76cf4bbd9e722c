//! What keeps guests apart in the core that they take turns on: the barriers of [`lull_core::mitigation`], made of instructions.
//!
//! Set up once, on the boot CPU; all CPUs are taken to be alike. Called by `run::hosting`: when another guest's vCPU comes to a CPU,
//! and right before each entry. Counted for each CPU.

use core::fmt::Write;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use alloc::string::String;
use lull_core::cstate::models::{Identity, Vendor};
use lull_core::mitigation::{self, Barriers, CpuFacts, Policy, Verdict, Vulnerability};
use lull_core::units::{CpuId, DomId, MAX_CPUS};
use raw_cpuid::CpuIdReader;
use spin::Once;

static ACTIVE: AtomicU8 = AtomicU8::new(0);
static FACTS: Once<CpuFacts> = Once::new();
static CPUS: [PerCpu; MAX_CPUS] = [const { PerCpu::new() }; MAX_CPUS];

const NO_GUEST: u32 = u32::MAX;

#[repr(align(64))]
struct PerCpu {
    /// Whose vCPU was loaded last.
    guest: AtomicU32,
    /// In the order of [`Barriers::NAMES`]. One writer.
    counts: [AtomicU64; Barriers::NAMES.len()],
}

impl PerCpu {
    const fn new() -> Self {
        Self {
            guest: AtomicU32::new(NO_GUEST),
            counts: [const { AtomicU64::new(0) }; Barriers::NAMES.len()],
        }
    }

    fn make(&self, wanted: Barriers) {
        for (count, (barrier, _)) in self.counts.iter().zip(Barriers::NAMES) {
            if wanted.contains(barrier) && instructions::make(barrier) {
                count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
        }
    }
}

/// What this CPU says of itself.
pub fn facts(cpuid: &impl CpuIdReader, arch_capabilities: u64) -> CpuFacts {
    let most = cpuid.cpuid1(0);
    let mut vendor = [0; 12];
    for (to, from) in vendor.chunks_mut(4).zip([most.ebx, most.edx, most.ecx]) {
        to.copy_from_slice(&from.to_le_bytes());
    }
    let id = Identity::from_signature(Vendor::from_id(&vendor), cpuid.cpuid1(1).eax);
    let seven = if most.eax >= 7 {
        let leaf = cpuid.cpuid2(7, 0);
        [leaf.ebx, leaf.edx]
    } else {
        [0; 2]
    };
    let extended = |number: u32| {
        let there = cpuid.cpuid1(0x8000_0000).eax >= number;
        there.then(|| cpuid.cpuid1(number))
    };
    let ext8 = extended(0x8000_0008).map_or(0, |leaf| leaf.ebx);
    let ext21 = extended(0x8000_0021).map_or([0; 2], |leaf| [leaf.eax, leaf.ecx]);
    CpuFacts::new(id, seven, ext8, ext21, arch_capabilities)
}

/// Decides, tries the barriers, and says one line for each vulnerability. On the boot CPU, before a guest runs.
pub fn set_up(policy: Policy) {
    let cpuid = raw_cpuid::CpuIdReaderNative;
    let facts = *FACTS.call_once(|| facts(&cpuid, instructions::arch_capabilities(&cpuid)));
    let mut barriers = mitigation::barriers(&facts, policy);
    for (barrier, name) in Barriers::NAMES {
        if barriers.contains(barrier) && !instructions::make(barrier) {
            barriers.remove(barrier);
            log::warn!("{name} is not to be had: the CPU raises an exception for it");
        }
    }
    ACTIVE.store(barriers.bits(), Ordering::Relaxed);
    for v in Vulnerability::ALL {
        log::info!("{}", verdict(v));
    }
    log::info!("barriers between guests: {}", names(barriers));
}

/// A line about a vulnerability.
pub fn verdict(v: Vulnerability) -> String {
    let facts = FACTS.get().copied().unwrap_or_default();
    let (how, why) = match mitigation::judge(&facts, v, active()) {
        Verdict::NotAffected(why) => ("not affected", why),
        Verdict::Mitigated(by) => ("mitigated", by),
        Verdict::Vulnerable(why) => ("not or not fully mitigated", why),
    };
    alloc::format!("vulnerability {}: {how} ({why})", v.name())
}

/// Those in force.
pub fn active() -> Barriers {
    Barriers::from_bits_truncate(ACTIVE.load(Ordering::Relaxed))
}

/// Whether each entry has a barrier: then no exit may be answered without leaving the guest.
#[inline]
pub fn at_entry() -> bool {
    active().intersects(Barriers::AT_ENTRY)
}

/// Their names.
pub fn names(barriers: Barriers) -> String {
    let mut text = String::new();
    for (_, name) in Barriers::NAMES
        .iter()
        .filter(|(barrier, _)| barriers.contains(*barrier))
    {
        let comma = if text.is_empty() { "" } else { ", " };
        // A `String` takes all.
        let _ = write!(text, "{comma}{name}");
    }
    if text.is_empty() { "none".into() } else { text }
}

/// How often each was made on a CPU, with its name.
pub fn counts(cpu: CpuId) -> impl Iterator<Item = (&'static str, u64)> {
    CPUS.get(cpu.index()).into_iter().flat_map(|cpu| {
        cpu.counts
            .iter()
            .zip(Barriers::NAMES)
            .map(|(count, (_, name))| (name, count.load(Ordering::Relaxed)))
    })
}

/// A vCPU of this guest comes to this CPU.
pub fn guest_comes(cpu: CpuId, guest: DomId) {
    let Some(here) = CPUS.get(cpu.index()) else {
        return;
    };
    let guest = u32::from(guest.get());
    let before = here.guest.load(Ordering::Relaxed);
    here.guest.store(guest, Ordering::Relaxed);
    if before != guest && before != NO_GUEST {
        here.make(active() - Barriers::AT_ENTRY);
    }
}

/// This CPU is about to enter a guest. The last thing before it.
#[inline]
pub fn before_entry(cpu: CpuId) {
    if at_entry()
        && let Some(here) = CPUS.get(cpu.index())
    {
        here.make(active() & Barriers::AT_ENTRY);
    }
}

#[cfg(target_os = "none")]
mod instructions {
    #![expect(unsafe_code, reason = "writes MSRs, fills the return stack")]

    use core::arch::asm;

    use lull_core::mitigation::Barriers;
    use raw_cpuid::CpuIdReader;

    use crate::cpu::safe::{rdmsr, wrmsr};

    const ARCH_CAPABILITIES: u32 = 0x10a;
    const PRED_CMD: u32 = 0x49;
    const PRED_CMD_IBPB: u64 = 1;
    const FLUSH_CMD: u32 = 0x10b;
    const FLUSH_CMD_L1D: u64 = 1;

    /// The register, if CPUID says that there is one.
    pub fn arch_capabilities(cpuid: &impl CpuIdReader) -> u64 {
        let there = cpuid.cpuid1(0).eax >= 7 && cpuid.cpuid2(7, 0).edx >> 29 & 1 != 0;
        let value = there.then(|| rdmsr(ARCH_CAPABILITIES).ok());
        value.flatten().unwrap_or(0)
    }

    /// One barrier. `false`: the CPU does not have it.
    pub fn make(barrier: Barriers) -> bool {
        match barrier {
            // SAFETY: a command: predictions are forgotten, and nothing else changes.
            Barriers::IBPB => unsafe { wrmsr(PRED_CMD, PRED_CMD_IBPB) }.is_ok(),
            // SAFETY: a command: the cache is written back.
            Barriers::L1D_FLUSH => unsafe { wrmsr(FLUSH_CMD, FLUSH_CMD_L1D) }.is_ok(),
            Barriers::VERW => {
                let mut selector = 0u16;
                // SAFETY: stores a selector, and asks whether it is writable: only ZF changes. Only the form with an operand in
                // memory clears buffers.
                unsafe {
                    asm!("mov word ptr [{0}], ds", "verw word ptr [{0}]", in(reg) &raw mut selector, options(nostack));
                }
                true
            }
            Barriers::RSB_FILL => {
                // SAFETY: 32 calls whose returns are taken off the stack again; what is speculated behind one goes in a circle.
                unsafe {
                    asm!(
                        "mov {n:e}, 16",
                        "2: call 4f",
                        "3: pause",
                        "lfence",
                        "jmp 3b",
                        "4: call 6f",
                        "5: pause",
                        "lfence",
                        "jmp 5b",
                        "6: dec {n:e}",
                        "jnz 2b",
                        "add rsp, 256",
                        n = out(reg) _,
                    );
                }
                true
            }
            _ => false,
        }
    }
}

/// On the host on which tests run: a CPU with all of them.
#[cfg(not(target_os = "none"))]
mod instructions {
    use lull_core::mitigation::Barriers;
    use raw_cpuid::CpuIdReader;

    pub fn arch_capabilities(_: &impl CpuIdReader) -> u64 {
        0
    }

    pub fn make(_: Barriers) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_core::mitigation::Offers;

    #[test]
    fn facts_are_read_where_the_leaves_are() {
        let leaf = |eax, ebx, ecx, edx| raw_cpuid::CpuIdResult { eax, ebx, ecx, edx };
        let zen = move |number: u32, _: u32| match number {
            0 => leaf(0xd, 0x6874_7541, 0x444d_4163, 0x6974_6e65),
            1 => leaf(0x00a2_0f12, 0, 0, 0),
            0x8000_0000 => leaf(0x8000_0021, 0, 0, 0),
            0x8000_0008 => leaf(0, 1 << 12, 0, 0),
            0x8000_0021 => leaf(1 << 5, 0, 1 << 1, 0),
            _ => leaf(0, 0, 0, 0),
        };
        let facts = facts(&zen, 0);
        assert_eq!((facts.id.vendor, facts.id.family), (Vendor::Amd, 0x19));
        assert_eq!(
            facts.offers,
            Offers::IBPB | Offers::TSA_VERW | Offers::TSA_SQ_NO
        );
        let old = move |number: u32, _: u32| match number {
            0 => leaf(1, 0x756e_6547, 0x6c65_746e, 0x4965_6e69),
            0x8000_0000 => leaf(0x8000_0004, 0, 0, 0),
            _ => leaf(!0, !0, !0, !0),
        };
        assert_eq!(
            super::facts(&old, 0).offers,
            Offers::empty(),
            "no such leaves"
        );
    }

    #[test]
    fn barriers_are_made_where_guests_change_and_before_entries() {
        let cpu = CpuId::new(7);
        let of = || {
            counts(cpu)
                .map(|(_, count)| count)
                .collect::<std::vec::Vec<_>>()
        };
        ACTIVE.store(Barriers::all().bits(), Ordering::Relaxed);
        for (guest, switches) in [(1, 0), (1, 0), (2, 1), (2, 1), (1, 2)] {
            guest_comes(cpu, DomId::new(guest));
            assert_eq!(of()[..2], [switches; 2], "guest {guest}");
        }
        before_entry(cpu);
        assert_eq!(of(), [2, 2, 1, 1]);
        assert_eq!(names(active()), "IBPB, RSB fill, VERW, L1D flush");
        ACTIVE.store(0, Ordering::Relaxed);
        before_entry(cpu);
        guest_comes(cpu, DomId::new(2));
        assert_eq!(of(), [2, 2, 1, 1]);
        assert_eq!(names(active()), "none");
    }
}
