//! The run loop: who runs, who blocks, what is delivered when, and that a guest hurts only itself.
use super::super::fixture::{ElfBuilder, Load, MockCpu, MockState};
use super::super::fixture_host::{Asked, CPU, MockHost, MockMachinery};
use super::*;
use crate::virt::{Gpr, Segment};
use lull_core::dispatch::RunOutcome::{Block, Events, Gone, Yield};
use lull_core::guests_txt::GuestConfig;
use lull_core::units::DomId;
use std::vec::Vec;

struct Guest {
    domain: Domain,
    cpus: Vec<MockCpu>,
    host: MockHost,
    word: WakeWord,
    gates: Vec<GateEvent>,
}

/// A guest of `vcpus` vCPUs in slots 10, 11, ...; its TSC is 1000 behind.
fn guest(vcpus: u32) -> Guest {
    let mut config = GuestConfig::new("test").expect("a name");
    config.vcpus = vcpus;
    let kernel = ElfBuilder::new()
        .load(Load::new(0x10_0000, b"x".to_vec(), 0x1000))
        .entry(0x10_0000)
        .build();
    let mut machinery = MockMachinery::default();
    let first = VcpuId::new(10);
    let domain = Domain::create(
        DomId::new(1),
        config,
        &kernel,
        first,
        &mut machinery,
        Ticks::new(1000),
    )
    .expect("good");
    let host = MockHost::default();
    host.at(1000);
    for cpu in &machinery.cpus {
        cpu.state().cpu.rflags = RFLAGS_IF | 2;
    }
    domain.start(&host);
    assert_eq!(host.take(), [Asked::Online(10)]);
    Guest {
        domain,
        cpus: machinery.cpus,
        host,
        word: WakeWord::new(),
        gates: Vec::new(),
    }
}

impl Guest {
    fn enter(&mut self, index: usize) -> RunOutcome {
        let gates = &mut self.gates;
        self.domain.enter(
            &self.domain.vcpus()[index],
            &self.host,
            CPU,
            &self.word,
            &mut |g| gates.push(g),
        )
    }

    fn cpu(&self, index: usize) -> std::sync::MutexGuard<'_, MockState> {
        self.cpus[index].state()
    }

    fn vcpu(&self, index: usize) -> &Vcpu {
        &self.domain.vcpus()[index]
    }

    fn taken(&self, index: usize) -> Vec<Injection> {
        core::mem::take(&mut self.cpu(index).taken)
    }

    /// The guest writes an MSR at its next entry.
    fn wrmsr(&self, index: usize, msr: u32, value: u64) {
        self.cpus[index].does(move |s| {
            s.gpr[Gpr::Rcx.index()] = msr.into();
            s.gpr[Gpr::Rax.index()] = 0xdead_0000_0000_0000 | value & 0xffff_ffff;
            s.gpr[Gpr::Rdx.index()] = value >> 32;
            Exit::Wrmsr
        });
    }

    /// x2APIC mode, software-enabled.
    fn x2apic(&mut self, index: usize) {
        self.wrmsr(
            index,
            0x1b,
            if index == 0 { 0xfee0_0d00 } else { 0xfee0_0c00 },
        );
        self.wrmsr(index, 0x80f, 0x1ff);
        assert_eq!(self.enter(index), Events);
        assert!(self.vcpu(index).lapic().identity().enabled);
    }

    /// The second vCPU is started, and in x2APIC mode like the first.
    fn two_up() -> Self {
        let mut g = guest(2);
        g.x2apic(0);
        g.wrmsr(0, 0x830, 1 << 32 | 0x4608);
        assert_eq!(g.enter(0), Events);
        assert_eq!(g.host.take(), [Asked::Online(11)]);
        g.x2apic(1);
        g
    }
}

use crate::virt::Exit;

