//! What a domain asks of the machine around it. The image implements it; tests have a mock.

use lull_core::units::{DomId, TickRate, Ticks, VcpuId};

/// The machine, as vCPUs see it. All calls come with interrupts off, on the pCPU that runs a vCPU of the domain
/// (or that starts the domain), and may come while that vCPU's own lock is held: an implementation must not call
/// back into the domain.
pub trait VcpuHost {
    /// The TSC.
    fn now(&self) -> Ticks;
    /// Its rate.
    fn tsc_rate(&self) -> TickRate;
    /// Takes the kick token of `v`, before its pending interrupts are looked at.
    fn consume_kick(&self, v: VcpuId);
    /// Something was set for `v` that it must look at before it sleeps or enters its guest again, wherever it is.
    fn kick(&self, v: VcpuId);
    /// [`kick`](Self::kick), for an interrupt that the processor takes by itself if it runs the guest of `v` and is notified. `true`: it
    /// was notified, and the guest is not left.
    fn notify(&self, v: VcpuId) -> bool {
        self.kick(v);
        false
    }
    /// The one timer of `v`: at `deadline` the host calls [`timer_expired`](super::Domain::timer_expired).
    fn set_timer(&self, v: VcpuId, deadline: Option<Ticks>);
    /// The earliest deadline of this pCPU: the guest must be left by then.
    fn deadline(&self) -> Option<Ticks>;
    /// `v` has become runnable for the first time.
    fn online_vcpu(&self, v: VcpuId);
    /// The last vCPU of `domain` has left: report its end and [`reap`](super::Domain::reap) it, later and not from
    /// inside this call.
    fn domain_ended(&self, domain: DomId);
    /// A line of the guest's output.
    fn guest_line(&self, domain: DomId, line: &str);
    /// A figure that the guest measured; `value` is a number.
    fn figure(&self, domain: DomId, name: &str, value: &str, unit: &str);
}
