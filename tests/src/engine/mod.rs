//! The engine driven directly: VM processes over their control sockets, with a tiny guest that runs on any /dev/kvm.

pub mod firecracker;
pub mod guest;
pub mod linux;
pub mod process;
pub mod processes;
pub mod snapshot;
pub mod speed;
pub mod ticking;
pub mod tiny;
