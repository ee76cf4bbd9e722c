//! The boot sequence, in order.
#![cfg(target_os = "none")]

use crate::panic::{EndCode, leave, set_exit_port};
use crate::{boot, console, cpu, mm, panic};

/// Where the boot CPU arrives from the entry code.
pub fn boot_cpu(start_info: u64) -> ! {
    cpu::init_boot_cpu();
    console::init();
    log::info!("hello {start_info:#x}");
    set_exit_port(Some(0xf4));
    let boot = match boot::read_start_info(start_info) {
        Ok(boot) => boot,
        Err(why) => panic::fatal_boot(format_args!("{why}")),
    };
    log::info!("cmdline {}", boot.cmdline);
    for m in &boot.memory { log::info!("{:?}", m); }
    if let Err(why) = mm::init(&boot, true) {
        panic::fatal_boot(format_args!("{why}"));
    }
    log::info!("mm: {}", mm::check_wx());
    leave(EndCode::Ok)
}
