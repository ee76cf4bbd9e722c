//! Domains: guests from their file in the boot bundle to the last of their vCPUs.
//!
//! A guest can hurt only itself: whatever it does is an exit that ends in an exception for it, or in its end.
//!
//! Read in this order: [`bundle`] and [`elf`] (what comes in), [`loader`] and [`acpi_tables`] (what the guest
//! finds), [`vcpu`], [`exit`] and `fast` (how it runs), [`vlapic`], [`devices`], [`cpuid`], [`msr`], [`io`], [`mmio`]
//! (what it talks to), [`insn`] and [`walk`] (how its instructions are read).
//!
//! Life of a domain: [`Domain::create`] → [`Domain::start`] → [`Domain::enter`] from the dispatch loop, again and
//! again → it ends ([`EndReason`]) → every vCPU leaves → [`VcpuHost::domain_ended`] → [`Domain::reap`] gives the memory back.
//!
//! Lock order: vCPU, devices, life.

pub mod acpi_tables;
mod alu;
pub mod bundle;
pub mod cpuid;
pub mod devices;
pub mod elf;
pub mod exit;
mod fast;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod fixture_cpu;
#[cfg(test)]
mod fixture_host;
mod host;
pub mod insn;
pub mod io;
pub mod layout;
mod length;
mod life;
pub mod loader;
pub mod mmio;
pub mod msr;
mod stats;
mod table;
pub mod vcpu;
pub mod vlapic;
pub mod walk;

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};

use lull_core::dispatch::RunOutcome;
use lull_core::guests_txt::GuestConfig;
use lull_core::units::{CpuId, DomId, Ticks, VcpuId};
use lull_core::wake::WakeWord;
use spin::Mutex;

use crate::virt::{GateEvent, GuestMemory, VirtCpu};
use devices::{Devices, Report, Verdict};
use life::Life;
use loader::{LoadProblem, Plan};
use vlapic::Requests;

pub use host::VcpuHost;
pub use life::{EndReason, EndReport};
pub use stats::{ExitCounts, ExitKind};
pub use table::DomainTable;
pub use vcpu::{Activity, Vcpu};

/// How often an unknown MSR is logged, for each guest.
const MSR_LOG_MOST: u32 = 16;

/// What makes the hardware's part of a guest. The image has the real one; tests a mock.
pub trait Machinery {
    /// Memory of `bytes`, rounded up to whole large pages if need be. Its contents do not matter.
    ///
    /// # Errors
    /// A sentence: how much there is.
    fn memory(&mut self, bytes: u64) -> Result<GuestMemory, String>;
    /// `count` vCPUs over that memory.
    fn vcpus(&mut self, memory: &GuestMemory, count: u32) -> Vec<Box<dyn VirtCpu>>;
    /// The memory is not needed after all.
    fn release(&mut self, memory: GuestMemory);
}

/// Why a guest could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateProblem {
    /// Its kernel or its options.
    Load(LoadProblem),
    /// Not enough memory in the machine.
    Memory {
        /// Bytes asked for.
        wanted: u64,
        /// Why not.
        why: String,
    },
}

impl CreateProblem {
    /// What would have been right, in a few words.
    pub fn expected(&self) -> &'static str {
        match self {
            Self::Load(problem) => problem.expected(),
            Self::Memory { .. } => "a guest that fits the memory of the machine",
        }
    }
}

impl fmt::Display for CreateProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load(problem) => problem.fmt(f),
            Self::Memory { wanted, why } => {
                write!(f, "no {} KiB of memory: {why}", wanted / 1024)
            }
        }
    }
}

impl From<LoadProblem> for CreateProblem {
    fn from(problem: LoadProblem) -> Self {
        Self::Load(problem)
    }
}