#[test]
fn an_event_leads_back_to_the_dispatch_loop_with_guest_time_stamped() {
    let mut g = guest(1);
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.gates, [GateEvent::Entering, GateEvent::Left]);
    assert_eq!(*g.host.consumed.lock().unwrap(), [10]);
    assert!(g.cpu(0).loaded, "stays loaded until it is saved");
    g.domain.save(g.vcpu(0));
    g.domain.save(g.vcpu(0));
    assert!(!g.cpu(0).loaded);
    g.domain.load(g.vcpu(0), CPU);
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.cpu(0).entries, 2);
    assert_eq!(
        g.cpu(0).offset,
        0u64.wrapping_sub(1000),
        "the guest's TSC began at zero"
    );
}

#[test]
fn a_pending_event_keeps_the_gate_closed() {
    let mut g = guest(1);
    g.word.post_local(lull_core::wake::Events::NOTIFY);
    assert_eq!(g.enter(0), Events);
    assert_eq!((g.cpu(0).entries, g.gates.len()), (0, 0));
}

#[test]
fn hlt_blocks_and_only_something_deliverable_wakes() {
    let mut g = guest(1);
    g.x2apic(0);
    g.cpus[0].exits(Exit::Hlt);
    assert_eq!(g.enter(0), Block);
    assert_eq!(
        (g.vcpu(0).activity(), g.cpu(0).cpu.rip),
        (Activity::Halted, 0x100)
    );
    let entries = g.cpu(0).entries;
    assert_eq!(g.enter(0), Block, "a kick without a reason");
    assert_eq!(g.cpu(0).entries, entries, "no instruction was executed");
    g.vcpu(0).lapic().irr().insert(0x41);
    assert_eq!(g.enter(0), Events);
    assert_eq!(
        (g.taken(0), g.vcpu(0).activity()),
        (std::vec![Injection::Interrupt(0x41)], Activity::Active)
    );
    assert_eq!(g.vcpu(0).lapic().irr().highest(), None);
}

#[test]
fn hlt_with_an_interrupt_pending_goes_on_at_once() {
    let mut g = guest(1);
    g.x2apic(0);
    let shared = g.vcpu(0).shared.clone();
    g.cpus[0].does(move |s| {
        s.shadow = true; // sti; hlt
        shared.irr().insert(0x55);
        Exit::Hlt
    });
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.taken(0), [Injection::Interrupt(0x55)]);
}

/// A guest at RIP 2 of `sti; hlt; nop`, which a physical interrupt has just left in the shadow of the STI.
fn between_sti_and_hlt() -> Guest {
    let mut g = guest(1);
    g.x2apic(0);
    let memory = g.domain.memory.lock().clone().expect("alive");
    memory.write(1, &[0xfb, 0xf4, 0x90]).expect("in range");
    g.cpus[0].does(|s| {
        (s.cpu.rip, s.shadow) = (2, true);
        Exit::Event
    });
    assert_eq!(g.enter(0), Events);
    g
}

#[test]
fn an_interrupt_between_sti_and_hlt_ends_the_hlt() {
    let mut g = between_sti_and_hlt();
    // The next entry is left at once; this machine has forgotten the shadow.
    g.cpus[0].does(|s| {
        s.shadow = false;
        Exit::Event
    });
    assert_eq!(g.enter(0), Events);
    assert_eq!(
        g.cpu(0).cpu.rip,
        2,
        "nothing to deliver: HLT is the guest's to execute"
    );
    g.vcpu(0).lapic().irr().insert(0x41);
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.taken(0), [Injection::Interrupt(0x41)]);
    assert_eq!(g.cpu(0).cpu.rip, 3, "the handler returns behind the HLT");
}

#[test]
fn an_interrupt_before_a_hlt_without_a_shadow_comes_before_it() {
    let mut g = between_sti_and_hlt();
    g.cpus[0].does(|s| {
        (s.cpu.rip, s.shadow) = (3, false);
        Exit::Event
    });
    assert_eq!(g.enter(0), Events);
    g.cpus[0].does(|s| {
        s.cpu.rip = 2;
        Exit::Event
    });
    assert_eq!(g.enter(0), Events);
    g.vcpu(0).lapic().irr().insert(0x41);
    assert_eq!(g.enter(0), Events);
    assert_eq!(
        (g.taken(0).len(), g.vcpu(0).exits().get(ExitKind::Hlt)),
        (1, 0)
    );
    assert_eq!(g.cpu(0).cpu.rip, 2, "it came to the HLT by another way");
}

