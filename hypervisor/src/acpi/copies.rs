//! The `acpi` crate, given copies: it trusts the lengths that tables claim, firmware does not deserve it.
//!
//! Every mapping is a zero-padded copy, so that whatever the crate reads behind a table are zeros. Copies are freed
//! when the crate unmaps them. What the crate would panic on is checked by [`super::tables`] before it sees it.
#![expect(unsafe_code, reason = "the crate asks for raw mappings")]
use super::physmem::PhysMem;
use acpi::{AcpiHandler, PhysicalMapping};
use alloc::boxed::Box;
use alloc::vec;
use core::ptr::NonNull;

/// Every copy has at least this much room behind its end: more than the largest table struct of the crate (FADT).
const PADDING: usize = 512;

/// Hands copies of tables to the crate.
pub(super) struct Copies<'m, M>(pub(super) &'m M);

impl<M> Clone for Copies<'_, M> {
    fn clone(&self) -> Self {
        Self(self.0)
    }
}

const fn allocated(mapped: usize) -> usize {
    mapped + PADDING
}

impl<M: PhysMem> AcpiHandler for Copies<'_, M> {
    unsafe fn map_physical_region<T>(
        &self,
        address: usize,
        size: usize,
    ) -> PhysicalMapping<Self, T> {
        assert!(
            size_of::<T>() <= PADDING && align_of::<T>() == 1,
            "table structs of the crate are small and packed"
        );
        // A table that is too large or not there becomes zeros: its signature is then wrong, which the crate reports.
        let size = if size <= super::tables::MAX_TABLE {
            size
        } else {
            0
        };
        let mut copy = vec![0u8; allocated(size)].into_boxed_slice();
        let readable = copy
            .get_mut(..size)
            .is_some_and(|part| self.0.read(address as u64, part));
        if !readable {
            copy.fill(0);
        }
        let start = NonNull::from(Box::leak(copy)).cast::<T>();
        // SAFETY: the copy is at least PADDING bytes, so it holds a `T`; all table structs are plain bytes of
        // alignment 1, for which zeros are valid; it lives until `unmap_physical_region`.
        unsafe { PhysicalMapping::new(address, start, size, size, self.clone()) }
    }

    fn unmap_physical_region<T>(region: &PhysicalMapping<Self, T>) {
        let start = region.virtual_start().cast::<u8>();
        let slice = NonNull::slice_from_raw_parts(start, allocated(region.mapped_length()));
        // SAFETY: `map_physical_region` leaked exactly this box (the crate passes `virtual_start` and
        // `mapped_length` on unchanged), and the crate calls this once for each mapping, when it drops it.
        drop(unsafe { Box::from_raw(slice.as_ptr()) });
    }
}
