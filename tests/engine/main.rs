//! The engine on this host's own /dev/kvm, with the tiny guest.

mod consistency;
mod crowd;
mod disks;
mod events;
mod hostile;
mod jail;
mod kept;
mod lifecycle;
mod place;
mod prefault;
mod snapshots;
