//! `run.json`: the QEMU that was started for a machine. It is there from the moment QEMU is started until `stop`.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::control;
use crate::files::{self, FileError};
use crate::process::ProcessName;
use crate::qemu::Accelerator;
use crate::qmp;
use crate::ssh;

const FILE: &str = "run.json";

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RunState {
    pub process: ProcessName,
    pub accelerator: Accelerator,
    /// Seconds since the epoch.
    pub started_at: u64,
    /// The directory that the machine sees as /opt/forkd/bin.
    pub binaries: Share,
    /// Known once QEMU is up.
    pub ports: Option<Ports>,
    /// Whether the machine has come up, once.
    pub ready: bool,
}

/// Ports on the host's loopback address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ports {
    pub ssh: u16,
    pub api: u16,
}

impl RunState {
    pub fn read(directory: &Path) -> Result<Option<RunState>, FileError> {
        files::read_json(&directory.join(FILE))
    }

    pub fn write(&self, directory: &Path) -> Result<(), FileError> {
        files::write_json(&directory.join(FILE), self)
    }

    /// Forgets a QEMU that has ended, and the sockets it left.
    pub fn clear(directory: &Path) -> Result<(), FileError> {
        for name in [FILE, qmp::SOCKET, control::SOCKET, ssh::SOCKET] {
            files::remove(&directory.join(name))?;
        }
        Ok(())
    }
}

/// A directory by its path and by what was there when QEMU opened it: made anew, it is another one, which the machine
/// does not see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Share {
    pub path: PathBuf,
    device: u64,
    inode: u64,
}

impl Share {
    pub fn of(path: &Path) -> Result<Share, FileError> {
        let found = std::fs::metadata(path).map_err(FileError::at("open", path))?;
        Ok(Share { path: path.into(), device: found.dev(), inode: found.ino() })
    }
}
