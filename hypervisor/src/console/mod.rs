//! Console: COM1 for people, port 0xE9 for tools.
