//! What sandboxes and zygotes may use of the host: by default what their guests have, and what that costs the host beside it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use forkd_store::Tag;

use super::{Engine, EngineError, Shared};
use crate::cgroup::{Cgroups, IoQuota, Quota, is_of_running_build};
use crate::descriptors::Named;
use crate::ids::SandboxId;
use crate::record::{SandboxRecord, Shape};

/// What a VM costs beside its guest's memory: its process, its devices' buffers, page tables twice.
const OVERHEAD_BYTES: u64 = 64 << 20;
/// And one part of so many of the guest's memory.
const OVERHEAD_PART: u64 = 32;
/// Threads beside those of its CPUs, and clones that write a snapshot.
const OTHER_PIDS: u32 = 16;
const WEIGHT: u16 = 100;

/// What a sandbox may use. What is not said is as its snapshot has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WantedLimits {
    /// What it may write to its disk: at most what the snapshot's says.
    pub disk_bytes: Option<u64>,
    /// Of the host's memory, for what it does not share with its parent.
    pub memory_bytes: Option<u64>,
    pub cpu_millis: Option<u64>,
    pub cpu_weight: Option<u16>,
    pub io: IoQuota,
}

impl WantedLimits {
    /// Whether there is something that only a cgroup can keep.
    pub(super) fn need_cgroup(&self) -> bool {
        WantedLimits { disk_bytes: None, ..*self } != WantedLimits::default()
    }
}

/// What a VM has that nobody has said anything about.
pub fn default_quota(vcpus: u8, memory_bytes: u64) -> Quota {
    let whole = memory_bytes.saturating_add(memory_bytes / OVERHEAD_PART);
    Quota {
        memory_bytes: whole.saturating_add(OVERHEAD_BYTES),
        cpu_millis: u64::from(vcpus) * 1000,
        cpu_weight: WEIGHT,
        pids: u32::from(vcpus) + OTHER_PIDS,
        io: IoQuota::default(),
    }
}

/// What is set for a VM of this shape.
pub(super) fn quota(shape: &Shape, wanted: &WantedLimits) -> Quota {
    let default = default_quota(shape.vcpus, shape.memory_bytes);
    Quota {
        memory_bytes: wanted.memory_bytes.unwrap_or(default.memory_bytes),
        cpu_millis: wanted.cpu_millis.unwrap_or(default.cpu_millis),
        cpu_weight: wanted.cpu_weight.unwrap_or(default.cpu_weight),
        io: wanted.io,
        ..default
    }
}

pub(super) fn of_sandbox(id: &SandboxId) -> String {
    format!("sandbox-{id}")
}

pub(super) fn of_zygote(tag: &Tag) -> String {
    format!("zygote-{tag}")
}

impl Engine {
    /// Where others than sandboxes and snapshots can be limited, if anybody is.
    pub fn cgroups(&self) -> Option<Cgroups> {
        self.shared.cgroups.clone()
    }
}

impl Shared {
    /// Adds the cgroup that a sandbox begins in, and says whether there is one.
    pub(super) fn with_cgroup(
        &self,
        named: Named,
        record: &SandboxRecord,
    ) -> Result<(Named, bool), EngineError> {
        match (&self.cgroups, &record.quota) {
            (Some(cgroups), Some(quota)) => Ok(add(named, cgroups.make(&of_sandbox(&record.id), quota)?)),
            _ => Ok((named, false)),
        }
    }

    /// The same for the zygote of a branch.
    pub(super) fn with_zygote_cgroup(
        &self,
        named: Named,
        tag: &Tag,
        shape: &Shape,
    ) -> Result<(Named, bool), EngineError> {
        match &self.cgroups {
            Some(cgroups) => Ok(add(named, cgroups.make(&of_zygote(tag), &zygote_quota(shape))?)),
            None => Ok((named, false)),
        }
    }

    /// Moves a process that has no VM yet to the cgroup of a zygote.
    pub(super) fn enter_zygote_cgroup(&self, tag: &Tag, shape: &Shape, pid: i32) -> Result<(), EngineError> {
        if let Some(cgroups) = &self.cgroups {
            let entered = || {
                cgroups.make(&of_zygote(tag), &zygote_quota(shape))?;
                cgroups.enter(&of_zygote(tag), pid)
            };
            // The first may be removed after a zygote of the same name, just then.
            entered().or_else(|_| entered())?;
        }
        Ok(())
    }

    /// Removes the cgroup of a process that has ended or is about to.
    pub(super) async fn leave(&self, name: String) {
        if let Some(cgroups) = &self.cgroups {
            cgroups.remove(&name).await;
        }
    }

    /// The same, not waited for.
    pub(super) fn leave_later(self: &Arc<Self>, name: String) {
        if let (Some(_), Ok(runtime)) = (&self.cgroups, tokio::runtime::Handle::try_current()) {
            let shared = Arc::clone(self);
            runtime.spawn(async move { shared.leave(name).await });
        }
    }

    /// Removes the cgroups that nobody has. Returns how many.
    pub(super) fn sweep_cgroups(&self) -> usize {
        let is_used = |name: &str| match name.split_once('-') {
            Some(("sandbox", id)) => {
                id.parse().is_ok_and(|id| self.sandboxes.has(&id) || self.places.sandbox(&id).exists())
            }
            Some(("zygote", tag)) => {
                tag.parse().is_ok_and(|tag| self.snapshots.has(&tag) || self.places.zygote(&tag).exists())
            }
            Some(("build", _)) => is_of_running_build(name),
            _ => true,
        };
        self.cgroups.as_ref().map_or(0, |cgroups: &Cgroups| cgroups.sweep(is_used))
    }
}

/// A zygote is not slowed down: whoever waits for a fork would wait for it.
fn zygote_quota(shape: &Shape) -> Quota {
    quota(shape, &WantedLimits::default())
}

fn add(named: Named, cgroup: OwnedFd) -> (Named, bool) {
    (named.with(forkd_proto::control::Descriptor::Cgroup, cgroup), true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkd_proto::control::Devices;

    const MIB: u64 = 1 << 20;

    fn shape() -> Shape {
        Shape { vcpus: 2, memory_bytes: 512 * MIB, devices: Devices::default(), image: None }
    }

    #[test]
    fn a_sandbox_has_what_its_guest_has_and_what_that_costs() {
        let usual = quota(&shape(), &WantedLimits::default());
        let expected = Quota {
            memory_bytes: (512 + 16 + 64) * MIB,
            cpu_millis: 2000,
            cpu_weight: 100,
            pids: 18,
            io: IoQuota::default(),
        };
        assert_eq!(usual, expected);
        let wanted = WantedLimits {
            memory_bytes: Some(128 * MIB),
            cpu_millis: Some(500),
            cpu_weight: Some(10),
            ..WantedLimits::default()
        };
        let less = quota(&shape(), &wanted);
        assert_eq!((less.memory_bytes, less.cpu_millis, less.cpu_weight), (128 * MIB, 500, 10));
    }

    #[test]
    fn a_disk_needs_no_cgroup() {
        let disk = WantedLimits { disk_bytes: Some(1), ..WantedLimits::default() };
        assert!(!disk.need_cgroup());
        assert!(WantedLimits { cpu_weight: Some(1), ..disk }.need_cgroup());
    }
}
