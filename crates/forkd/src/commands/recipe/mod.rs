//! `forkd recipe …`. Which recipes there are is in `recipes.rs`.

pub mod build;
pub mod ls;
pub mod show;
