//! Schedulers and run state of vCPUs.
