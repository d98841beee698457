//! What sandboxes and snapshots take of the host: read from files, in tasks that may wait for them.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use forkd_proto::control::KvmCounts;
use forkd_store::Tag;

use crate::engine::{Engine, Shared};
use crate::error::EngineError;
use crate::ids::LayerId;
use crate::limits::cgroup::Cgroups;
use crate::limits::quota::of_sandbox;
use crate::record::SandboxRecord;
use crate::sandbox::ENDED;
use crate::sandbox::SandboxState;
use crate::snapshot::SnapshotView;

/// The unit of CPU time in /proc, which the kernel keeps the same for programs whatever its own is.
const TICK_US: u64 = 10_000;
const BLOCK: u64 = 512;

/// What a sandbox uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu_us: u64,
    pub memory: Memory,
    /// The snapshot whose process has the shared memory, too.
    pub memory_shared_with: Option<Tag>,
    /// What it has written to its disks since its last branch.
    pub disk_bytes: u64,
    /// Page faults of its process, its guest's aside.
    pub process_faults: u64,
    /// What KVM has counted of its guest since its VM was made, unless its process does not say.
    pub kvm: Option<KvmCounts>,
}

/// The memory that a process maps. What is charged to its cgroup differs from it: pages stay charged to the cgroup that first
/// touched them, also when that is a branch's, or was removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// That no other process maps.
    pub private_bytes: u64,
    pub shared_bytes: u64,
}

/// What a snapshot takes on disk, without what its parent has already, and in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoredSize {
    pub memory_bytes: u64,
    pub disk_bytes: u64,
    /// What its process maps, if it has one.
    pub resident: Option<Memory>,
}

impl Engine {
    pub async fn usage(&self, id: &str) -> Result<Usage, EngineError> {
        let handle = self.sandbox(id)?;
        let view = handle.view();
        if view.state == SandboxState::Ended {
            return Err(EngineError::WrongState(ENDED));
        }
        let kvm = handle.kvm_counts().await;
        // A process that ends while its files are read is one that has ended.
        self.shared.usage_of(&view.record, view.pid, kvm).await.map_err(|error| match handle.view().state {
            SandboxState::Ended => EngineError::WrongState(ENDED),
            _ => EngineError::io("read what the VM process uses")(error),
        })
    }

    /// CPU time of a sandbox's process so far, in microseconds. Unlike [`Engine::usage`] it costs next to nothing.
    pub async fn cpu_us(&self, id: &str) -> Result<u64, EngineError> {
        let view = self.sandbox(id)?.view();
        if view.state == SandboxState::Ended {
            return Err(EngineError::WrongState(ENDED));
        }
        if let Some(cpu_us) = self.shared.cpu_us_of_cgroup(&view.record) {
            return Ok(cpu_us);
        }
        let stat = blocking(move || fs::read_to_string(format!("/proc/{}/stat", view.pid)));
        Ok(cpu_us(&stat.await.map_err(EngineError::io("read what the VM process uses"))?))
    }

    /// What these snapshots take on disk, as far as they are there.
    pub async fn stored_sizes(&self, views: Vec<SnapshotView>) -> Result<Vec<StoredSize>, EngineError> {
        let shared = self.shared.clone();
        let sizes = blocking(move || Ok(views.iter().map(|view| stored_size(&shared, view)).collect()));
        sizes.await.map_err(EngineError::io("look at files"))
    }
}

impl Shared {
    /// What a sandbox's process uses.
    pub(crate) async fn usage_of(
        &self,
        record: &SandboxRecord,
        pid: i32,
        kvm: Option<KvmCounts>,
    ) -> io::Result<Usage> {
        let cpu = self.cpu_us_of_cgroup(record);
        let memory_shared_with = self.shares_memory_with(record);
        let tops: Vec<_> = record.disks.iter().map(|disk| self.paths.layer(&disk.files.top)).collect();
        blocking(move || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
            let memory = memory_of_process(pid)?;
            let disk_bytes = tops.iter().map(|top| allocated(top)).sum();
            let cpu_us = cpu.unwrap_or_else(|| cpu_us(&stat));
            let process_faults = process_faults(&stat);
            Ok(Usage { cpu_us, memory, memory_shared_with, disk_bytes, process_faults, kvm })
        })
        .await
    }

    fn cpu_us_of_cgroup(&self, record: &SandboxRecord) -> Option<u64> {
        let of_cgroup = |cgroups: &Cgroups| Some(record.cpu_us_before + cgroups.cpu_us(&of_sandbox(record))?);
        self.cgroups.as_ref().and_then(of_cgroup)
    }

    /// The snapshot that a sandbox shares memory with: its latest branch that has a process, or the one that it was forked
    /// from. A sandbox that was rolled back was forked from its latest branch.
    fn shares_memory_with(&self, record: &SandboxRecord) -> Option<Tag> {
        let candidates = record.branches.iter().rev().chain([&record.snapshot]);
        let has_process = |tag: &&Tag| self.snapshots.get(tag).is_some_and(|it| it.view().loaded);
        candidates.into_iter().find(has_process).cloned()
    }
}

pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

fn stored_size(shared: &Shared, view: &SnapshotView) -> StoredSize {
    let resident = shared.snapshots.get(&view.record.tag).and_then(|handle| handle.resident());
    StoredSize {
        memory_bytes: files_of(shared, &view.record.tag),
        disk_bytes: own_layers(shared, view),
        // A process that has just ended has none.
        resident: resident.and_then(|resident| memory_of_process(resident.pid).ok()),
    }
}

/// What the files of a snapshot take, its memory above all.
pub(crate) fn files_of(shared: &Shared, tag: &Tag) -> u64 {
    let files = fs::read_dir(shared.store.path(tag)).into_iter().flatten().flatten();
    files.map(|file| allocated(&file.path())).sum()
}

/// What the layers of disks take that a snapshot has beside its parent's.
pub(crate) fn own_layers(shared: &Shared, view: &SnapshotView) -> u64 {
    let of_parent = view.record.parent.as_ref().map(|parent| layers_of(shared, parent)).unwrap_or_default();
    let own = view.record.disks.iter().flatten().filter(|layer| !of_parent.contains(layer));
    own.map(|layer| allocated(&shared.paths.layer(layer))).sum()
}

fn layers_of(shared: &Shared, tag: &Tag) -> Vec<LayerId> {
    shared.snapshots.get(tag).map(|handle| handle.view().record.disks.concat()).unwrap_or_default()
}

/// Bytes that a file has on the disk. One that is gone has none.
pub(crate) fn allocated(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |file| file.blocks() * BLOCK)
}

/// User and system time of all threads.
fn cpu_us(stat: &str) -> u64 {
    fields_of(stat, [14, 15]).saturating_mul(TICK_US)
}

/// Minor and major faults.
fn process_faults(stat: &str) -> u64 {
    fields_of(stat, [10, 12])
}

/// The sum of fields of a process's stat, as proc(5) numbers them. They are counted behind the second, its name, which may have spaces.
fn fields_of(stat: &str, numbers: [usize; 2]) -> u64 {
    let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
    let fields = numbers.map(|number| behind.split_whitespace().nth(number - 3));
    fields.into_iter().flatten().filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// Also huge pages that were put together of pages that were shared: they are the process's own then.
pub(crate) fn memory_of_process(pid: i32) -> io::Result<Memory> {
    Ok(memory_of(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?))
}

fn memory_of(smaps: &str) -> Memory {
    let (mut private_bytes, mut shared_bytes) = (0, 0);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or("");
        let kib = words.next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
        match name {
            "Private_Clean:" | "Private_Dirty:" => private_bytes += kib << 10,
            "Shared_Clean:" | "Shared_Dirty:" => shared_bytes += kib << 10,
            _ => {}
        }
    }
    Memory { private_bytes, shared_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_tables_are_read() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 123 45 6 7 20 0 3 0 99 1 1";
        assert_eq!(cpu_us(stat), (123 + 45) * TICK_US);
        assert_eq!(process_faults(stat), 1);
        assert_eq!(cpu_us("nonsense"), 0);
        let smaps = "55-66 ---p 00000000 00:00 0 [rollup]\nRss: 9 kB\nShared_Clean: 1 kB\nShared_Dirty: 2 kB\n\
                     Private_Clean: 3 kB\nPrivate_Dirty: 4 kB\nSwap: 5 kB\n";
        assert_eq!(memory_of(smaps), Memory { private_bytes: 7 << 10, shared_bytes: 3 << 10 });
    }
}
