//! `forkd bench …`.

pub mod api;
mod chart;
pub mod demo;
mod round;