#[test]
fn a_window_that_opens_between_sti_and_hlt_ends_the_hlt() {
    let mut g = guest(1);
    g.x2apic(0);
    let memory = g.domain.memory.lock().clone().expect("alive");
    memory.write(1, &[0xfb, 0xf4, 0x90]).expect("in range");
    g.cpu(0).cpu.rflags = 2;
    g.vcpu(0).lapic().irr().insert(0x41);
    g.cpus[0].does(|s| {
        assert_eq!(s.window, Some(16));
        (s.cpu.rip, s.cpu.rflags) = (2, RFLAGS_IF | 2);
        Exit::InterruptWindow
    });
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.taken(0), [Injection::Interrupt(0x41)]);
    assert_eq!(g.cpu(0).cpu.rip, 3, "the handler returns behind the HLT");
}

#[test]
fn the_shadow_of_another_instruction_is_waited_for() {
    let mut g = between_sti_and_hlt();
    let memory = g.domain.memory.lock().clone().expect("alive");
    memory.write(2, &[0x90]).expect("in range");
    g.vcpu(0).lapic().irr().insert(0x41);
    g.cpus[0].does(|s| {
        assert_eq!((s.cpu.rip, s.window, s.taken.len()), (2, Some(16), 0));
        s.shadow = false;
        Exit::InterruptWindow
    });
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.taken(0), [Injection::Interrupt(0x41)]);
}

#[test]
fn an_interrupt_that_cannot_be_taken_waits_for_its_window() {
    let mut g = guest(1);
    g.x2apic(0);
    g.cpu(0).cpu.rflags = 2;
    g.vcpu(0).lapic().irr().insert(0x41);
    g.cpus[0].exits(Exit::Event).does(|s| {
        assert_eq!((s.window, s.taken.len()), (Some(16), 0));
        s.cpu.rflags |= RFLAGS_IF;
        Exit::InterruptWindow
    });
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.taken(0), [Injection::Interrupt(0x41)]);
    assert_eq!(g.cpu(0).window, None, "nothing more to wait for");
}

#[test]
fn the_task_priority_holds_an_interrupt_back_until_cr8_goes_down() {
    let mut g = guest(1);
    g.x2apic(0);
    g.cpus[0].does(|s| {
        s.cr8 = 5;
        Exit::Event
    });
    assert_eq!(g.enter(0), Events);
    g.vcpu(0).lapic().irr().insert(0x51);
    g.cpus[0].does(|s| {
        assert_eq!((s.window, s.taken.len()), (Some(5), 0));
        s.cr8 = 4;
        Exit::InterruptWindow
    });
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.taken(0), [Injection::Interrupt(0x51)]);
    g.wrmsr(0, 0x808, 0x70);
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.cpu(0).cr8, 7, "a TPR write shows in CR8");
}

#[test]
fn a_window_that_finds_the_task_priority_raised_is_followed_by_one_of_the_right_class() {
    let mut g = guest(1);
    g.x2apic(0);
    g.cpu(0).cpu.rflags = 2;
    g.vcpu(0).lapic().irr().insert(0x61);
    g.cpus[0]
        .does(|s| {
            assert_eq!(s.window, Some(16));
            s.cr8 = 6;
            s.cpu.rflags |= RFLAGS_IF;
            Exit::InterruptWindow
        })
        .does(|s| {
            assert_eq!(s.window, Some(6), "one lower would be too late");
            s.cr8 = 5;
            Exit::InterruptWindow
        });
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.taken(0), [Injection::Interrupt(0x61)]);
}

