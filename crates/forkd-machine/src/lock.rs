//! One verb at a time on a machine: a lock on its directory, which ends with the process that holds it.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::Progress;

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("cannot lock {}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The previous holder of the lock removed the directory.
    #[error("{} was removed by another process", .0.display())]
    Removed(PathBuf),
}

/// The directory is locked while this lives.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    _directory: File,
}

/// Locks `path`, a directory; waits, and says so, while another process holds it.
pub(crate) fn lock(path: &Path, progress: &dyn Progress) -> Result<DirectoryLock, LockError> {
    let failed = |source| LockError::Io { path: path.into(), source };
    let directory = File::open(path).map_err(failed)?;
    match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            progress.detail("waiting for another forkd command on the same files");
            rustix::fs::flock(&directory, FlockOperation::LockExclusive)
                .map_err(|errno| failed(errno.into()))?;
        }
        Err(errno) => return Err(failed(errno.into())),
    }
    // The lock is on what was opened; the name may mean something else by now.
    let locked = directory.metadata().map_err(failed)?;
    match std::fs::metadata(path) {
        Ok(named) if (named.dev(), named.ino()) == (locked.dev(), locked.ino()) => {
            Ok(DirectoryLock { _directory: directory })
        }
        _ => Err(LockError::Removed(path.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    struct Tell(mpsc::Sender<String>);

    impl Progress for Tell {
        fn step(&self, what: &str) {
            self.0.send(what.into()).unwrap();
        }
        fn detail(&self, what: &str) {
            self.0.send(what.into()).unwrap();
        }
        fn warn(&self, what: &str) {
            self.0.send(what.into()).unwrap();
        }
    }

    #[test]
    fn the_second_waits_for_the_first_and_sees_a_removal() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("machine");
        std::fs::create_dir(&path).unwrap();
        let (told, waiting) = mpsc::channel();
        let first = lock(&path, &Tell(told.clone())).unwrap();
        let second = std::thread::spawn({
            let path = path.clone();
            move || lock(&path, &Tell(told))
        });
        assert!(waiting.recv_timeout(Duration::from_secs(20)).unwrap().starts_with("waiting"));
        std::fs::remove_dir(&path).unwrap();
        drop(first);
        assert!(matches!(second.join().unwrap(), Err(LockError::Removed(_))));
    }
}