/// A guest.
#[derive(Debug)]
pub struct Domain {
    id: DomId,
    config: GuestConfig,
    vcpus: Box<[Vcpu]>,
    memory: Mutex<Option<Arc<GuestMemory>>>,
    devices: Mutex<Devices>,
    verdict: Mutex<Verdict>,
    life: Life,
    turn: AtomicU32,
    unknown_msrs: AtomicU32,
}

impl Domain {
    /// Checks, allocates, loads. The vCPUs get slots `first`, `first + 1`, ...; none is started. The guest's TSC begins
    /// at zero.
    ///
    /// # Errors
    /// [`CreateProblem`]; nothing stays allocated then.
    pub fn create(
        id: DomId,
        config: GuestConfig,
        kernel: &[u8],
        first: VcpuId,
        machinery: &mut impl Machinery,
        now: Ticks,
    ) -> Result<Self, CreateProblem> {
        let plan = Plan::check(kernel, &config.cmdline, config.vcpus, config.mem.bytes())?;
        let memory = machinery
            .memory(plan.memory())
            .map_err(|why| CreateProblem::Memory {
                wanted: plan.memory(),
                why,
            })?;
        let loaded = memory
            .fill(0, memory.size(), 0)
            .map_err(LoadProblem::from)
            .and_then(|()| plan.load(&memory));
        let start = match loaded {
            Ok(start) => start,
            Err(problem) => {
                machinery.release(memory);
                return Err(problem.into());
            }
        };
        let virt = machinery.vcpus(&memory, plan.vcpus().into());
        let memory = Arc::new(memory);
        let tsc_offset = 0u64.wrapping_sub(now.get());
        let vcpus = (0u32..)
            .zip(virt)
            .map(|(index, virt)| {
                let id = VcpuId::new(first.get() + index);
                let start = (index == 0).then_some(start);
                Vcpu::new(id, index, virt, memory.clone(), start, tsc_offset)
            })
            .collect();
        Ok(Self {
            id,
            config,
            vcpus,
            memory: Mutex::new(Some(memory)),
            devices: Mutex::new(Devices::default()),
            verdict: Mutex::new(Verdict::None),
            life: Life::default(),
            turn: AtomicU32::new(0),
            unknown_msrs: AtomicU32::new(0),
        })
    }

    /// Its number.
    pub fn id(&self) -> DomId {
        self.id
    }

    /// As it was asked for.
    pub fn config(&self) -> &GuestConfig {
        &self.config
    }

    /// Its vCPUs, by index.
    pub fn vcpus(&self) -> &[Vcpu] {
        &self.vcpus
    }

    /// How many vCPUs it has.
    pub fn vcpu_count(&self) -> u32 {
        // At most 255.
        u32::try_from(self.vcpus.len()).unwrap_or(u32::MAX)
    }

    /// What it has said of its success.
    pub fn verdict(&self) -> Verdict {
        self.verdict.lock().clone()
    }

    /// How it ended, once it has.
    pub fn end_report(&self) -> Option<EndReport> {
        self.life.report()
    }

    /// Whether it is over, or about to be.
    pub fn is_ending(&self) -> bool {
        self.life.is_ending()
    }

    /// Makes its first vCPU runnable. Once.
    pub fn start(&self, host: &impl VcpuHost) {
        if let Some(boot) = self.vcpus.first() {
            self.bring_online(boot, host);
        }
    }

    /// Runs one of its vCPUs on this pCPU until the dispatch loop is needed.
    ///
    /// Interrupts are off. `word` is the pCPU's own wake word, AWAKE; events stay in it. `on_gate` is called right
    /// before and right after the guest runs. Loads the vCPU if [`load`](Self::load) was not called. After [`RunOutcome::Gone`] the vCPU must not be entered again.
    pub fn enter(
        &self,
        vcpu: &Vcpu,
        host: &impl VcpuHost,
        cpu: CpuId,
        word: &WakeWord,
        on_gate: &mut dyn FnMut(GateEvent),
    ) -> RunOutcome {
        vcpu.enter(self, host, cpu, word, on_gate)
    }

