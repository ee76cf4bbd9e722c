//! AMD-V.

use alloc::boxed::Box;
use alloc::string::String;

use lull_core::units::CpuId;

use super::{GuestMemory, VirtCpu};

/// AMD-V of this machine.
#[derive(Clone)]
pub enum Svm {}

/// Nested page tables of one domain.
#[derive(Clone)]
pub struct Npt;

impl Svm {
    pub(super) fn describe(&self) -> String {
        match *self {}
    }
    pub(super) fn enable_on_this_cpu(&self, _: CpuId) -> Result<(), String> {
        match *self {}
    }
    pub(super) fn new_vcpu(&self, _: &Npt) -> Box<dyn VirtCpu> {
        match *self {}
    }
    pub(super) fn new_npt(&self, _: &GuestMemory) -> Npt {
        match *self {}
    }
}
