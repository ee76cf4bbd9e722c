//! Memory: page frames, heap, page tables.
