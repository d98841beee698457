//! What sandboxes and zygotes may use of the host: by default what their guests have, and what that costs the host beside it.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use forkd_store::Tag;

use crate::engine::{Engine, Shared};
use crate::error::EngineError;
use crate::ids::SandboxId;
use crate::limits::cgroup::{Cgroups, IoQuota, Quota, is_of_running_build};
use crate::limits::writer::WRITER;
use crate::process::descriptors::Named;
use crate::record::{SandboxRecord, Shape, ZygoteRecord};
use crate::sandbox::{SandboxHandle, SandboxView};
use crate::snapshot::SnapshotStatus;

/// What a VM costs beside its guest's memory: its process, its devices' buffers, page tables twice.
const OVERHEAD_BYTES: u64 = 64 << 20;
/// And one part of so many of the guest's memory.
const OVERHEAD_PART: u64 = 32;
/// Threads beside those of its CPUs, and clones that write a snapshot.
const OTHER_PIDS: u32 = 16;
pub(crate) const WEIGHT: u16 = 100;

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
    pub(crate) fn need_cgroup(&self) -> bool {
        WantedLimits { disk_bytes: None, ..*self } != WantedLimits::default()
    }
}

/// The default limits of a VM.
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
pub(crate) fn quota(shape: &Shape, wanted: &WantedLimits) -> Quota {
    let default = default_quota(shape.vcpus, shape.memory_bytes);
    Quota {
        memory_bytes: wanted.memory_bytes.unwrap_or(default.memory_bytes),
        cpu_millis: wanted.cpu_millis.unwrap_or(default.cpu_millis),
        cpu_weight: wanted.cpu_weight.unwrap_or(default.cpu_weight),
        io: wanted.io,
        ..default
    }
}

/// The first cgroup of a sandbox.
fn first_of_sandbox(id: &SandboxId) -> String {
    format!("sandbox-{id}")
}

/// The cgroup of a sandbox.
pub(crate) fn of_sandbox(record: &SandboxRecord) -> String {
    record.cgroup.clone().unwrap_or_else(|| first_of_sandbox(&record.id))
}

/// The cgroup that a sandbox moves to when a branch keeps the one that it is in. The numbers only rise, so that no two branches
/// have the same.
pub(crate) fn next_of_sandbox(record: &SandboxRecord) -> String {
    let number = number_of(&of_sandbox(record), &record.id).unwrap_or(1);
    format!("{}.{}", first_of_sandbox(&record.id), number.saturating_add(1))
}

/// How many cgroups a sandbox has had when it is in this one. `None` if it is not one of its own.
fn number_of(name: &str, id: &SandboxId) -> Option<u64> {
    match name.strip_prefix(&first_of_sandbox(id))? {
        "" => Some(1),
        rest => rest.strip_prefix('.')?.parse().ok(),
    }
}

/// The cgroup of a zygote that is no branch, or was loaded from disk.
pub(crate) fn of_tag(tag: &Tag) -> String {
    format!("zygote-{tag}")
}

/// The cgroup of a zygote.
pub(crate) fn of_zygote(record: &ZygoteRecord) -> String {
    record.cgroup.clone().unwrap_or_else(|| of_tag(&record.tag))
}

impl Engine {
    /// Where others than sandboxes and snapshots can be limited, if anybody is.
    pub fn cgroups(&self) -> Option<Cgroups> {
        self.shared.cgroups.clone()
    }
}

impl Shared {
    /// Adds the cgroup that a sandbox begins in, and says whether there is one.
    pub(crate) fn with_cgroup(
        &self,
        named: Named,
        record: &SandboxRecord,
    ) -> Result<(Named, bool), EngineError> {
        match (&self.cgroups, &record.quota) {
            (Some(cgroups), Some(quota)) => Ok(add(named, cgroups.make(&of_sandbox(record), quota)?)),
            _ => Ok((named, false)),
        }
    }

