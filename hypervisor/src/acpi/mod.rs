//! Firmware tables: what the machine says about itself.
