//! `forkd bench …`.

pub mod api;
