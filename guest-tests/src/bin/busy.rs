//! Never halts: counts how much work it gets done in a given time.
//!
//! A unit of work is 1000 steps of a linear congruential generator, the same on every CPU and host, so guests that share a CPU
//! show their shares by their units. Time goes by the TSC, in windows; the work of each window is counted for itself.
//!
//! The loop has no PAUSE by default: it must not offer a hypervisor a moment to take the CPU away. With `pause=1` it does one
//! PAUSE a unit. Every vCPU works; none halts before the end.
//!
//! Options: `for-ms=2000`, `window-us=10000`, `pause=0`.
//!
//! Figures: `elapsed_ticks`, `work_units` (all vCPUs), `windows`, `window_units_{min,mean,max}`, `longest_unit` (ticks: how long
//! the CPU was away at most); all but the second are vCPU 0's.
#![no_std]
#![no_main]

use core::hint::black_box;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use guest_tests::percpu::CpuIndex;
use guest_tests::stats::Summary;
use guest_tests::units::Ticks;
use guest_tests::{Machine, check, cpu, figure, smp, timer, trap, tsc};

guest_tests::guest_test! {
    name: "busy",
    summary: "never halts and counts the work it gets done",
    cmdline: "for-ms=2000",
    vcpus: 1,
    memory_mib: 16,
    end: Port,
    main: main,
    ap: helper,
    interrupt: trap::no_interrupts,
}

static DURATION: AtomicU64 = AtomicU64::new(0);
static PAUSE: AtomicU32 = AtomicU32::new(0);
static OTHERS_DONE: AtomicU32 = AtomicU32::new(0);
static OTHERS_UNITS: AtomicU64 = AtomicU64::new(0);

/// One unit of work.
fn unit(seed: u64) -> u64 {
    (0..1000).fold(seed, |x, _| {
        black_box(
            x.wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407),
        )
    })
}

/// What `work` found.
struct Record {
    units: u64,
    elapsed: Ticks,
    windows: Summary,
    longest: u64,
}

/// Works until `duration` is over.
fn work(duration: Ticks, window: Ticks) -> Record {
    let pause = PAUSE.load(Ordering::Relaxed) != 0;
    let begin = cpu::now();
    let mut record = Record {
        units: 0,
        elapsed: Ticks(0),
        windows: Summary::new(),
        longest: 0,
    };
    let (mut seed, mut in_window, mut window_end, mut stamp) = (1, 0, begin.after(window), begin);
    while record.elapsed < duration {
        seed = unit(seed);
        if pause {
            cpu::pause();
        }
        let now = cpu::now();
        record.longest = record.longest.max(now.since(stamp).0);
        stamp = now;
        record.units += 1;
        in_window += 1;
        // A CPU that was away for longer than a window gets one record for all of it: work that was not done is not a window.
        if now >= window_end {
            record.windows.add(in_window);
            in_window = 0;
            window_end = now.after(window);
        }
        record.elapsed = now.since(begin);
    }
    black_box(seed);
    record
}

fn helper(own: CpuIndex) {
    let _ = own;
    let duration = Ticks(DURATION.load(Ordering::Acquire));
    let record = work(duration, duration);
    OTHERS_UNITS.fetch_add(record.units, Ordering::SeqCst);
    OTHERS_DONE.fetch_add(1, Ordering::SeqCst);
}

fn main(machine: &Machine<'_>) {
    let options = &machine.options;
    let millis = options.number("for-ms", 2000, 1..=10_000_000);
    let window = tsc::rate().micros(options.number("window-us", 10_000, 10..=10_000_000));
    PAUSE.store(u32::from(options.flag("pause")), Ordering::Relaxed);
    options.report_unknown();
    let duration = tsc::rate().millis(millis);
    DURATION.store(duration.0, Ordering::Release);
    smp::start();

    let record = work(duration, window);
    let others = smp::count() - 1;
    timer::spin_until(10 * millis + 20_000, "the other vCPUs done", || {
        OTHERS_DONE.load(Ordering::SeqCst) == others
    });
    figure!("elapsed_ticks", record.elapsed, "ticks");
    figure!(
        "work_units",
        record.units + OTHERS_UNITS.load(Ordering::SeqCst),
        "units"
    );
    figure!("windows", record.windows.count(), "windows");
    figure!("window_units_min", record.windows.min(), "units");
    figure!("window_units_mean", record.windows.mean(), "units");
    figure!("window_units_max", record.windows.max(), "units");
    figure!("longest_unit", record.longest, "ticks");
    check!(
        record.elapsed >= duration,
        "worked for {} ticks of {}",
        record.elapsed,
        duration
    );
    check!(record.units > 0, "no work done");
}