    /// The same for the zygote of a branch of a sandbox that has no cgroup of its own.
    pub(crate) fn with_zygote_cgroup(
        &self,
        named: Named,
        tag: &Tag,
        shape: &Shape,
    ) -> Result<(Named, bool), EngineError> {
        match &self.cgroups {
            Some(cgroups) => Ok(add(named, cgroups.make(&of_tag(tag), &zygote_quota(shape))?)),
            None => Ok((named, false)),
        }
    }

    /// The same for a process that writes a zygote's snapshot, with its name. One that cannot be made is done without: the process is
    /// in the zygote's then.
    pub(crate) fn with_writer_cgroup(
        &self,
        named: Named,
        record: &ZygoteRecord,
    ) -> (Named, Option<(Cgroups, String)>) {
        let Some(cgroups) = &self.cgroups else { return (named, None) };
        let name = format!("{WRITER}{}", record.tag);
        match cgroups.make_standing_back(&name, &writer_quota(&record.shape)) {
            Ok(cgroup) => (add(named, cgroup).0, Some((cgroups.clone(), name))),
            Err(_) => (named, None),
        }
    }

    /// Moves a process that has no VM yet to the cgroup of a zygote.
    pub(crate) fn enter_zygote_cgroup(&self, tag: &Tag, shape: &Shape, pid: i32) -> Result<(), EngineError> {
        if let Some(cgroups) = &self.cgroups {
            let entered = || {
                cgroups.make(&of_tag(tag), &zygote_quota(shape))?;
                cgroups.enter(&of_tag(tag), pid)
            };
            // The first may be removed after a zygote of the same name, just then.
            entered().or_else(|_| entered())?;
        }
        Ok(())
    }

    /// Ends whatever is in the cgroup of a process that is to end. No other process may have got one of that name meanwhile.
    pub(crate) fn kill_all(&self, name: &str) {
        if let Some(cgroups) = &self.cgroups {
            cgroups.kill(name);
        }
    }

    /// Removes the cgroup of a process that has ended or is about to.
    pub(crate) async fn leave(&self, name: String) {
        if let Some(cgroups) = &self.cgroups {
            cgroups.remove(&name).await;
        }
    }

    /// The same, not waited for.
    pub(crate) fn leave_later(self: &Arc<Self>, name: String) {
        if let (Some(_), Ok(runtime)) = (&self.cgroups, tokio::runtime::Handle::try_current()) {
            let shared = Arc::clone(self);
            runtime.spawn(async move { shared.leave(name).await });
        }
    }

    /// Removes the unused cgroups, and ends what was allowed for the time of a branch only. Returns how many.
    pub(crate) fn sweep_cgroups(&self) -> usize {
        let Some(cgroups) = &self.cgroups else { return 0 };
        // Listed before what is in use is looked at: what is made meanwhile is not among them.
        let listed = cgroups.names();
        let handles = self.sandboxes.all();
        handles.iter().for_each(SandboxHandle::restore_limits);
        let sandboxes: Vec<_> = handles.iter().map(SandboxHandle::view).collect();
        let Some(used) = self.cgroups_in_use(&sandboxes) else { return 0 };
        let current = |name: &str| {
            let id: SandboxId = name.strip_prefix("sandbox-")?.split('.').next()?.parse().ok()?;
            let view = sandboxes.iter().find(|view| view.record.id == id)?;
            Some((id, of_sandbox(&view.record)))
        };
        let is_used = |name: &str| match name.split_once('-') {
            Some(("sandbox", _)) => {
                // A sandbox that is branched is about to move there.
                let is_next = current(name)
                    .is_some_and(|(id, current)| number_of(name, &id) > number_of(&current, &id));
                used.contains(name) || is_next
            }
            Some(("zygote", tag)) => {
                used.contains(name) || tag.parse().is_ok_and(|tag| self.snapshots.has(&tag))
            }
            Some(("writer", tag)) => tag.parse().is_ok_and(|tag| self.is_being_written(&tag)),
            Some(("build", _)) => is_of_running_build(name),
            _ => true,
        };
        let successor = |name: &str| current(name).map(|(_, current)| current);
        cgroups.sweep(listed, is_used, successor)
    }

