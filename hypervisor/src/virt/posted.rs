//! Interrupts requested of a vCPU, in the form in which a processor takes them by itself (SDM vol. 3, "posted-interrupt processing").
//!
//! Whoever requests sets the vector's bit. Whoever runs the vCPU takes all bits before each entry; while the guest runs, a processor
//! that processes posted interrupts takes them without leaving it, each time that it is notified.
//!
//! A notification is sent by whoever finds none outstanding; others ride along. It is outstanding until somebody takes the bits:
//! clearing it comes first, taking them second, on the processor's side as on ours.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::vectors::AtomicVectorSet;

/// ON.
const OUTSTANDING: u64 = 1 << 0;

/// The posted-interrupt descriptor of one vCPU. Beyond the first 33 bytes all is software's.
///
/// The manual asks for 64 bytes of alignment; Bochs refuses the entry if it is not a page.
#[derive(Debug, Default)]
#[repr(C, align(4096))]
pub struct InterruptRequests {
    /// 0x00: requested vectors (PIR).
    vectors: AtomicVectorSet,
    /// 0x20: bit 0 is [`OUTSTANDING`].
    notification: AtomicU64,
    /// 0x28: notifications that were sent in the place of interrupts that end the guest.
    sent: AtomicU64,
    /// 0x30: whether a processor that runs the guest takes requests by itself.
    posting: AtomicBool,
}

const _: () = assert!(
    core::mem::offset_of!(InterruptRequests, vectors) == 0
        && core::mem::offset_of!(InterruptRequests, notification) == 0x20
);

impl InterruptRequests {
    /// None.
    pub const fn new() -> Self {
        Self {
            vectors: AtomicVectorSet::new(),
            notification: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            posting: AtomicBool::new(false),
        }
    }

    /// The vectors.
    pub fn vectors(&self) -> &AtomicVectorSet {
        &self.vectors
    }

    /// Owner: whether the processor takes requests by itself from the next entry on. To others a hint: a notification of a
    /// processor that does not ends the guest.
    pub fn set_posting(&self, on: bool) {
        self.posting.store(on, Ordering::SeqCst);
    }

    /// Whether to try a notification.
    pub fn is_posting(&self) -> bool {
        self.posting.load(Ordering::SeqCst)
    }

    /// Sender, behind the request. `true`: no notification is outstanding, so it falls to the caller to see to it that the vCPU, or the
    /// processor that runs its guest, looks.
    pub fn notify(&self) -> bool {
        self.notification.fetch_or(OUTSTANDING, Ordering::SeqCst) & OUTSTANDING == 0
    }

    /// Owner, before it looks at the vectors: whoever requests from here on notifies anew.
    pub fn take_notification(&self) {
        // One that this look misses is set by a sender who has not looked yet where the vCPU is.
        if self.notification.load(Ordering::SeqCst) & OUTSTANDING != 0 {
            self.notification.fetch_and(!OUTSTANDING, Ordering::SeqCst);
        }
    }

    /// Sender: the guest was not left for the request.
    pub fn count_sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// How often it was not.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sender_notifies_until_somebody_looks() {
        let requests = InterruptRequests::new();
        requests.vectors().insert(0x41);
        assert!(requests.notify());
        assert!(!requests.notify(), "rides along");
        requests.take_notification();
        assert_eq!(requests.vectors().highest(), Some(0x41));
        assert!(requests.notify());
    }

    #[test]
    fn it_is_laid_out_as_the_processor_reads_it() {
        let requests = InterruptRequests::new();
        for vector in [0x21, 0xff] {
            requests.vectors().insert(vector);
        }
        requests.notify();
        // By rows of 32 vectors, from the lowest bit on.
        let rows: Vec<u32> = (0..8).map(|row| requests.vectors().word(row)).collect();
        assert_eq!(rows, [0, 1 << 1, 0, 0, 0, 0, 0, 1 << 31]);
        assert_eq!(requests.notification.load(Ordering::SeqCst), 1);
    }
}
