//! What sandboxes and snapshots take of the host, and what a guest has printed: read from files, in tasks that may wait for
//! them.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use forkd_store::Tag;

use super::quota::of_sandbox;
use super::{Engine, EngineError, SandboxState, Shared, SnapshotView};
use crate::cgroup::Cgroups;
use crate::descriptors::CONSOLE;
use crate::ids::LayerId;

/// The unit of CPU time in /proc, which the kernel keeps the same for programs whatever its own is.
const TICK_US: u64 = 10_000;
const BLOCK: u64 = 512;

/// What a sandbox uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu_us: u64,
    pub memory_private_bytes: u64,
    pub memory_shared_bytes: u64,
    /// What it has written to its disk since its last branch.
    pub disk_bytes: u64,
}

/// What a snapshot takes on disk, without what its parent has already.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoredSize {
    pub memory_bytes: u64,
    pub disk_bytes: u64,
}

impl Engine {
    pub async fn usage(&self, id: &str) -> Result<Usage, EngineError> {
        let handle = self.sandbox(id)?;
        let view = handle.view();
        if view.state == SandboxState::Ended {
            return Err(EngineError::WrongState("ended"));
        }
        let of_cgroup = |cgroups: &Cgroups| cgroups.cpu_us(&of_sandbox(&view.record.id));
        let cpu = self.shared.cgroups.as_ref().and_then(of_cgroup);
        let top = view.record.disk.map(|disk| self.shared.places.layer(&disk.files.top));
        let used = blocking(move || {
            let read = |name: &str| fs::read_to_string(format!("/proc/{}/{name}", view.pid));
            let (stat, memory) = (read("stat")?, read("smaps_rollup")?);
            let disk_bytes = top.map_or(0, |top| allocated(&top));
            let (memory_private_bytes, memory_shared_bytes) = memory_of(&memory);
            let cpu_us = cpu.unwrap_or_else(|| cpu_us(&stat));
            Ok(Usage { cpu_us, memory_private_bytes, memory_shared_bytes, disk_bytes })
        });
        // A process that ends while its files are read is one that has ended.
        used.await.map_err(|error| match handle.view().state {
            SandboxState::Ended => EngineError::WrongState("ended"),
            _ => EngineError::io("read what the VM process uses")(error),
        })
    }

    /// The last bytes that a guest has printed on its console.
    pub async fn console(&self, id: &str, bytes: u64) -> Result<Vec<u8>, EngineError> {
        let view = self.sandbox(id)?.view();
        let path = self.shared.places.sandbox(view.id()).join(CONSOLE);
        let tail = blocking(move || match tail(&path, bytes) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            tail => tail,
        });
        tail.await.map_err(EngineError::io("read the console"))
    }

    /// What these snapshots take on disk, as far as they are there.
    pub async fn stored_sizes(&self, views: Vec<SnapshotView>) -> Result<Vec<StoredSize>, EngineError> {
        let shared = self.shared.clone();
        let sizes = blocking(move || Ok(views.iter().map(|view| stored_size(&shared, view)).collect()));
        sizes.await.map_err(EngineError::io("look at files"))
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

fn stored_size(shared: &Shared, view: &SnapshotView) -> StoredSize {
    let files = fs::read_dir(shared.store.path(&view.record.tag));
    let files = files.into_iter().flatten().flatten();
    let of_parent = view.record.parent.as_ref().map(|parent| layers_of(shared, parent)).unwrap_or_default();
    let own = view.record.layers.iter().filter(|layer| !of_parent.contains(layer));
    StoredSize {
        memory_bytes: files.map(|file| allocated(&file.path())).sum(),
        disk_bytes: own.map(|layer| allocated(&shared.places.layer(layer))).sum(),
    }
}

fn layers_of(shared: &Shared, tag: &Tag) -> Vec<LayerId> {
    shared.snapshots.get(tag).map(|handle| handle.view().record.layers).unwrap_or_default()
}

/// Bytes that a file has on the disk. One that is gone has none.
fn allocated(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |file| file.blocks() * BLOCK)
}

fn tail(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
    let mut tail = Vec::new();
    // The log may grow meanwhile.
    file.take(bytes).read_to_end(&mut tail)?;
    Ok(tail)
}

/// User and system time of all threads: the 14th and 15th field, counted behind the name, which may have spaces.
fn cpu_us(stat: &str) -> u64 {
    let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
    let fields = behind.split_whitespace().skip(11).take(2);
    fields.filter_map(|field| field.parse::<u64>().ok()).sum::<u64>().saturating_mul(TICK_US)
}

/// Private and shared bytes.
fn memory_of(smaps: &str) -> (u64, u64) {
    let (mut private, mut shared) = (0, 0);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or("");
        let kib = words.next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
        match name {
            "Private_Clean:" | "Private_Dirty:" => private += kib << 10,
            "Shared_Clean:" | "Shared_Dirty:" => shared += kib << 10,
            _ => {}
        }
    }
    (private, shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_tables_are_read() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 123 45 6 7 20 0 3 0 99 1 1";
        assert_eq!(cpu_us(stat), (123 + 45) * TICK_US);
        assert_eq!(cpu_us("nonsense"), 0);
        let smaps = "55-66 ---p 00000000 00:00 0 [rollup]\nRss: 9 kB\nShared_Clean: 1 kB\nShared_Dirty: 2 kB\n\
                     Private_Clean: 3 kB\nPrivate_Dirty: 4 kB\nSwap: 5 kB\n";
        assert_eq!(memory_of(smaps), (7 << 10, 3 << 10));
    }

    #[test]
    fn a_tail_is_at_most_so_long() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        fs::write(&path, "0123456789").unwrap();
        assert_eq!(tail(&path, 4).unwrap(), b"6789");
        assert_eq!(tail(&path, 100).unwrap(), b"0123456789");
        assert_eq!(tail(&path, 0).unwrap(), b"");
        assert!(tail(&directory.path().join("none"), 1).is_err());
    }
}
