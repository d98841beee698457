//! `rm`: removes a machine and everything that belongs to it alone.

use std::fs;

use crate::Progress;
use crate::files::{self, FileError};
use crate::lock::{self, LockError};
use crate::machine::{Home, Machine};
use crate::name::Name;
use crate::qmp;
use crate::run_state::RunState;
use crate::stop::{self, KILL_LIMIT, StopError};

/// Machines on their way out: a removal that is interrupted is finished by the next one.
const TRASH_PREFIX: &str = ".rm-";

#[derive(Debug, thiserror::Error)]
pub enum RmError {
    #[error("there is no machine {0}")]
    NoMachine(Name),
    #[error("machine {0} is running; stop it first, or use --force")]
    Running(Name),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Stop(#[from] StopError),
}

/// Removes the machine; with `force`, also one that runs or whose files are damaged.
pub fn rm(home: &Home, name: &Name, force: bool, progress: &dyn Progress) -> Result<(), RmError> {
    let machines = home.machines()?;
    let directory = Machine::directory_of(home, name)?;
    let locked = match lock::lock(&directory, progress) {
        Err(LockError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            return Err(RmError::NoMachine(name.clone()));
        }
        Err(LockError::Removed(_)) => return Err(RmError::NoMachine(name.clone())),
        other => other?,
    };
    let is_alive = match RunState::read(&directory) {
        Ok(run) => run.map(|run| run.process).is_some_and(|process| process.is_alive()),
        Err(error) if !force => return Err(error.into()),
        // What runs there, if anything, is found by the socket it listens on.
        Err(_) => {
            if let Some(orphan) = qmp::owner(&directory) {
                orphan.end(KILL_LIMIT);
            }
            false
        }
    };
    if is_alive {
        if !force {
            return Err(RmError::Running(name.clone()));
        }
        stop::end(&directory, name, true, progress)?;
    }
    // The name is free at once, and nothing half-removed ever has it.
    let trash = tempfile::Builder::new().prefix(TRASH_PREFIX).tempdir_in(&machines);
    let trash = trash.map_err(FileError::at("make a directory in", &machines))?.keep();
    fs::rename(&directory, trash.join("machine")).map_err(FileError::at("remove", &directory))?;
    drop(locked);
    let _lock = lock::lock(&machines, progress)?;
    Ok(files::remove_leftovers(&machines, TRASH_PREFIX)?)
}
