//! What sandboxes and snapshots may use, of the host and of what their owner has; and what they do use.

pub(crate) mod admission;
pub(crate) mod cgroup;
pub(crate) mod owner;
pub(crate) mod quota;
pub(crate) mod room;
pub(crate) mod usage;
pub(crate) mod writer;
