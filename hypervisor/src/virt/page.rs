//! Zeroed, aligned hardware structures on the heap, and their physical addresses.
#![expect(unsafe_code, reason = "zeroed boxes of plain hardware structures")]

use alloc::boxed::Box;

use zerocopy::FromZeros;

/// A zeroed `T` without a detour over the stack.
pub fn zeroed<T: FromZeros>() -> Box<T> {
    // SAFETY: `FromZeros` says that all zeros is a valid `T`.
    unsafe { Box::<T>::new_zeroed().assume_init() }
}

/// Physical address of a structure: the same as its virtual one, since the hypervisor's memory is identity-mapped.
pub fn physical<T>(object: &T) -> u64 {
    core::ptr::from_ref(object).expose_provenance() as u64
}

/// `N` bytes that begin on a page.
#[derive(FromZeros)]
#[repr(C, align(4096))]
pub struct Pages<const N: usize>(pub [u8; N]);
