//! Interrupt vectors. The upper four bits are the priority class (Intel SDM vol. 3, 13.8.3).

/// First of the 16 vectors that the masked 8259s would use: a spurious interrupt of theirs must not look like an exception.
pub const PIC: u8 = 0x20;
/// Console input.
pub const CONSOLE: u8 = 0x40;
/// The timer that stands in for one-shots that stop.
pub const BROADCAST: u8 = 0xEE;
/// One-shot timer.
pub const TIMER: u8 = 0xEF;
/// "Look at your wake word": above the timer, so that a waker never waits behind it.
pub const EVENT_CHECK: u8 = 0xF1;
/// "Take what was posted for your guest": as urgent as the last one.
pub const POSTED: u8 = 0xF3;
/// Ends the halt in which application processors wait for the end of boot.
pub const RELEASE: u8 = 0xF2;
/// An interrupt that was gone before it could be delivered. Not ended by an EOI.
pub const SPURIOUS: u8 = 0xFF;
