//! `forkd e2b …`: what E2B's clients expect to be there.

pub mod env;
mod image;
pub mod setup;
mod trust;
