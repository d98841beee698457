//! Every decision about sandboxes: which processes there are, what they are told, and what is in their guests.
//!
//! No HTTP server and no KVM: the daemon asks this crate, and this crate asks VM processes (`forkd-vmm`) and agents.

pub mod agent;
pub mod boot;
pub mod bring_up;
pub mod control;
pub mod exec;
pub mod guest;
pub mod layered;
pub mod process;
mod socket;
#[cfg(test)]
mod testing;
pub mod transfer;
