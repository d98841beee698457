//! A VM: KVM's part of it, its vCPU threads, and the state that outlives both.

pub mod bus;
pub mod counts;
pub mod cpu;
pub mod devices;
pub mod features;
pub mod hardware;
pub mod kick;
pub mod live;
pub mod long_mode;
pub mod mailbox;
pub mod notices;
pub mod prefault;
pub mod stack;
pub mod state;
pub mod thread;
pub mod vcpu;
