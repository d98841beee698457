//! The cgroup of the guest's programs, and the kernel's freezer, which stops them while a fork has no identity.
//!
//! ```text
//!   /sys/fs/cgroup      the agent and the hooks of an identity
//!   ├── forkd           every program that the agent starts for a caller, and all that those start
//!   └── docker, ...     cgroups that programs have made
//! ```
//!
//! `POST /forkd/close` freezes, so the frozen state is part of the snapshot. A child's identity thaws, after everything that is
//! new in it and after the hooks, and before interpreters are reseeded: they have to run for that. A second cgroup that is
//! thawed first would not help. A thread in the background of an interpreter runs before the interpreter can answer in either
//! case, and no other program can use an interpreter's generators.
//!
//! All cgroups directly below the root are frozen, since container runtimes make theirs there. A cgroup that was frozen before
//! stays so. Root of the guest can move a process to the root cgroup, which cannot be frozen.
//!
//! The freezer stops a process where it would return to user mode. One that is deep in the kernel (a disk that does not answer)
//! does not count as frozen, but runs no instruction of its own until the thaw.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use super::Children;
use crate::listing;
use crate::runtime::blocking;

pub const ROOT: &str = "/sys/fs/cgroup";
const NAME: &str = "forkd";
const FREEZE: &str = "cgroup.freeze";
/// How long starting programs may take to come to their exec, and then all to be frozen.
const LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);
/// A program can make a cgroup while others are frozen.
const MAX_ROUNDS: usize = 8;

#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    #[error("the guest has no cgroup v2")]
    Unsupported,
    #[error("a program did not start within {} s", LIMIT.as_secs())]
    Starting,
    #[error("processes in {} were not frozen within {} s", .0.display(), LIMIT.as_secs())]
    Late(PathBuf),
    #[error("cannot freeze {}: {source}", path.display())]
    Group { path: PathBuf, source: io::Error },
    #[error("cannot freeze: {0}")]
    System(#[from] io::Error),
}

/// Where programs run.
#[derive(Debug, Default)]
pub(super) struct Programs {
    /// Nothing where the agent does not own the system, or the kernel has no cgroup v2.
    group: Option<Group>,
    /// Held for reading by a task that starts a program, until its exec: a process that is frozen before would keep the starting
    /// thread, and the table of children with it, until the thaw.
    starting: Arc<RwLock<()>>,
    frozen: Mutex<Option<Frozen>>,
}

#[derive(Debug)]
struct Group {
    root: PathBuf,
    members: Arc<File>,
}

/// What a thaw has to undo.
#[derive(Debug)]
struct Frozen {
    groups: Vec<PathBuf>,
    _nothing_starts: OwnedRwLockWriteGuard<()>,
}

impl Programs {
    /// Makes the cgroup below `root`. Without cgroup v2 there, programs run where the agent does.
    pub(super) fn below(root: &Path) -> Self {
        let make = || {
            // A directory could be made anywhere; only a cgroup has this file.
            fs::metadata(root.join("cgroup.procs"))?;
            let path = root.join(NAME);
            fs::create_dir_all(&path)?;
            File::options().write(true).open(path.join("cgroup.procs"))
        };
        let group = make().ok().map(|members| Group { root: root.to_owned(), members: Arc::new(members) });
        Self { group, ..Self::default() }
    }

    /// The file that a process enters the cgroup with.
    pub(super) fn members(&self) -> Option<Arc<File>> {
        self.group.as_ref().map(|group| Arc::clone(&group.members))
    }

    /// Waits while programs are frozen, and keeps them from being frozen until the guard is dropped.
    pub(super) async fn start(&self) -> OwnedRwLockReadGuard<()> {
        Arc::clone(&self.starting).read_owned().await
    }
}

impl Children {
    /// Stops all programs. Where some did not stop in time, they are in the error, and the others stay stopped.
    pub async fn freeze(&self) -> Result<(), FreezeError> {
        let group = self.programs.group.as_ref().ok_or(FreezeError::Unsupported)?;
        let mut frozen = self.programs.frozen.lock().await;
        if frozen.is_some() {
            return Ok(());
        }
        let guard = tokio::time::timeout(LIMIT, Arc::clone(&self.programs.starting).write_owned());
        let guard = guard.await.map_err(|_| FreezeError::Starting)?;
        let root = group.root.clone();
        let (groups, result) = blocking(move || {
            let mut groups = Vec::new();
            let result = freeze_all(&root, &mut groups);
            (groups, result)
        })
        .await?;
        *frozen = Some(Frozen { groups, _nothing_starts: guard });
        result
    }

    pub async fn are_frozen(&self) -> bool {
        self.programs.frozen.lock().await.is_some()
    }

    /// Lets all programs run that [`Children::freeze`] has stopped. Returns what went wrong.
    pub async fn thaw(&self) -> Vec<String> {
        let Some(frozen) = self.programs.frozen.lock().await.take() else { return Vec::new() };
        let failed = |path: &PathBuf| match fs::write(path.join(FREEZE), "0") {
            // Its last process may have been killed, and the cgroup removed.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Some(format!("cannot thaw {}: {error}", path.display()))
            }
            _ => None,
        };
        frozen.groups.iter().filter_map(failed).collect()
    }
}

/// Freezes the cgroups directly below the root, enters them in `frozen`, and waits until they are.
fn freeze_all(root: &Path, frozen: &mut Vec<PathBuf>) -> Result<(), FreezeError> {
    for _ in 0..MAX_ROUNDS {
        let running = running(root)?;
        if running.is_empty() {
            break;
        }
        for path in running {
            fs::write(path.join(FREEZE), "1")
                .map_err(|source| FreezeError::Group { path: path.clone(), source })?;
            frozen.push(path);
        }
    }
    let begun = Instant::now();
    for path in frozen {
        while !is_frozen(path) {
            if begun.elapsed() > LIMIT {
                return Err(FreezeError::Late(path.clone()));
            }
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}

/// The cgroups below the root that are not to be frozen yet.
fn running(root: &Path) -> io::Result<Vec<PathBuf>> {
    let runs = |path: &PathBuf| fs::read_to_string(path.join(FREEZE)).is_ok_and(|text| text.trim() == "0");
    Ok(listing::paths(root)?.into_iter().filter(runs).collect())
}

/// Whether all processes of a cgroup stand still. One that was removed has none.
fn is_frozen(path: &Path) -> bool {
    match fs::read_to_string(path.join("cgroup.events")) {
        Ok(events) => events.lines().any(|line| line == "frozen 1"),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
pub(crate) mod tests;
