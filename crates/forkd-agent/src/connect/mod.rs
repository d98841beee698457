//! The Connect protocol.
