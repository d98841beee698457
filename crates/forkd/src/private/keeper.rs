//! The keeper's own side: what `forkd serve --private` and `forkd hold --keep-machine` have in common.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::io::fcntl_dupfd_cloexec;
use tokio::sync::oneshot;

use super::{KeeperLock, Kept, Private};
use crate::error::CliError;

/// The keeper, while it has something to end.
#[derive(Debug)]
pub struct Keeper {
    private: Private,
    lock: KeeperLock,
    /// Whether a keeper before this one was killed, so that what it finds is its own.
    pub is_successor: bool,
}

impl Keeper {
    /// Takes the lock from stdin, where `forkd hold` has put it.
    pub fn take(home: &Path) -> Result<Keeper, CliError> {
        let failed = |error: io::Error| CliError::Io("take the keeper's lock from stdin", error);
        let private = Private::open(home)?;
        let lock = fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).map_err(|errno| failed(errno.into()))?;
        // Nothing that this process starts may have it as stdin.
        let nothing = File::open("/dev/null").map_err(failed)?;
        rustix::stdio::dup2_stdin(&nothing).map_err(|errno| failed(errno.into()))?;
        let mut lock = KeeperLock(File::from(lock));
        if private.no_keeper()?.is_some() {
            return Err(CliError::NotAKeeper);
        }
        let is_successor = lock.kept().map_err(failed)?.is_some();
        Ok(Keeper { private, lock, is_successor })
    }

    /// There may be something to end from now on, also after this process was killed.
    pub fn begin(&mut self, kept: &Kept) -> Result<(), CliError> {
        self.lock.note(kept).map_err(|error| CliError::Io("note what is kept", error))
    }

    /// Resolves when its last holder has gone.
    pub fn last_lease(&self) -> oneshot::Receiver<Result<(), CliError>> {
        let private = self.private.clone();
        let (told, answer) = oneshot::channel();
        // A thread and not a task: the runtime would wait for it when the keeper ends for another reason.
        std::thread::spawn(move || {
            let _ = told.send(private.wait_for_last_lease());
        });
        answer
    }

    /// Nothing is left. The lock is released with the process.
    pub fn end(self) -> Result<(), CliError> {
        let forgotten = self.lock.forget();
        std::mem::forget(self.lock);
        forgotten.map_err(|error| CliError::Io("note that everything has ended", error))
    }
}
