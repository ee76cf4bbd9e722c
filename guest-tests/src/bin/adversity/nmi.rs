//! NMIs while NMIs are blocked: the first waits for the IRET, further ones are one with it.

use super::checks::Checks;
use super::run::{self, Snippet};
use core::arch::asm;
use core::hint::black_box;
use guest_tests::lapic::{self, Message, Target};
use guest_tests::percpu::CpuIndex;

fn send() {
    lapic::send(Target::Physical(CpuIndex::BOOT), Message::Nmi);
}

/// Instructions without an exit, for as long as a real LAPIC could need.
fn wait() {
    for step in 0..100_000u32 {
        black_box(step);
    }
}

fn taken() -> usize {
    wait();
    run::event_count()
}

pub fn test(checks: &Checks) {
    run::forget();
    run::in_nmi(None);
    send();
    checks.expect(format_args!("nmi.one"), word(taken()), "1");

    // Two more while the first is handled: one of them is kept.
    run::forget();
    run::in_nmi(Some(|| {
        if run::event_count() == 1 {
            send();
            send();
            wait();
            if run::event_count() != 1 {
                guest_tests::note!("an NMI came while another was being handled");
            }
        }
    }));
    send();
    checks.expect(format_args!("nmi.two-while-blocked"), word(taken()), "2");

    // The IRET of an exception inside of the handler ends the blocking as any IRET does.
    run::forget();
    run::in_nmi(Some(|| {
        if run::event_count() == 1 {
            send();
            wait();
            let before = run::event_count();
            breakpoint();
            wait();
            // The #BP and the NMI that was waiting.
            if run::event_count() != before + 2 {
                guest_tests::note!(
                    "{} events by INT3 inside of an NMI handler",
                    run::event_count() - before
                );
            }
        }
    }));
    send();
    checks.expect(format_args!("nmi.iret-inside"), word(taken()), "3");
    run::in_nmi(None);

    // In the shadow of MOV SS, and right behind an instruction that is emulated.
    run::forget();
    send();
    let ran = Snippet::new(&[0x8c, 0xd0, 0x8e, 0xd0, 0x0f, 0xa2, 0x90]).run();
    checks.holds(
        format_args!("nmi.none-is-late"),
        run::event_count() == ran.events().len(),
    );
    run::forget();
}

#[expect(unsafe_code, reason = "one INT3")]
fn breakpoint() {
    // SAFETY: the handler of this kernel records it and returns.
    unsafe { asm!("int3") };
}

fn word(count: usize) -> &'static str {
    match count {
        0 => "0",
        1 => "1",
        2 => "2",
        3 => "3",
        _ => "more",
    }
}
