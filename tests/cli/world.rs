//! A home for commands, with a daemon in it or without.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use forkd_engine::NewSnapshot;
use forkd_tests::binaries;
use forkd_tests::engine::firecracker::guest;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::tiny::{self, PATIENCE};
use tempfile::TempDir;
use tokio::sync::mpsc;

use crate::outcome::outcome;

/// Variables that would lead commands to somebody else's daemon or library.
const VARIABLES: [&str; 7] = [
    "FORKD_ADDRESS",
    "FORKD_URL",
    "FORKD_TOKEN",
    "FORKD_TOKEN_FILE",
    "FORKD_SOCKET",
    "FORKD_MACHINE",
    "FORKD_LIBRARY",
];

/// A home without a daemon.
pub struct Home(TempDir);

impl Home {
    pub fn new() -> Result<Home, Failure> {
        Ok(Home(tempfile::tempdir()?))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The names of its files, sorted.
    pub fn entries(&self) -> Result<Vec<String>, Failure> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.path())? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    pub fn command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = binaries::forkd(self.path(), arguments);
        for variable in VARIABLES {
            command.env_remove(variable);
        }
        // Not every host that tests run on has cgroup v2.
        command.env("FORKD_CGROUP", "none");
        // Lines are wrapped at the terminal's width.
        command.env("COLUMNS", "100");
        command
    }

    pub fn output(&self, arguments: &[&str]) -> Result<Output, Failure> {
        Ok(self.command(arguments).output()?)
    }

    /// What a command comes to.
    pub fn run(&self, arguments: &[&str]) -> Result<String, Failure> {
        Ok(outcome(&self.output(arguments)?, self.path()))
    }

    /// What a command that succeeds prints, without the last line's end.
    pub fn stdout(&self, arguments: &[&str]) -> Result<String, Failure> {
        let output = self.output(arguments)?;
        if !output.status.success() {
            return Err(format!("{arguments:?}: {}", binaries::transcript(&output)).into());
        }
        Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
    }
}

/// A home with a daemon, which has the snapshot `base`: of a guest without an agent.
pub struct World {
    pub home: Home,
    daemon: Child,
}

impl std::ops::Deref for World {
    type Target = Home;

    fn deref(&self) -> &Home {
        &self.home
    }
}

impl World {
    pub fn new() -> Result<World, Failure> {
        World::with(&["--listen", "none"])
    }

    pub fn with(options: &[&str]) -> Result<World, Failure> {
        World::over(Home::new()?, options, |_| Ok(()))
    }

    /// The same over a home that has something already, with a `base` that is made in another way.
    pub fn over(
        home: Home,
        options: &[&str],
        change: impl FnOnce(&mut NewSnapshot) -> Result<(), Failure>,
    ) -> Result<World, Failure> {
        let kernel = home.path().join("kernel");
        fs::write(&kernel, guest::elf(100))?;
        let (runtime, engine, _) = tiny::start(&home.path().join("engine"))?;
        let (steps, _told) = mpsc::channel(16);
        let made: Result<(), Failure> = runtime.block_on(async {
            let mut base = tiny::new_snapshot("base", kernel)?;
            change(&mut base)?;
            engine.make(base, &steps).await?.durable().await?;
            Ok(())
        });
        drop(engine);
        runtime.shutdown_timeout(PATIENCE);
        made?;
        let log = File::create(home.path().join("log"))?;
        let daemon =
            home.command(&[&["serve"], options].concat()).stdout(Stdio::null()).stderr(log).spawn()?;
        let world = World { home, daemon };
        world.until("the daemon answers", |world| Ok(world.output(&["ping"])?.status.success()))?;
        Ok(world)
    }

    /// Where the daemon listens for TCP.
    pub fn address(&self) -> Result<SocketAddr, Failure> {
        let log = self.log();
        let address = log.split_whitespace().find_map(|word| word.strip_prefix("address=")?.parse().ok());
        address.ok_or_else(|| format!("no address: {log}").into())
    }

    /// Everything that the daemon has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path().join("log")).unwrap_or_default()
    }

    /// The id of a new sandbox.
    pub fn fork(&self, source: &str) -> Result<String, Failure> {
        self.stdout(&["fork", source])
    }

    /// Waits until something is so.
    pub fn until(&self, what: &str, holds: impl Fn(&World) -> Result<bool, Failure>) -> Result<(), Failure> {
        let begun = Instant::now();
        while !holds(self)? {
            if begun.elapsed() > PATIENCE {
                return Err(format!("not in time: {what}\n{}", self.log()).into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for World {
    /// Whatever the test has come to, no VM is left.
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let emptied = tiny::start(&self.path().join("engine")).and_then(|(runtime, engine, _)| {
            let removed = runtime.block_on(tiny::remove_everything(&engine));
            runtime.shutdown_timeout(PATIENCE);
            Ok(removed?)
        });
        // A test that has failed already says more.
        if !std::thread::panicking() {
            emptied.expect("everything can be removed");
        }
    }
}
