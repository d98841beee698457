//! An engine with a directory of its own, and what can be seen of it from outside.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forkd_engine::record::Shape;
use forkd_engine::{Created, Engine, EngineError, Networking, Recovered, SnapshotHandle, Source};
use forkd_tests::engine::firecracker::guest;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::tiny::{self, PATIENCE, start, start_with};
pub use forkd_tests::engine::tiny::{lives, request};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

/// A daemon's engine, which can be killed and started again.
pub struct World {
    pub directory: TempDir,
    runtime: Option<Runtime>,
    pub engine: Engine,
}

impl World {
    pub fn new() -> Result<World, Failure> {
        World::with_guest(&guest::elf(100))
    }

    /// One with a guest that does something.
    pub fn with_guest(elf: &[u8]) -> Result<World, Failure> {
        let directory = tempfile::tempdir()?;
        fs::write(directory.path().join("kernel"), elf)?;
        let (runtime, engine, recovered) = start(directory.path())?;
        assert_eq!(recovered, Recovered::default());
        Ok(World { directory, runtime: Some(runtime), engine })
    }

    /// One whose VM processes are another program's.
    pub fn with_program(program: &str, kernel: &[u8]) -> Result<World, Failure> {
        let directory = tempfile::tempdir()?;
        fs::write(directory.path().join("kernel"), kernel)?;
        let (runtime, engine, _) = tiny::start_program(program, directory.path(), 1 << 40, Networking::None)?;
        Ok(World { directory, runtime: Some(runtime), engine })
    }

    /// Ends the engine as a killed daemon ends, and starts another.
    pub fn restart(&mut self) -> Result<Recovered, Failure> {
        self.restart_with(1 << 40)
    }

    /// The same, with another budget for the processes of snapshots.
    pub fn restart_with(&mut self, zygote_bytes: u64) -> Result<Recovered, Failure> {
        self.kill();
        let (runtime, engine, recovered) = start_with(self.directory.path(), zygote_bytes)?;
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

    /// Runs something meanwhile.
    pub fn spawn<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(future);
        }
    }

    /// Boots the guest and makes a snapshot of it.
    pub fn make(&self, tag: &str) -> Result<SnapshotHandle, EngineError> {
        self.make_with(tag, |_| {})
    }

    /// The same with other hardware.
    pub fn make_with(
        &self,
        tag: &str,
        change: impl FnOnce(&mut Shape),
    ) -> Result<SnapshotHandle, EngineError> {
        let (steps, _told) = mpsc::channel(16);
        let mut new = tiny::new_snapshot(tag, self.directory.path().join("kernel"))?;
        change(&mut new.shape);
        self.run(self.engine.make(new, &steps))
    }

    /// A snapshot to make sandboxes of.
    pub fn source(&self, tag: &str) -> Result<Source, EngineError> {
        self.engine.snapshot(tag).map(Source::Snapshot)
    }

    pub fn create(&self, source: Source, count: u32) -> Result<Created, EngineError> {
        self.run(self.engine.create(request(source, count)))
    }

    /// The ids of new sandboxes of a snapshot.
    pub fn fork(&self, tag: &str, count: u32) -> Result<Vec<String>, EngineError> {
        let created = self.create(self.source(tag)?, count)?;
        assert!(created.failures.is_empty(), "{:?}", created.failures);
        Ok(created.sandboxes.iter().map(|view| view.id().to_string()).collect())
    }

    /// Names in a directory of the engine's, when what was removed is gone. Not waited for within a future.
    pub fn names(&self, below: &str) -> Vec<String> {
        if let (Some(runtime), Err(_)) = (&self.runtime, tokio::runtime::Handle::try_current()) {
            runtime.block_on(self.engine.cleared());
        }
        tiny::names(self.directory.path(), below)
    }

    pub fn run_path(&self, below: &str) -> PathBuf {
        tiny::run_directory(self.directory.path()).join(below)
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
        assert_eq!(self.names("promised"), [""; 0]);
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
        let removed = runtime.block_on(tiny::remove_everything(&engine));
        self.kill();
        let left = [self.names("sandboxes"), self.names("zygotes"), self.names("snapshots")].concat();
        // A test that has failed already says more.
        if !std::thread::panicking() {
            removed.expect("everything can be removed");
            assert_eq!(left, [""; 0]);
        }
    }
}
