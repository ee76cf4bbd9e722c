//! Key `v`: CPU vulnerabilities, what is done about them, and how often.

use lull_core::mitigation::Vulnerability;

use crate::dumpln;
use crate::run::Running;
use crate::virt::barriers;

/// Prints it.
pub fn print(running: &'static Running) {
    for v in Vulnerability::ALL {
        dumpln!("{}", barriers::verdict(v));
    }
    dumpln!("barriers: {}", barriers::names(barriers::active()));
    for &cpu in &running.online {
        let [ibpb, rsb, verw, flush] = {
            let mut counts = [0; 4];
            for (to, (_, count)) in counts.iter_mut().zip(barriers::counts(cpu)) {
                *to = count;
            }
            counts
        };
        dumpln!("{cpu}: IBPB {ibpb}, RSB fill {rsb}, VERW {verw}, L1D flush {flush}");
    }
}
