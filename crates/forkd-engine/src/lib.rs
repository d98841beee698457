//! Every decision about sandboxes: which processes there are, what they are told, and what is in their guests.
//!
//! No HTTP server and no KVM: the daemon asks this crate, and this crate asks VM processes (`forkd-vmm`) and agents.

pub mod agent;
mod blocking;
pub mod boot;
pub mod bring_up;
pub mod cgroup;
pub mod control;
pub mod descriptors;
pub mod dial;
pub mod engine;
pub mod eval;
pub mod exec;
pub mod fault;
pub mod files;
pub mod guest;
pub mod host_environment;
pub mod identity;
pub mod ids;
mod kernel_panic;
pub mod library;
pub mod page_table;
pub mod places;
pub mod process;
pub mod project;
mod project_quota;
pub mod record;
pub mod shutdown;
pub mod small;
mod socket;
#[cfg(test)]
mod testing;
pub mod transfer;
pub mod trust;
pub mod users;
mod writers;
