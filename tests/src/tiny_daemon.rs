//! `forkd serve` with the guest that halts. A snapshot of such a guest is not to be had through the API: an engine of the caller's
//! makes it, and the daemon finds it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use forkd_engine::{Networking, NewSnapshot, Settings};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::mpsc;

use crate::binaries;
use crate::engine::process::Failure;
use crate::engine::tiny::{self, PATIENCE};

/// The snapshot that it has.
pub const BASE: &str = "base";

/// A daemon, and the home that is its own. What it has made outlives it.
#[derive(Debug)]
pub struct TinyDaemon {
    home: PathBuf,
    /// That of its VM processes. Not every host that tests run on has cgroup v2.
    cgroup: Option<PathBuf>,
    process: Option<Child>,
}

impl TinyDaemon {
    /// One that does not run yet.
    pub fn new(home: impl Into<PathBuf>, cgroup: Option<PathBuf>) -> TinyDaemon {
        TinyDaemon { home: home.into(), cgroup, process: None }
    }

    pub fn home(&self) -> &Path {
        &self.home
    }

    pub fn root(&self) -> PathBuf {
        self.home.join("engine")
    }

    /// Where the daemon finds kernels and images.
    pub fn library(&self) -> PathBuf {
        self.home.join("library")
    }

    pub fn socket(&self) -> PathBuf {
        self.home.join("forkd.sock")
    }

    pub fn pid(&self) -> Result<u32, Failure> {
        Ok(self.process.as_ref().ok_or("no daemon")?.id())
    }

    /// Everything that daemons have logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.home.join("log")).unwrap_or_default()
    }

    /// Makes the snapshot, while no daemon runs, of this guest and changed in this way.
    pub fn make_base(
        &self,
        elf: &[u8],
        networking: Networking,
        change: impl FnOnce(&mut NewSnapshot) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let kernel = self.home.join("kernel");
        fs::write(&kernel, elf)?;
        let (runtime, engine, _) = tiny::start_of(Settings { networking, ..self.settings() })?;
        let (steps, _told) = mpsc::channel(16);
        let made: Result<(), Failure> = runtime.block_on(async {
            let mut base = tiny::new_snapshot(BASE, kernel)?;
            change(&mut base)?;
            engine.make(base, &steps).await?.durable().await?;
            Ok(())
        });
        drop(engine);
        runtime.shutdown_timeout(PATIENCE);
        made
    }

    fn settings(&self) -> Settings {
        Settings { cgroup: self.cgroup.clone(), ..tiny::settings(&self.root()) }
    }

    /// Starts the daemon, and waits for nothing.
    pub fn launch(&mut self, options: &[&str], variables: &[(&str, &str)]) -> Result<(), Failure> {
        let log = File::options().create(true).append(true).open(self.home.join("log"))?;
        let mut daemon = binaries::forkd(&self.home, &[&["serve"], options].concat());
        daemon.env("FORKD_CGROUP", self.cgroup.as_deref().unwrap_or(Path::new("none")));
        // Callers see every VM and what every request passes. Tests of learning turn it on.
        daemon.env("FORKD_PREFAULT", "0");
        daemon.envs(variables.iter().copied()).stdout(Stdio::null()).stderr(log);
        self.process = Some(daemon.spawn()?);
        Ok(())
    }

    /// Waits for the end of a daemon that ends by itself.
    pub fn ended_itself(&mut self) -> Result<ExitStatus, Failure> {
        let begun = Instant::now();
        let process = self.process.as_mut().ok_or("no daemon")?;
        loop {
            match process.try_wait()? {
                Some(status) => {
                    self.process = None;
                    return Ok(status);
                }
                None if begun.elapsed() > PATIENCE => return Err("the daemon does not end".into()),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Ends the daemon with a signal, and waits for its end.
    pub fn end(&mut self, signal: Signal) -> Result<(), Failure> {
        kill_process(Pid::from_child(self.process.as_ref().ok_or("no daemon")?), signal)?;
        let status = self.process.take().ok_or("no daemon")?.wait()?;
        match status.success() == (signal != Signal::KILL) {
            true => Ok(()),
            false => Err(format!("{status}: {}", self.log()).into()),
        }
    }

    /// Ends the daemon, and everything that it has left.
    pub fn remove_everything(&mut self) -> Result<(), Failure> {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        let (runtime, engine, _) = tiny::start_of(self.settings())?;
        let removed = runtime.block_on(tiny::remove_everything(&engine));
        runtime.shutdown_timeout(PATIENCE);
        Ok(removed?)
    }
}