#[test]
fn an_intercepted_write_of_cr8_lets_interrupts_through() {
    let mut g = guest(1);
    g.x2apic(0);
    let memory = g.domain.memory.lock().clone().expect("alive");
    // mov cr8,rbx ; mov cr8,r9
    memory
        .write(0, &[0x44, 0x0f, 0x22, 0xc3, 0x45, 0x0f, 0x22, 0xc1])
        .expect("in range");
    g.cpu(0).cr8 = 6;
    g.vcpu(0).lapic().irr().insert(0x61);
    g.wrmsr(0, 0x808, 0x60);
    g.cpus[0]
        .does(|s| {
            (s.cpu.rip, s.gpr[3]) = (0, 5);
            Exit::Cr8Write
        })
        .does(|s| {
            assert_eq!(
                (s.cr8, s.cpu.rip, s.taken.as_slice()),
                (5, 4, &[Injection::Interrupt(0x61)][..])
            );
            s.gpr[9] = 16;
            Exit::Cr8Write
        });
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.taken(0), [Injection::Interrupt(0x61), Injection::GP0]);
    assert_eq!(g.cpu(0).cr8, 5);
}

#[test]
fn arithmetic_on_the_apic_page_sets_the_flags() {
    let mut g = guest(1);
    let memory = g.domain.memory.lock().clone().expect("alive");
    // or [rdi],100h
    memory
        .write(0, &[0x81, 0x0f, 0, 1, 0, 0])
        .expect("in range");
    g.cpu(0).cpu.rflags = RFLAGS_IF | 2 | 1 | 1 << 6;
    g.cpus[0].exits(Exit::NestedFault {
        gpa: 0xfee0_00f0,
        write: true,
        fetch: false,
        present: false,
        page_walk: false,
    });
    assert_eq!(g.enter(0), Events);
    assert!(g.vcpu(0).lapic().identity().enabled);
    assert_eq!(
        g.cpu(0).cpu.rflags,
        RFLAGS_IF | 2 | 1 << 2,
        "parity of ffh; carry and zero are gone"
    );
}

#[test]
fn a_second_interrupt_of_a_higher_class_gets_a_window_behind_the_first() {
    let mut g = guest(1);
    g.x2apic(0);
    g.vcpu(0).lapic().irr().insert(0x41);
    let shared = g.vcpu(0).shared.clone();
    g.cpus[0].does(move |_| {
        shared.irr().insert(0x61);
        Exit::Handled
    });
    assert_eq!(g.enter(0), Events);
    assert_eq!(
        g.taken(0),
        [Injection::Interrupt(0x41), Injection::Interrupt(0x61)]
    );
}

#[test]
fn the_timer_is_armed_before_the_guest_goes_on() {
    let mut g = guest(1);
    g.x2apic(0);
    g.wrmsr(0, 0x832, 0x4_0040);
    g.wrmsr(0, 0x6e0, 500);
    assert_eq!(
        g.enter(0),
        Events,
        "the dispatch loop has to arm the physical timer"
    );
    let entries = g.cpu(0).entries;
    assert_eq!(g.host.take(), [Asked::Timer(10, Some(1500))]);
    g.cpus[0].exits(Exit::Hlt);
    assert_eq!(g.enter(0), Block);
    assert_eq!(
        (g.cpu(0).entries, g.host.take()),
        (entries + 1, std::vec![]),
        "armed already"
    );
    g.host.at(1500);
    g.domain.timer_expired(g.vcpu(0), &g.host);
    assert_eq!(g.host.take(), [Asked::Kick(10)]);
    assert_eq!(g.enter(0), Events);
    assert_eq!(
        (g.taken(0), g.host.take()),
        (std::vec![Injection::Interrupt(0x40)], std::vec![])
    );
}

#[test]
fn a_timer_that_comes_early_is_armed_again() {
    let mut g = guest(1);
    g.x2apic(0);
    g.wrmsr(0, 0x832, 0x4_0040);
    g.wrmsr(0, 0x6e0, 500);
    assert_eq!(g.enter(0), Events);
    g.host.take();
    g.host.at(1499);
    g.domain.timer_expired(g.vcpu(0), &g.host);
    assert_eq!(g.enter(0), Events);
    assert_eq!(
        g.host.take(),
        [Asked::Kick(10), Asked::Timer(10, Some(1500))]
    );
}

#[test]
fn ipis_kick_the_others_and_not_oneself() {
    let mut g = Guest::two_up();
    g.cpu(1).cpu.rflags |= RFLAGS_IF;
    g.wrmsr(0, 0x830, 2 << 18 | 0x71);
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.host.take(), [Asked::Kick(11)]);
    assert_eq!(g.taken(0), [Injection::Interrupt(0x71)]);
    assert_eq!(g.enter(1), Events);
    assert_eq!(g.taken(1), [Injection::Interrupt(0x71)]);
}

