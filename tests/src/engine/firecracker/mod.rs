//! Firecracker beside the engine: how long the same number of its snapshot restores takes on the same host.
//!
//! ```text
//!  boot ─▶ warm ─▶ paused ─▶ full snapshot ──┬─▶ new process ─▶ PUT /snapshot/load ─▶ 204
//!  (one process, then gone)   (two files)    ├─▶ new process ─▶ PUT /snapshot/load ─▶ 204
//!                                            └─▶ …                    the last one stops the clock
//! ```
//!
//! The clock begins before the first process is started, as for any user of it, and stops when the last one has answered
//! that its VM is loaded and resumed: `restored`. Nothing shows that its guest has run. The clock of our forks stops at
//! `running`, which is more: the guest of every child has carried out an order, and its answer is here. In that the
//! comparison leans towards Firecracker.

mod api;
pub mod guest;
mod process;

use std::fs;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forkd_host::tool::Tool;
use serde_json::json;
use tempfile::TempDir;

use self::process::Process;
use super::process::Failure;

/// Looked for, and not missed: the name of a package is not needed, and Debian has none.
const FIRECRACKER: Tool =
    Tool { program: "firecracker", package: "firecracker", purpose: "compare with its restores" };

/// Restores under way at once for each CPU. Most of a restore is waiting for the kernel: one at a time leaves the CPUs idle
/// (on two of them 100 restores take five to eight times as long), and more than these change nothing.
const UNDER_WAY: u32 = 8;

/// The program, if it is on PATH.
pub fn find() -> Option<PathBuf> {
    FIRECRACKER.find().ok()
}

/// A paused VM in files, and the program that restores it. The files end with it.
#[derive(Debug)]
pub struct Snapshot {
    program: PathBuf,
    directory: TempDir,
}

impl Snapshot {
    /// Boots a guest with one vCPU that writes this many pages and halts, pauses it, and makes a full snapshot.
    pub fn make(program: &Path, memory_mib: u64, warm_pages: u64) -> Result<Snapshot, Failure> {
        let snapshot = Snapshot { program: program.into(), directory: tempfile::tempdir()? };
        let kernel = snapshot.path("kernel");
        fs::write(&kernel, guest::elf(warm_pages))?;
        let mut parent =
            Process::start(program, &snapshot.path("parent.socket"), &snapshot.path("parent.log"))?;
        parent.must("PUT", "/machine-config", &json!({ "vcpu_count": 1, "mem_size_mib": memory_mib }))?;
        parent.must("PUT", "/boot-source", &json!({ "kernel_image_path": kernel }))?;
        parent.must("PUT", "/actions", &json!({ "action_type": "InstanceStart" }))?;
        parent.wait_for_words(guest::WARM)?;
        parent.must("PATCH", "/vm", &json!({ "state": "Paused" }))?;
        let create = json!({
            "snapshot_type": "Full",
            "snapshot_path": snapshot.path("state"),
            "mem_file_path": snapshot.path("memory"),
        });
        parent.must("PUT", "/snapshot/create", &create)?;
        Ok(snapshot)
    }

    /// Starts this many processes that restore the snapshot, as fast as they go, and says how long it took until the last one
    /// had. All of them are alive then, and gone when this returns.
    pub fn restore(&self, count: u32) -> Result<Duration, Failure> {
        let cpus = u32::try_from(thread::available_parallelism()?.get())?;
        self.restore_by(count, cpus.saturating_mul(UNDER_WAY).min(count))
    }

    /// The same, one after another.
    pub fn restore_one_by_one(&self, count: u32) -> Result<Duration, Failure> {
        self.restore_by(count, 1)
    }

    fn restore_by(&self, count: u32, workers: u32) -> Result<Duration, Failure> {
        let directory = tempfile::tempdir_in(&self.directory)?;
        let next = AtomicU32::new(0);
        let work = || {
            iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)).filter(|number| *number < count))
                .map(|number| self.restore_one(directory.path(), number))
                .collect::<Result<Vec<Process>, Failure>>()
        };

        let begun = Instant::now();
        let results: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join()).collect()
        });
        let wall = begun.elapsed();

        let mut processes = Vec::new();
        for result in results {
            processes.extend(result.map_err(|_| "a thread that restores has panicked")??);
        }
        // All at once: the end of one takes the kernel as long as its start.
        for process in &mut processes {
            process.kill();
        }
        Ok(wall)
    }

    fn restore_one(&self, directory: &Path, number: u32) -> Result<Process, Failure> {
        let socket = directory.join(format!("{number}.socket"));
        let mut process = Process::start(&self.program, &socket, &directory.join("log"))?;
        let load = json!({
            "snapshot_path": self.path("state"),
            "mem_backend": { "backend_type": "File", "backend_path": self.path("memory") },
            "resume_vm": true,
        });
        process.must("PUT", "/snapshot/load", &load)?;
        Ok(process)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::engine::guest::FREE_MEMORY;

    /// A program that knows no `--api-sock`, says so and ends.
    const ANOTHER_PROGRAM: &str = "/bin/ls";

    #[test]
    fn a_program_that_does_not_work_is_an_error() {
        let error = Snapshot::make(Path::new(ANOTHER_PROGRAM), 64, 16).unwrap_err().to_string();
        assert!(error.contains("ended before it listens, with exit status: 2"), "{error}");
        assert!(error.contains("--api-sock"), "{error}");
        let error = Snapshot::make(Path::new("/no/firecracker"), 64, 16).unwrap_err().to_string();
        assert!(error.contains("/no/firecracker does not start"), "{error}");
    }

    #[test]
    fn a_failed_restore_is_an_error_and_leaves_nothing() {
        let snapshot = Snapshot { program: ANOTHER_PROGRAM.into(), directory: tempfile::tempdir().unwrap() };
        let error = snapshot.restore(20).unwrap_err().to_string();
        assert!(error.contains("ended before it listens"), "{error}");
        assert!(fs::read_dir(&snapshot.directory).unwrap().next().is_none());
    }

    /// Only where there is a Firecracker.
    #[test]
    fn a_snapshot_has_the_warm_pages_and_is_restored() {
        let Some(program) = find() else { return };
        const PAGES: u64 = 300;
        let snapshot = Snapshot::make(&program, 64, PAGES).unwrap();
        let memory = fs::File::open(snapshot.path("memory")).unwrap();
        let word = |page: u64| {
            let mut bytes = [0; 8];
            memory.read_exact_at(&mut bytes, FREE_MEMORY + page * 4096).unwrap();
            u64::from_le_bytes(bytes)
        };
        assert!((0..PAGES).all(|page| word(page) == 1));
        assert_eq!(word(PAGES), 0);
        assert!(snapshot.restore(3).unwrap() > Duration::ZERO);
    }
}