    /// A vCPU is about to run on this pCPU: its registers go in.
    pub fn load(&self, vcpu: &Vcpu, cpu: CpuId) {
        vcpu.load(cpu);
    }

    /// A vCPU leaves the pCPU that it was loaded on: its registers are in memory when this returns.
    pub fn save(&self, vcpu: &Vcpu) {
        vcpu.save();
    }

    /// The deadline given to [`VcpuHost::set_timer`] has passed. From any pCPU.
    pub fn timer_expired(&self, vcpu: &Vcpu, host: &impl VcpuHost) {
        vcpu.lapic().request(Requests::TIMER);
        host.kick(vcpu.id());
    }

    /// Ends it from outside.
    pub fn kill(&self, reason: &str, host: &impl VcpuHost) {
        if self.life.end(EndReason::Killed(reason.to_string())) {
            self.kick_all(None, host);
        }
    }

    /// Gives the memory back, once all vCPUs have left (after [`VcpuHost::domain_ended`]). `None` before, and the
    /// second time.
    pub fn reap(&self) -> Option<GuestMemory> {
        if !self.life.all_left() {
            return None;
        }
        self.vcpus.iter().for_each(Vcpu::release);
        self.memory.lock().take().and_then(Arc::into_inner)
    }

    fn devices(&self) -> &Mutex<Devices> {
        &self.devices
    }

    fn turn(&self) -> &AtomicU32 {
        &self.turn
    }

    /// A vCPU becomes known to the scheduler, unless the guest is over.
    fn bring_online(&self, vcpu: &Vcpu, host: &impl VcpuHost) {
        if self.life.join(|| vcpu.lapic().set_online()) {
            host.online_vcpu(vcpu.id());
        }
    }

    /// `vcpu` found that the guest is over. The first reason counts.
    fn end(&self, vcpu: &Vcpu, reason: EndReason, host: &impl VcpuHost) {
        if self.life.end(reason) {
            for line in self.devices.lock().rest() {
                self.line(&line, host);
            }
            self.kick_all(Some(vcpu.id()), host);
        }
    }

    fn kick_all(&self, but: Option<VcpuId>, host: &impl VcpuHost) {
        for vcpu in self
            .vcpus
            .iter()
            .filter(|v| Some(v.id()) != but && v.lapic().is_online())
        {
            host.kick(vcpu.id());
        }
    }

    /// A vCPU has left for good.
    fn leave(&self, host: &impl VcpuHost) {
        if self.life.leave() {
            host.domain_ended(self.id);
        }
    }

    /// No vCPU can ever run again: each waits for a start-up or is halted with interrupts off, and nothing is on its
    /// way to any of them.
    fn is_dead(&self) -> bool {
        let wakeable = Requests::NMI | Requests::INIT | Requests::SIPI;
        self.vcpus.iter().all(|v| {
            matches!(
                v.activity(),
                Activity::WaitForSipi | Activity::HaltedForGood
            ) && !v.lapic().requested(wakeable)
        })
    }

    /// A line of output: shown, and understood if it is a report.
    fn line(&self, line: &str, host: &impl VcpuHost) {
        host.guest_line(self.id, line);
        if let Some(report) = devices::parse(line) {
            if let Report::Figure { name, value, unit } = report {
                host.figure(self.id, name, value, unit);
            }
            self.verdict.lock().note(report);
        }
    }

    fn note_unknown_msr(&self, how: &str, msr: u32) {
        let seen = self.unknown_msrs.fetch_add(1, Ordering::Relaxed);
        if seen < MSR_LOG_MOST {
            log::debug!("{}: {how} {msr:#x}: #GP", self.id);
        }
        if seen == MSR_LOG_MOST {
            log::debug!("{}: further unknown MSRs are not logged", self.id);
        }
    }
}

#[cfg(test)]
#[path = "domain_tests.rs"]
mod tests;
