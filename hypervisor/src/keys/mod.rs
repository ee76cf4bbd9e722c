//! Debug keys of the console.
