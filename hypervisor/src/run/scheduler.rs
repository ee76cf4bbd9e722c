//! Makes the scheduler that was asked for, for the CPUs as they are.

use alloc::vec::Vec;

use lull_core::guests_txt::MAX_GUESTS;
use lull_core::options::Options;
use lull_core::sched::arinc653::{Arinc653, MinorFrame};
use lull_core::sched::rtds::Admission;
use lull_core::sched::{AnyScheduler, Scheduler, Setup, Topology};
use lull_core::units::CpuId;
use raw_cpuid::{CpuIdReader, CpuIdReaderNative};

use super::start::Running;
use crate::console::records::Where;
use crate::init::tell;
use crate::{apic, time};

/// The scheduler for CPUs 0 to `cpus - 1` and so many vCPUs. The parser has refused names of which there is none.
pub fn make(options: &Options, cpus: usize, units: usize) -> AnyScheduler {
    let setup = Setup {
        topology: topology(cpus),
        units,
        domains: MAX_GUESTS + 1,
        rate: time::rate(),
        credit2: options.credit2,
    };
    let asked = options.sched.as_deref();
    let sched = AnyScheduler::by_name(asked.unwrap_or_default(), setup);
    log::info!("scheduler: {}", sched.name());
    sched
}

/// What only some schedulers need, once they know all vCPUs.
pub fn complete(running: &Running) {
    match running.machine.sched() {
        AnyScheduler::Rtds(rtds) => {
            if let Admission::Tardy {
                reserved,
                guaranteed,
            } = rtds.admission()
            {
                log::warn!(
                    "rtds: budgets of {} % of a CPU in all, guaranteed up to {} %: deadlines may be missed; key r counts them",
                    reserved / 10_000,
                    guaranteed / 10_000
                );
            }
        }
        AnyScheduler::Arinc653(arinc653) => set_table(running, arinc653),
        _ => {}
    }
}

fn set_table(running: &Running, arinc653: &Arinc653) {
    let Some(table) = &running.options.arinc653 else {
        return;
    };
    let mut frames = Vec::new();
    for frame in &table.frames {
        let domain = running
            .domains
            .iter()
            .find(|domain| domain.config().name == frame.guest);
        let vcpu = domain.and_then(|domain| domain.vcpus().get(frame.vcpu));
        let Some(vcpu) = vcpu else {
            let whose = format_args!("arinc653: {}.{}", frame.guest, frame.vcpu);
            tell(
                Where::Cmdline,
                whose,
                "no such vCPU",
                "a vCPU of a guest that runs",
            );
            return;
        };
        frames.push(MinorFrame {
            unit: vcpu.id(),
            length: time::rate().ticks(frame.length.to_nanos()),
        });
    }
    let major = time::rate().ticks(table.major.to_nanos());
    // Nothing runs yet: each CPU looks by itself.
    if let Err(why) = arinc653.set_table(&frames, major, time::now()) {
        tell(Where::Cmdline, "arinc653", why, "frames that fit");
    }
}

/// Where the CPUs are, as CPUID of the boot CPU and their APIC ids say.
fn topology(cpus: usize) -> Topology {
    let ids: Vec<Option<u32>> = (0..cpus)
        .map(|cpu| apic::ipi::apic_id(CpuId::new(cpu as u32)))
        .collect();
    let read = |leaf, sub| {
        let said = CpuIdReaderNative.cpuid2(leaf, sub);
        [said.eax, said.ebx, said.ecx, said.edx]
    };
    Topology::from_cpuid(read, &ids)
}
