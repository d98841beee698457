//! The devices of a microVM. Each has plain saved state, is made anew from it, and is tested without KVM.

pub mod disk;
pub mod serial;
pub mod virtio;
