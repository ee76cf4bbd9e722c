//! Hardware virtualization behind one trait.