#[test]
fn startup_makes_a_vcpu_known_once_and_init_sends_it_back() {
    let mut g = Guest::two_up();
    assert_eq!(
        g.cpu(1).resets,
        [StartState::WaitForSipi, StartState::Sipi { vector: 8 }]
    );
    g.wrmsr(0, 0x830, 1 << 32 | 0x4609);
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.host.take(), [Asked::Kick(11)], "known already");
    assert_eq!(g.enter(1), Events);
    assert_eq!(
        g.cpu(1).resets.len(),
        2,
        "a start-up to a running vCPU is ignored"
    );
    g.wrmsr(0, 0x830, 1 << 32 | 0x4500);
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.enter(1), Block);
    assert_eq!(
        (g.vcpu(1).activity(), g.cpu(1).resets.len()),
        (Activity::WaitForSipi, 3)
    );
    g.wrmsr(0, 0x830, 1 << 32 | 0x460a);
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.host.take(), [Asked::Kick(11), Asked::Kick(11)]);
    assert_eq!(g.enter(1), Events);
    assert_eq!(
        g.cpu(1).resets.last(),
        Some(&StartState::Sipi { vector: 0xa })
    );
    assert!(
        g.vcpu(1).lapic().identity().mode == super::super::vlapic::Mode::X2Apic,
        "INIT keeps the mode"
    );
}

#[test]
fn an_nmi_wakes_a_vcpu_that_has_interrupts_off() {
    let mut g = Guest::two_up();
    g.cpu(1).cpu.rflags = 2;
    g.cpus[1].exits(Exit::Hlt);
    assert_eq!(g.enter(1), Block, "the other one can still wake it");
    assert_eq!(g.vcpu(1).activity(), Activity::HaltedForGood);
    g.wrmsr(0, 0x830, 1 << 32 | 0x400);
    assert_eq!(g.enter(0), Events);
    g.cpu(0).cpu.rflags = 2;
    g.cpus[0].exits(Exit::Hlt);
    assert_eq!(g.enter(0), Block, "the NMI is on its way: not dead");
    assert_eq!(g.enter(1), Events);
    assert_eq!(g.taken(1), [Injection::Nmi]);
}

#[test]
fn a_guest_whose_vcpus_are_all_halted_for_good_is_dead() {
    let mut g = Guest::two_up();
    for index in [0, 1] {
        g.cpu(index).cpu.rflags = 2;
        g.cpus[index].exits(Exit::Hlt);
    }
    assert_eq!(g.enter(1), Block);
    assert_eq!(g.enter(0), Gone);
    let report = g.domain.end_report().expect("over");
    assert_eq!(
        report.reason,
        EndReason::crash("all its vCPUs are halted with interrupts off")
    );
    assert_eq!(g.host.take(), [Asked::Kick(11)]);
    assert_eq!(g.enter(1), Gone);
    assert_eq!(g.host.take(), [Asked::Ended(1)]);
    assert_eq!(g.enter(1), Gone, "again does no harm");
    assert_eq!(g.host.take(), []);
}

#[test]
fn pause_yields() {
    let mut g = guest(1);
    g.cpus[0].exits(Exit::Pause);
    assert_eq!(g.enter(0), Yield);
    assert_eq!(g.cpu(0).cpu.rip, 0x100);
    assert_eq!(g.vcpu(0).exits().get(ExitKind::Pause), 1);
}

#[test]
fn instructions_that_guests_do_not_have_are_undefined() {
    let mut g = guest(1);
    for exit in [
        Exit::Monitor,
        Exit::Mwait,
        Exit::Undefined,
        Exit::Hypercall,
        Exit::Rdpmc,
    ] {
        g.cpus[0].exits(exit);
    }
    g.cpus[0]
        .exits(Exit::Exception {
            vector: 17,
            error: 0,
        })
        .exits(Exit::Exception {
            vector: 1,
            error: 9,
        });
    assert_eq!(g.enter(0), Events);
    let ud = Injection::UD;
    let ac = Injection::Exception {
        vector: 17,
        error: Some(0),
    };
    let db = Injection::Exception {
        vector: 1,
        error: None,
    };
    assert_eq!(g.taken(0), [ud, ud, ud, ud, Injection::GP0, ac, db]);
    assert_eq!(g.cpu(0).cpu.rip, 0, "none was stepped over");
}

