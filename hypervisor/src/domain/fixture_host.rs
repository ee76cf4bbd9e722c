//! A machine of one pCPU that records what domains ask of it.
use std::string::{String, ToString};
use std::sync::Mutex;
use std::vec::Vec;

use lull_core::units::{CpuId, DomId, TickRate, Ticks, VcpuId};

use super::fixture::MockCpu;
use super::{Machinery, VcpuHost};
use crate::virt::{GuestMemory, VirtCpu};

/// The pCPU of all tests.
pub const CPU: CpuId = CpuId::new(0);

/// What was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// `kick`.
    Kick(u32),
    /// `notify`.
    Notify(u32),
    /// `set_timer`.
    Timer(u32, Option<u64>),
    /// `online_vcpu`.
    Online(u32),
    /// `domain_ended`.
    Ended(u16),
    /// `guest_line`.
    Line(String),
    /// `figure`.
    Figure(String, String, String),
}

/// The machine.
#[derive(Default)]
pub struct MockHost {
    /// The time.
    pub now: Mutex<u64>,
    /// Requests in order.
    pub asked: Mutex<Vec<Asked>>,
    /// Kicks consumed.
    pub consumed: Mutex<Vec<u32>>,
}

impl MockHost {
    /// Moves the time.
    pub fn at(&self, now: u64) -> &Self {
        *self.now.lock().unwrap_or_else(|e| e.into_inner()) = now;
        self
    }

    /// Takes what was asked since the last time.
    pub fn take(&self) -> Vec<Asked> {
        core::mem::take(&mut *self.asked.lock().unwrap_or_else(|e| e.into_inner()))
    }

    fn ask(&self, what: Asked) {
        self.asked
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .push(what);
    }
}

impl VcpuHost for MockHost {
    fn now(&self) -> Ticks {
        Ticks::new(*self.now.lock().unwrap_or_else(|e| e.into_inner()))
    }
    fn tsc_rate(&self) -> TickRate {
        TickRate::from_hz(1_000_000_000).expect("not zero")
    }
    fn consume_kick(&self, v: VcpuId) {
        self.consumed
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .push(v.get());
    }
    fn kick(&self, v: VcpuId) {
        self.ask(Asked::Kick(v.get()));
    }
    fn notify(&self, v: VcpuId) -> bool {
        self.ask(Asked::Notify(v.get()));
        true
    }
    fn set_timer(&self, v: VcpuId, deadline: Option<Ticks>) {
        self.ask(Asked::Timer(v.get(), deadline.map(Ticks::get)));
    }
    fn deadline(&self) -> Option<Ticks> {
        None
    }
    fn online_vcpu(&self, v: VcpuId) {
        self.ask(Asked::Online(v.get()));
    }
    fn domain_ended(&self, domain: DomId) {
        self.ask(Asked::Ended(domain.get()));
    }
    fn guest_line(&self, _: DomId, line: &str) {
        self.ask(Asked::Line(line.to_string()));
    }
    fn figure(&self, _: DomId, name: &str, value: &str, unit: &str) {
        self.ask(Asked::Figure(
            name.to_string(),
            value.to_string(),
            unit.to_string(),
        ));
    }
}

/// Makes scripted vCPUs and remembers them.
#[derive(Default)]
pub struct MockMachinery {
    /// What was made.
    pub cpus: Vec<MockCpu>,
    /// Refuse memory.
    pub full: bool,
    /// Memory given back.
    pub released: usize,
}

impl Machinery for MockMachinery {
    fn memory(&mut self, bytes: u64) -> Result<GuestMemory, String> {
        if self.full {
            return Err("0 KiB are free".to_string());
        }
        let memory = GuestMemory::leaked(bytes);
        memory.fill(0, bytes, 0xee).expect("in range");
        Ok(memory)
    }
    fn vcpus(&mut self, _: &GuestMemory, count: u32) -> Vec<Box<dyn VirtCpu>> {
        (0..count)
            .map(|_| {
                let cpu = MockCpu::new();
                self.cpus.push(cpu.clone());
                Box::new(cpu) as Box<dyn VirtCpu>
            })
            .collect()
    }
    fn release(&mut self, _: GuestMemory) {
        self.released += 1;
    }
}