    /// Whether a snapshot is not on disk yet.
    fn is_being_written(&self, tag: &Tag) -> bool {
        self.snapshots.get(tag).is_some_and(|handle| handle.view().status != SnapshotStatus::Ready)
    }

    /// The cgroups of everything that is known, or written down: of processes that do not answer, and of those that are being
    /// made. `None` if something that is written down cannot be read.
    fn cgroups_in_use(&self, sandboxes: &[SandboxView]) -> Option<BTreeSet<String>> {
        let written = self.written();
        let mut used: BTreeSet<_> = sandboxes.iter().map(|view| of_sandbox(&view.record)).collect();
        used.extend(self.snapshots.all().iter().map(|handle| of_zygote(&handle.view().record)));
        used.extend(written.sandboxes.iter().map(of_sandbox));
        used.extend(written.zygotes.iter().map(of_zygote));
        written.unreadable.is_empty().then_some(used)
    }
}

/// A zygote is not slowed down: forks would wait for it.
pub(crate) fn zygote_quota(shape: &Shape) -> Quota {
    quota(shape, &WantedLimits::default())
}

/// What is shared with the zygote is charged to that. The rest is buffers, and what of the files is not on disk yet.
fn writer_quota(shape: &Shape) -> Quota {
    let memory_bytes = 2 * OVERHEAD_BYTES + shape.memory_bytes / OVERHEAD_PART;
    Quota { memory_bytes, ..zygote_quota(shape) }
}

fn add(named: Named, cgroup: OwnedFd) -> (Named, bool) {
    (named.with(forkd_proto::control::Descriptor::Cgroup, cgroup), true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkd_proto::control::{CpuModel, Devices};

    const MIB: u64 = 1 << 20;

    fn shape() -> Shape {
        Shape {
            vcpus: 2,
            memory_bytes: 512 * MIB,
            cpu: CpuModel::Host,
            devices: Devices::default(),
            image: None,
            agent_version: 1,
        }
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
    fn a_sandbox_moves_to_cgroups_that_no_branch_has() {
        let id: SandboxId = "i4".parse().unwrap();
        assert_eq!((number_of("sandbox-i4", &id), number_of("sandbox-i4.7", &id)), (Some(1), Some(7)));
        for other in ["sandbox-i42", "sandbox-i4.", "sandbox-i4.x", "zygote-i4", "sandbox-i4-2"] {
            assert_eq!(number_of(other, &id), None, "{other}");
        }
        let record = |cgroup: Option<&str>| {
            let mut record: SandboxRecord = serde_json::from_value(serde_json::json!({
                "id": "i4", "snapshot": "base", "created_unix_ms": 0, "expires_unix_ms": null, "metadata": {},
                "shape": shape(), "disk": null, "branches": [], "generation": 2, "promised": true,
            }))
            .unwrap();
            record.cgroup = cgroup.map(str::to_owned);
            record
        };
        // As an older daemon has written it.
        assert_eq!(of_sandbox(&record(None)), "sandbox-i4");
        assert_eq!(next_of_sandbox(&record(None)), "sandbox-i4.2");
        assert_eq!(next_of_sandbox(&record(Some("sandbox-i4.2"))), "sandbox-i4.3");
        assert_eq!(of_sandbox(&record(Some("sandbox-i4.2"))), "sandbox-i4.2");
    }

    #[test]
    fn a_disk_needs_no_cgroup() {
        let disk = WantedLimits { disk_bytes: Some(1), ..WantedLimits::default() };
        assert!(!disk.need_cgroup());
        assert!(WantedLimits { cpu_weight: Some(1), ..disk }.need_cgroup());
    }
}
