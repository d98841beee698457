//! Disks of VMs: their layers, who can write to them, how many there are and how large they may be.

pub(crate) mod known;
pub(crate) mod layers;
pub(crate) mod merge;
pub(crate) mod project_quota;
pub(crate) mod writers;
