//! `stop`: shuts a machine down, or ends it.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::Progress;
use crate::control;
use crate::files::FileError;
use crate::lock::{self, LockError};
use crate::machine::Machine;
use crate::name::Name;
use crate::process::ProcessName;
use crate::run_state::RunState;

/// How long the machine may take to end its processes and write its disk.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(60);
pub(crate) const KILL_LIMIT: Duration = Duration::from_secs(20);

/// How a machine came to be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stopped {
    /// It was not running.
    Already,
    /// It shut itself down.
    Clean,
    /// It was ended from outside; its file system's journal will put the disk in order.
    Forced,
}

#[derive(Debug, thiserror::Error)]
pub enum StopError {
    #[error("QEMU (process {pid}) of machine {name} did not exit, even after SIGKILL")]
    Unkillable { name: Name, pid: i32 },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// Stops the machine; with `force`, without asking it.
pub fn stop(machine: &Machine, force: bool, progress: &dyn Progress) -> Result<Stopped, StopError> {
    let _lock = lock::lock(machine.directory(), progress)?;
    end(machine.directory(), &machine.name, force, progress)
}

/// The same for a directory whose lock the caller holds.
pub(crate) fn end(
    directory: &Path,
    name: &Name,
    force: bool,
    progress: &dyn Progress,
) -> Result<Stopped, StopError> {
    let process = RunState::read(directory)?.map(|run| run.process).filter(ProcessName::is_alive);
    let Some(process) = process else {
        RunState::clear(directory)?;
        return Ok(Stopped::Already);
    };
    progress.step(&format!("stopping machine {name}"));
    let asked = !force && control::power_off(directory, Duration::from_secs(10)).is_ok();
    let outcome = if asked && process.wait(SHUTDOWN_LIMIT) {
        Stopped::Clean
    } else {
        if !process.end(KILL_LIMIT) {
            return Err(StopError::Unkillable { name: name.clone(), pid: process.pid });
        }
        Stopped::Forced
    };
    RunState::clear(directory)?;
    Ok(outcome)
}
