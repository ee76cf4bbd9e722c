//! A weighted fair runqueue per CPU with stealing.