#[test]
fn cpuid_and_rdmsr_answer_in_registers() {
    let mut g = guest(1);
    g.cpus[0]
        .does(|s| {
            s.gpr[0] = 0xffff_ffff_4000_0000;
            Exit::Cpuid
        })
        .does(|s| {
            assert_eq!(
                [s.gpr[0], s.gpr[3]],
                [0x4000_0010, u32::from_le_bytes(*b"Lull").into()]
            );
            s.gpr[1] = 0x10;
            Exit::Rdmsr
        })
        .does(|s| {
            assert_eq!([s.gpr[0], s.gpr[2]], [7, 1]);
            s.gpr[1] = 0xe2;
            Exit::Rdmsr
        });
    g.host.at(1000 + (1 << 32) + 7);
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.taken(0), [Injection::GP0]);
}

#[test]
fn without_help_from_hardware_the_length_is_decoded_and_checked() {
    let mut g = guest(1);
    let memory = g.domain.memory.lock().clone().expect("alive");
    memory.write(0x2000, &[0x66, 0x0f, 0xa2]).expect("in range");
    {
        let mut s = g.cpu(0);
        s.next_rip = None;
        s.cpu.rip = 0x2000;
    }
    g.cpus[0].exits(Exit::Hlt).does(|s| {
        assert_eq!(s.cpu.rip, 0x2000, "there is no HLT: it runs again");
        Exit::Cpuid
    });
    assert_eq!(g.enter(0), Events);
    assert_eq!(
        (g.cpu(0).cpu.rip, g.vcpu(0).activity()),
        (0x2003, Activity::Active)
    );
}

#[test]
fn the_xapic_page_is_emulated() {
    let mut g = guest(2);
    let memory = g.domain.memory.lock().clone().expect("alive");
    // mov [rdi],eax ; mov eax,[rdi] ; movaps xmm0,[rdi]
    memory
        .write(0, &[0x89, 0x07, 0x8b, 0x07, 0x0f, 0x28, 0x07])
        .expect("in range");
    let fault = |gpa, write| Exit::NestedFault {
        gpa,
        write,
        fetch: false,
        present: false,
        page_walk: false,
    };
    g.cpus[0]
        .does(move |s| {
            s.gpr[0] = 0x1ff;
            fault(0xfee0_00f0, true)
        })
        .does(move |s| {
            assert_eq!(s.cpu.rip, 2);
            fault(0xfee0_0030, false)
        })
        .does(move |s| {
            assert_eq!((s.gpr[0], s.cpu.rip), (0x5_0014, 4));
            s.cpu.rip = 0;
            s.gpr[0] = 1 << 24;
            fault(0xfee0_0310, true)
        })
        .does(move |s| {
            s.cpu.rip = 0;
            s.gpr[0] = 0x4612;
            fault(0xfee0_0300, true)
        });
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.host.take(), [Asked::Online(11)]);
    assert_eq!(g.enter(1), Events);
    assert_eq!(
        g.cpu(1).resets.last(),
        Some(&StartState::Sipi { vector: 0x12 })
    );
    g.cpu(0).cpu.rip = 4;
    g.cpus[0].exits(fault(0xfee0_0030, false));
    assert_eq!(g.enter(0), Gone);
    let reason = g.domain.end_report().expect("over").reason.to_string();
    assert!(
        reason.starts_with("crashed: Movaps on a device's memory; expected MOV"),
        "{reason}"
    );
}

