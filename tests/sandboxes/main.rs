//! The engine's sandboxes and snapshots on this host's own /dev/kvm, with a guest that halts.

mod chains;
mod deadlines;
mod disks;
mod forged;
mod forged_streams;
mod lifecycle;
mod merge;
mod names;
mod recovery;
mod snapshots;
mod travel;
mod walls;
mod world;
