//! The ports by which an emulator is left.
//!
//! Set as soon as the command line is known; used by whoever ends the machine, a panicking CPU included.

use core::sync::atomic::{AtomicU32, Ordering};

use lull_core::options::ExitPort;

use crate::console::port::Ports;

/// 0 = none, [`BOCHS`], else a port.
static CHOSEN: AtomicU32 = AtomicU32::new(0);
/// Beyond all ports.
const BOCHS: u32 = 1 << 16;

/// Sets how to leave (option `exit-port`).
pub fn set(port: Option<ExitPort>) {
    let value = match port {
        None => 0,
        Some(ExitPort::Code(port)) => port.into(),
        Some(ExitPort::Bochs) => BOCHS,
    };
    CHOSEN.store(value, Ordering::Relaxed);
}

/// What a command line says about `exit-port`, before there is a heap for the real parser: the last word counts.
pub fn from_cmdline(cmdline: &str) -> Option<ExitPort> {
    let value = cmdline
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("exit-port="))
        .next_back()?;
    let port = match value.strip_prefix("0x") {
        _ if value == "bochs" => return Some(ExitPort::Bochs),
        Some(hex) => u16::from_str_radix(hex, 16),
        None => value.parse(),
    };
    port.ok().map(ExitPort::Code)
}

/// Leaves. Returns if no way was chosen, or the machine does not have it.
pub fn leave(ports: &impl Ports, code: u8) {
    match CHOSEN.load(Ordering::Relaxed) {
        BOCHS => leave_bochs(ports),
        port => {
            if let Ok(port @ 1..) = u16::try_from(port) {
                ports.write8(port, code);
            }
        }
    }
}

/// Bochs ends when its port has got this text (Bochs user manual, "unmapped"); its own status is always 1.
const BOCHS_SHUTDOWN: &[u8] = b"Shutdown";

fn leave_bochs(ports: &impl Ports) {
    for &byte in BOCHS_SHUTDOWN {
        ports.write8(ExitPort::Bochs.port(), byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::port::mock::MockPorts;
    use alloc::vec::Vec;

    #[test]
    fn the_last_word_of_the_command_line_counts() {
        for (line, expected) in [
            ("", None),
            ("exit-port=0xf4", Some(ExitPort::Code(0xF4))),
            (
                "exit-port=0xf4 for=1 exit-port=244",
                Some(ExitPort::Code(244)),
            ),
            ("exit-port=0xf4 exit-port=bochs", Some(ExitPort::Bochs)),
            ("exit-port=0x10000", None),
        ] {
            assert_eq!(from_cmdline(line), expected, "{line}");
        }
    }

    #[test]
    fn bochs_is_left_by_a_text() {
        let ports = MockPorts::default();
        leave_bochs(&ports);
        let text: Vec<u8> = ports
            .written
            .borrow()
            .iter()
            .map(|(port, byte)| if *port == 0x8900 { *byte as u8 } else { 0 })
            .collect();
        assert_eq!(text, b"Shutdown");
    }
}
