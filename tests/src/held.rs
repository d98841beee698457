//! `forkd hold` with the guest that halts, on a host whose KVM can run guests: as a prober beside the binary says.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use forkd_engine::{Networking, NewSnapshot};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::binaries;
use crate::engine::firecracker::guest;
use crate::engine::process::Failure;
use crate::engine::tiny::{self, PATIENCE};
use crate::tiny_daemon::TinyDaemon;

/// The real prober is run, too: its time is part of every start.
const PROBER: &str = r#"#!/bin/sh
[ "$1" = probe ] || exec PROGRAM "$@"
PROGRAM probe >/dev/null 2>&1
echo '{"kvm":{"state":"good","slowdown":1.0,"vms":1},"tsc_khz":1000000}'
"#;

/// Forkd's files and programs, with the snapshot `base`.
#[derive(Debug)]
pub struct HeldHome {
    directory: TempDir,
    /// Makes the snapshot, and removes what a failed test leaves.
    daemon: TinyDaemon,
}

impl HeldHome {
    pub fn new() -> Result<HeldHome, Failure> {
        HeldHome::with(Networking::None, |_| Ok(()))
    }

    /// The same with a snapshot that is made in another way.
    pub fn with(
        networking: Networking,
        change: impl FnOnce(&mut NewSnapshot) -> Result<(), Failure>,
    ) -> Result<HeldHome, Failure> {
        let directory = tempfile::tempdir()?;
        let daemon = TinyDaemon::new(directory.path(), None);
        daemon.make_base(&guest::elf(100), networking, change)?;
        let programs = directory.path().join("bin");
        fs::create_dir(&programs)?;
        let built = binaries::directory();
        binaries::install(&built.join("forkd"), &programs.join("forkd"))?;
        let program = built.join("forkd-vmm");
        let script = PROBER.replace("PROGRAM", &program.display().to_string());
        binaries::install_script(&script, &programs.join("forkd-vmm"))?;
        Ok(HeldHome { directory, daemon })
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn root(&self) -> PathBuf {
        self.daemon.root()
    }

    pub fn socket(&self) -> PathBuf {
        self.daemon.socket()
    }

    /// `forkd`.
    pub fn program(&self) -> PathBuf {
        self.path().join("bin/forkd")
    }

    /// What the daemons have logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path().join("private/log")).unwrap_or_default()
    }

    /// The environment of whoever starts daemons here.
    pub fn environment(&self, command: &mut Command) {
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("FORKD_") && name != "FORKD_TYPESCRIPT" {
                command.env_remove(name);
            }
        }
        command
            .env(forkd_host::home::HOME_VARIABLE, self.path())
            .env("FORKD_BIN", self.program())
            // The host's networks are one daemon's, and not every host that tests run on has cgroup v2.
            .env("FORKD_NETWORK", "none")
            .env("FORKD_CGROUP", "none")
            .env("FORKD_PREFAULT", "0");
    }

    pub fn hold(&self) -> Result<Holder, Failure> {
        self.hold_with(|_| {})
    }

    /// The same, changed in this way.
    pub fn hold_with(&self, change: impl FnOnce(&mut Command)) -> Result<Holder, Failure> {
        let mut command = Command::new(self.program());
        self.environment(command.arg("hold"));
        change(&mut command);
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stdin = process.stdin.take();
        Ok(Holder { process, stdin })
    }

    /// The process of the daemon that listens.
    pub fn daemon_pid(&self) -> Result<i32, Failure> {
        let stream = std::os::unix::net::UnixStream::connect(self.socket())?;
        Ok(rustix::net::sockopt::socket_peercred(&stream)?.pid.as_raw_nonzero().get())
    }

    /// Processes that belong to this home: daemons, holders and VMs.
    pub fn processes(&self) -> Vec<i32> {
        let home = self.path().as_os_str().as_encoded_bytes().to_vec();
        let is_own = |pid: &i32| {
            let mentions = |file: &str| {
                let text = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
                text.windows(home.len()).any(|window| window == home)
            };
            tiny::lives(*pid)
                && *pid != std::process::id().cast_signed()
                && (mentions("cmdline") || mentions("environ"))
        };
        let mut pids: Vec<i32> = fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(is_own)
            .chain(tiny::vms(&self.root()))
            .collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// What is left that should not be: nothing, once the last holder has gone.
    pub fn left(&self) -> Vec<String> {
        let mut left: Vec<String> = self.processes().iter().map(|pid| format!("process {pid}")).collect();
        for place in ["sandboxes", "zygotes"] {
            left.extend(tiny::names(&self.root(), place).into_iter().map(|name| format!("{place} {name}")));
        }
        if self.socket().exists() {
            left.push("the socket".into());
        }
        if fs::read(self.path().join("private/keeper")).is_ok_and(|note| !note.is_empty()) {
            left.push("the keeper's note".into());
        }
        left
    }

    /// Waits until nothing is left.
    pub fn until_nothing_is_left(&self) -> Result<Duration, Failure> {
        let begun = Instant::now();
        loop {
            let left = self.left();
            if left.is_empty() {
                return Ok(begun.elapsed());
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("there is left: {}\n{}", left.join(", "), self.log()).into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for HeldHome {
    /// Whatever the test has come to, no VM is left.
    fn drop(&mut self) {
        for pid in self.processes() {
            let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
        }
        let _ = self.daemon.remove_everything();
    }
}

/// A process that holds the daemon as long as its stdin is open.
#[derive(Debug)]
pub struct Holder {
    process: Child,
    stdin: Option<ChildStdin>,
}

impl Holder {
    /// What it says.
    pub fn line(&mut self) -> Result<Value, Failure> {
        let stdout = self.process.stdout.take().ok_or("it was asked before")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        serde_json::from_str(&line).map_err(|error| format!("{line:?}: {error}").into())
    }

    /// The same of one that has found a private daemon.
    pub fn ready(mut self) -> Result<Holder, Failure> {
        let line = self.line()?;
        match line["private"].as_bool() {
            Some(true) => Ok(self),
            _ => Err(format!("it says {line}").into()),
        }
    }

    pub fn pid(&self) -> i32 {
        self.process.id().cast_signed()
    }

    /// Lets go, and waits for its end.
    pub fn release(mut self) -> Result<ExitStatus, Failure> {
        drop(self.stdin.take());
        Ok(self.process.wait()?)
    }

    /// Waits until it ends by itself. Returns what it has said.
    pub fn ended(self) -> Result<(ExitStatus, String), Failure> {
        let Holder { process, stdin } = self;
        let output = process.wait_with_output()?;
        drop(stdin);
        Ok((output.status, String::from_utf8(output.stderr)?))
    }

    /// As a client that has crashed with its helper.
    pub fn kill(mut self) -> Result<(), Failure> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Writes something that nobody expects.
    pub fn write(&mut self, text: &str) -> Result<(), Failure> {
        Ok(self.stdin.as_mut().ok_or("it was released")?.write_all(text.as_bytes())?)
    }
}
