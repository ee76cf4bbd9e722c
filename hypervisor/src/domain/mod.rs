//! Domains: guests, their loader, firmware tables and devices.
