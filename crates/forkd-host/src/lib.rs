//! What this host has and can do: its tools, its KVM, its free disk space, and from that the way sandboxes can run.
//! Nothing here changes the host.

pub mod apt;
pub mod cgroup;
pub mod command;
pub mod disk;
pub mod doctor;
mod emulation;
pub mod home;
pub mod kvm;
pub mod memory;
pub mod tool;

pub use emulation::is_emulated;
