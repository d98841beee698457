//! `forkd e2b …`: what E2B's clients expect to be there.

pub mod env;
pub mod setup;
mod trust;
