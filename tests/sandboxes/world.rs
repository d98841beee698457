//! An engine with a directory of its own, and what can be seen of it from outside.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use forkd_engine::engine::{
    Created, Engine, EngineError, Limits, NewSandboxes, NewSnapshot, Recovered, Settings, SnapshotHandle,
    Source,
};
use forkd_engine::record::Shape;
use forkd_image::images::ImageStore;
use forkd_proto::control::{Devices, Disk};
use forkd_tests::binaries;
use forkd_tests::engine::firecracker::guest;
use forkd_tests::engine::process::Failure;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

const PATIENCE: Duration = Duration::from_secs(60);
const MEMORY: u64 = 64 << 20;

/// A daemon's engine, which can be killed and started again.
pub struct World {
    pub directory: TempDir,
    runtime: Option<Runtime>,
    pub engine: Engine,
}

impl World {
    pub fn new() -> Result<World, Failure> {
        let directory = tempfile::tempdir()?;
        fs::write(directory.path().join("kernel"), guest::elf(100))?;
        let (runtime, engine, recovered) = start(directory.path())?;
        assert_eq!(recovered, Recovered::default());
        Ok(World { directory, runtime: Some(runtime), engine })
    }

    /// Ends the engine as a killed daemon ends, and starts another.
    pub fn restart(&mut self) -> Result<Recovered, Failure> {
        self.kill();
        let (runtime, engine, recovered) = start(self.directory.path())?;
        (self.runtime, self.engine) = (Some(runtime), engine);
        Ok(recovered)
    }

    fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(PATIENCE);
        }
    }

    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let runtime = self.runtime.as_ref().expect("an engine");
        runtime.block_on(async { tokio::time::timeout(PATIENCE, future).await.expect("in time") })
    }

    /// Boots the guest and makes a snapshot of it.
    pub fn make(&self, tag: &str) -> Result<SnapshotHandle, EngineError> {
        let (steps, _told) = mpsc::channel(16);
        let disk = Disk { bytes: 16 << 20, limit_bytes: 16 << 20, base: false };
        let devices = Devices { console: true, disk: Some(disk), ..Devices::default() };
        let new = NewSnapshot {
            tag: tag.parse()?,
            kernel: self.directory.path().join("kernel"),
            initramfs: None,
            command_line: String::new(),
            shape: Shape { vcpus: 1, memory_bytes: MEMORY, devices, image: None },
            config: Default::default(),
            warm_up: Vec::new(),
            limit: PATIENCE,
        };
        self.run(self.engine.make(new, &steps))
    }

    pub fn create(&self, source: Source, count: u32) -> Result<Created, EngineError> {
        self.run(self.engine.create(request(source, count)))
    }

    /// The ids of new sandboxes of a snapshot.
    pub fn fork(&self, tag: &str, count: u32) -> Result<Vec<String>, EngineError> {
        let created = self.create(Source::Snapshot(tag.into()), count)?;
        assert!(created.failures.is_empty(), "{:?}", created.failures);
        Ok(created.sandboxes.iter().map(|view| view.id().to_string()).collect())
    }

    /// Names in a directory of the engine's.
    pub fn names(&self, below: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.run_directory().join(below))
            .or_else(|_| fs::read_dir(self.directory.path().join(below)))
            .map(|entries| {
                entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
            })
            .unwrap_or_default();
        names.sort();
        names
    }

    fn run_directory(&self) -> std::path::PathBuf {
        let runs = fs::read_dir(self.directory.path().join("run"));
        runs.ok()
            .and_then(|mut runs| runs.next()?.ok())
            .map_or_else(|| self.directory.path().into(), |run| run.path())
    }

    pub fn run_path(&self, below: &str) -> std::path::PathBuf {
        self.run_directory().join(below)
    }

    /// Waits until something is so.
    pub fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < PATIENCE, "not in time: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Nothing is left of any sandbox or snapshot.
    pub fn assert_empty(&self) {
        assert_eq!(self.names("sandboxes"), [""; 0]);
        assert_eq!(self.names("zygotes"), [""; 0]);
        assert_eq!(self.names("layers"), [""; 0]);
        assert_eq!(self.names("snapshots"), [""; 0]);
    }
}

impl Drop for World {
    /// Ends every VM, which nobody else would.
    fn drop(&mut self) {
        let engine = self.engine.clone();
        let Some(runtime) = &self.runtime else { return };
        let removed = runtime.block_on(async {
            for view in engine.sandboxes() {
                engine.sandbox(view.id().as_str())?.remove().await?;
            }
            // One may have gone with its parent.
            for view in engine.snapshots() {
                match engine.remove_snapshot(view.record.tag.as_str(), true).await {
                    Ok(_) | Err(EngineError::NoSnapshot(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok::<_, EngineError>(())
        });
        self.kill();
        let left = [self.names("sandboxes"), self.names("zygotes"), self.names("snapshots")].concat();
        // A test that has failed already says more.
        if !std::thread::panicking() {
            removed.expect("everything can be removed");
            assert_eq!(left, [""; 0]);
        }
    }
}

pub fn request(source: Source, count: u32) -> NewSandboxes {
    NewSandboxes { source, count, partial: false, ttl: None, metadata: BTreeMap::new(), env: BTreeMap::new() }
}

fn start(root: &Path) -> Result<(Runtime, Engine, Recovered), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let settings = Settings {
        program: binaries::directory().join("forkd-vmm"),
        root: root.into(),
        images: ImageStore::new(root),
        limits: Limits { sandboxes: 100, memory_bytes: 1 << 40, free_disk_bytes: 1 << 20 },
    };
    let (engine, recovered) = runtime.block_on(Engine::start(settings))?;
    Ok((runtime, engine, recovered))
}

/// Whether a process is there and not merely waiting to be collected.
pub fn lives(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with('Z') && !rest.is_empty())
}
