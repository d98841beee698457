//! The engine on this host's own /dev/kvm, with the tiny guest.

mod crowd;
mod lifecycle;
