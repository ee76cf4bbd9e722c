//! All models.

mod calls;
mod nmi;
mod vcpu;
mod wakes;

use super::check::Check;

pub fn all() -> Vec<Check> {
    [wakes::all(), nmi::all(), calls::all(), vcpu::all()]
        .into_iter()
        .flatten()
        .collect()
}