#[test]
fn memory_that_is_not_its_own_ends_the_guest_with_an_address() {
    let cases = [
        (
            true,
            false,
            false,
            "a write at guest-physical 0x7000000, outside its memory of 32768 KiB (rip 0x0)",
        ),
        (false, true, false, "an instruction fetch at"),
        (false, false, true, "a page table at"),
        (false, false, false, "a read at"),
    ];
    for (write, fetch, page_walk, text) in cases {
        let mut g = guest(1);
        g.cpus[0].exits(Exit::NestedFault {
            gpa: 0x700_0000,
            write,
            fetch,
            present: false,
            page_walk,
        });
        assert_eq!(g.enter(0), Gone);
        let reason = g.domain.end_report().expect("over").reason.to_string();
        assert!(reason.contains(text), "{reason}");
        assert_eq!(g.host.take(), [Asked::Ended(1)]);
    }
}

#[test]
fn ports_end_a_guest_with_its_output_complete() {
    let mut g = guest(1);
    for byte in *b"FIG n 4 us\nPASS" {
        g.cpus[0].does(move |s| {
            s.gpr[0] = byte.into();
            io(0xe9)
        });
    }
    g.cpus[0].does(|s| {
        s.gpr[0] = 0x10;
        io(0xf4)
    });
    assert_eq!(g.enter(0), Gone);
    let [figure, name, value, unit] = ["FIG n 4 us", "n", "4", "us"].map(std::string::String::from);
    let asked = [
        Asked::Line(figure),
        Asked::Figure(name, value, unit),
        Asked::Line("PASS".into()),
        Asked::Ended(1),
    ];
    assert_eq!(g.host.take(), asked);
    assert_eq!(g.domain.verdict(), super::super::devices::Verdict::Pass);
    assert_eq!(
        g.domain.end_report().expect("over").reason,
        EndReason::Port(0x10)
    );
}

fn io(port: u16) -> Exit {
    Exit::Io(crate::virt::IoExit {
        port,
        size: 1,
        write: true,
        string: false,
        rep: false,
        address_size: crate::virt::AddressSize::Bits64,
        segment: None,
        next_rip: Some(1),
    })
}

#[test]
fn triple_fault_and_a_refused_state_end_the_guest() {
    for (exit, word) in [
        (Exit::TripleFault, "triple-fault"),
        (
            Exit::Invalid {
                reason: "CR0".into(),
            },
            "killed",
        ),
    ] {
        let mut g = guest(1);
        g.cpus[0].exits(exit);
        assert_eq!(g.enter(0), Gone);
        assert_eq!(g.domain.end_report().expect("over").reason.word(), word);
        assert!(!g.cpu(0).loaded, "unloaded before it is dropped");
    }
}

#[test]
fn xcr0_takes_what_cpuid_offers() {
    let mut g = guest(1);
    let set = |g: &Guest, index: u64, value: u64| {
        g.cpus[0].does(move |s| {
            (s.gpr[1], s.gpr[0], s.gpr[2]) = (index, value & 0xffff_ffff, value >> 32);
            Exit::Xsetbv
        });
    };
    set(&g, 0, 3);
    set(&g, 0, 1 << 62);
    set(&g, 1, 3);
    assert_eq!(g.enter(0), Events);
    assert_eq!(g.taken(0), [Injection::GP0, Injection::GP0]);
    assert_eq!(g.cpu(0).xcr0, 3);
}

#[test]
fn the_segment_type_is_used_as_the_backend_gives_it() {
    // A 16-bit guest with a code segment base: HLT is found at base + IP.
    let mut g = guest(1);
    let memory = g.domain.memory.lock().clone().expect("alive");
    memory.write(0x8010, &[0xf4]).expect("in range");
    {
        let mut s = g.cpu(0);
        s.next_rip = None;
        s.cpu.efer = 0;
        s.cpu.cs = Segment {
            selector: 0x800,
            base: 0x8000,
            limit: 0xffff,
            ..Segment::default()
        };
        s.cpu.rip = 0x10;
    }
    g.cpus[0].exits(Exit::Hlt);
    assert_eq!(g.enter(0), Block);
    assert_eq!(g.cpu(0).cpu.rip, 0x11);
}

#[path = "fast_tests.rs"]
mod fast;
#[path = "lent_apic_tests.rs"]
mod lent_apic;
