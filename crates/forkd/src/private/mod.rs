//! A private daemon: one that runs as long as a client holds it. `forkd hold` finds or starts it, the clients' `autostart` runs
//! `forkd hold`, and the daemon ends with its last holder, with all of its sandboxes.
//!
//! ```text
//!   client ══ pipe ══▶ forkd hold ══ lease, shared ══▶ FORKD_HOME/private/leases
//!                          │ starts, and again if it crashes          ▲ exclusive: granted when it is not held
//!                          └──▶ keeper: forkd serve --private, or ────┘
//!                               forkd hold --keep-machine
//! ```
//!
//! All of it is in locks that the kernel releases when a process ends, however it does:
//!
//! | file      | who locks it |
//! |-----------|--------------|
//! | `leases`  | each holder, shared. The keeper waits for the exclusive lock; when it has it, the daemon has no holders, and gets none until the keeper has ended |
//! | `start`   | a holder while it looks for a daemon and starts one, so that two of them start one |
//! | `keeper`  | the keeper, as long as it lives. Its holder locks it and hands it over as stdin, so that it is never free in between |
//!
//! `keeper` has a word in it while there may be something to end: a keeper that was killed leaves it, and the next one ends what it
//! finds. One that has ended everything empties the file.

pub mod holder;
pub mod keeper;

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forkd_machine::Name;

use crate::error::CliError;

/// Among forkd's files.
const DIRECTORY: &str = "private";
/// How long a keeper may take to end its sandboxes, while a client waits to start the next one.
const ENDING: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(2);
/// Beyond it, a log begins again.
const MAX_LOG: u64 = 1 << 20;
/// Enough for everything that can be in `keeper`.
const MAX_NOTE: u64 = 256;

/// What a keeper keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// A daemon of this host.
    Daemon,
    /// A machine, which it has started.
    Machine(Name),
}

impl Kept {
    fn note(&self) -> String {
        match self {
            Kept::Daemon => "daemon\n".to_owned(),
            Kept::Machine(name) => format!("machine {name}\n"),
        }
    }

    /// What a note says. An unreadable note counts as a daemon's, which then looks for remaining sandboxes.
    fn of_note(note: &str) -> Option<Kept> {
        match note.trim() {
            "" => None,
            note => {
                let machine = note.strip_prefix("machine ").and_then(|name| name.parse().ok());
                Some(machine.map_or(Kept::Daemon, Kept::Machine))
            }
        }
    }
}

/// The directory of the locks.
#[derive(Debug, Clone)]
pub struct Private {
    directory: PathBuf,
}

/// The lock of a keeper: held by the process that has this, or that was given it.
#[derive(Debug)]
pub struct KeeperLock(File);

/// The owner of this value holds the daemon.
#[derive(Debug)]
pub struct Lease {
    _lock: File,
}

impl Private {
    /// Makes the directory if it is not there.
    pub fn open(home: &Path) -> Result<Private, CliError> {
        let directory = home.join(DIRECTORY);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
        made.map_err(|source| CliError::Private { path: directory.clone(), source })?;
        Ok(Private { directory })
    }

    /// What keepers log.
    pub fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// The log, to be written further.
    pub fn open_log(&self) -> Result<File, CliError> {
        let log = self.open_file("log")?;
        let too_long = log.metadata().is_ok_and(|metadata| metadata.len() > MAX_LOG);
        if too_long {
            log.set_len(0).map_err(self.failed("log"))?;
        }
        Ok(log)
    }

    /// Holds the daemon. One that is ending is waited for.
    pub async fn lease(&self) -> Result<Lease, CliError> {
        let lock = self.open_file("leases")?;
        let last_moment = Instant::now() + ENDING;
        loop {
            match lock.try_lock_shared() {
                Ok(()) => return Ok(Lease { _lock: lock }),
                Err(TryLockError::WouldBlock) if Instant::now() > last_moment => {
                    return Err(CliError::PrivateStillEnding { log: self.log() });
                }
                Err(TryLockError::WouldBlock) => tokio::time::sleep(POLL).await,
                Err(TryLockError::Error(error)) => return Err(self.failed("leases")(error)),
            }
        }
    }

    /// Waits until the daemon has no holders. It gets no new ones as long as this process lives.
    pub fn wait_for_last_lease(&self) -> Result<(), CliError> {
        let lock = self.open_file("leases")?;
        lock.lock().map_err(self.failed("leases"))?;
        std::mem::forget(lock);
        Ok(())
    }

    /// Whether the daemon's last holder has gone and it has noticed.
    pub fn is_ending(&self) -> Result<bool, CliError> {
        match self.open_file("leases")?.try_lock_shared() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => Err(self.failed("leases")(error)),
        }
    }

    /// Waits for the turn to start a daemon, as long as the others take to start theirs.
    pub async fn turn_to_start(&self) -> Result<File, CliError> {
        let lock = self.open_file("start")?;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(lock),
                Err(TryLockError::WouldBlock) => tokio::time::sleep(POLL).await,
                Err(TryLockError::Error(error)) => return Err(self.failed("start")(error)),
            }
        }
    }

    /// The keeper's lock, if there is no keeper.
    pub fn no_keeper(&self) -> Result<Option<KeeperLock>, CliError> {
        let lock = self.open_file("keeper")?;
        match lock.try_lock() {
            Ok(()) => Ok(Some(KeeperLock(lock))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(self.failed("keeper")(error)),
        }
    }

    /// Waits until there is no keeper.
    pub fn wait_for_keeper_s_end(&self) -> Result<(), CliError> {
        self.open_file("keeper")?.lock_shared().map_err(self.failed("keeper"))
    }

    /// What the keeper keeps, or has left.
    pub fn kept(&self) -> Result<Option<Kept>, CliError> {
        let mut note = String::new();
        let file = self.open_file("keeper")?;
        file.take(MAX_NOTE).read_to_string(&mut note).map_err(self.failed("keeper"))?;
        Ok(Kept::of_note(&note))
    }

    /// The ordinary daemon has taken over what a private one has left: it is not to be ended any more.
    pub fn hand_over(&self) -> Result<(), CliError> {
        match self.kept()? {
            Some(Kept::Daemon) => self.open_file("keeper")?.set_len(0).map_err(self.failed("keeper")),
            _ => Ok(()),
        }
    }

    /// Whether there are such files at all.
    pub fn is_known(home: &Path) -> bool {
        home.join(DIRECTORY).join("keeper").exists()
    }

    fn open_file(&self, name: &str) -> Result<File, CliError> {
        let path = self.directory.join(name);
        // Appended to: no writer ever leaves a hole where the file was emptied.
        File::options().read(true).append(true).create(true).open(path).map_err(self.failed(name))
    }

    fn failed(&self, name: &str) -> impl FnOnce(io::Error) -> CliError {
        let path = self.directory.join(name);
        move |source| CliError::Private { path, source }
    }
}

impl KeeperLock {
    /// Notes what there is to be ended from now on.
    pub fn note(&mut self, kept: &Kept) -> io::Result<()> {
        self.0.set_len(0)?;
        self.0.write_all(kept.note().as_bytes())
    }

    /// What the note says.
    pub fn kept(&mut self) -> io::Result<Option<Kept>> {
        self.0.seek(SeekFrom::Start(0))?;
        let mut note = String::new();
        (&mut self.0).take(MAX_NOTE).read_to_string(&mut note)?;
        Ok(Kept::of_note(&note))
    }

    /// Everything has ended.
    pub fn forget(&self) -> io::Result<()> {
        self.0.set_len(0)
    }

    /// The lock as a stdin.
    fn into_file(self) -> File {
        self.0
    }
}

/// The bytes of a log from where it ended before.
pub fn said_since(log: &Path, before: u64) -> Vec<u8> {
    let bytes = fs::read(log).unwrap_or_default();
    bytes.get(usize::try_from(before).unwrap_or(usize::MAX)..).unwrap_or_default().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn private() -> (tempfile::TempDir, Private) {
        let home = tempfile::tempdir().unwrap();
        let private = Private::open(home.path()).unwrap();
        (home, private)
    }

    #[tokio::test]
    async fn the_last_lease_is_waited_for_and_none_is_given_after_it() {
        let (_home, private) = private();
        let (first, second) = (private.lease().await.unwrap(), private.lease().await.unwrap());
        let (ended, end) = std::sync::mpsc::channel();
        let waiting = private.clone();
        std::thread::spawn(move || ended.send(waiting.wait_for_last_lease()));
        drop(first);
        assert!(end.recv_timeout(Duration::from_millis(50)).is_err(), "somebody holds it");
        drop(second);
        end.recv_timeout(Duration::from_secs(10)).unwrap().unwrap();
        let third = tokio::time::timeout(Duration::from_millis(50), private.lease()).await;
        assert!(third.is_err(), "the keeper is ending");
    }

    #[test]
    fn one_keeper_at_a_time_and_its_note_outlives_it() {
        let (_home, private) = private();
        let mut lock = private.no_keeper().unwrap().unwrap();
        assert_eq!(lock.kept().unwrap(), None);
        assert!(private.no_keeper().unwrap().is_none());
        let machine = Kept::Machine("default".parse().unwrap());
        for kept in [machine, Kept::Daemon] {
            lock.note(&kept).unwrap();
            assert_eq!(private.kept().unwrap().as_ref(), Some(&kept));
            assert_eq!(lock.kept().unwrap(), Some(kept));
        }
        // The kernel releases it when the keeper is killed.
        drop(lock);
        private.wait_for_keeper_s_end().unwrap();
        let mut lock = private.no_keeper().unwrap().unwrap();
        assert_eq!(lock.kept().unwrap(), Some(Kept::Daemon));
        lock.forget().unwrap();
        assert_eq!(private.kept().unwrap(), None);
    }

    #[test]
    fn an_ordinary_daemon_takes_over_what_is_a_daemon_s() {
        let (home, private) = private();
        assert!(!Private::is_known(home.path()));
        let mut lock = private.no_keeper().unwrap().unwrap();
        assert!(Private::is_known(home.path()));
        let machine = Kept::Machine("a".parse().unwrap());
        lock.note(&machine).unwrap();
        private.hand_over().unwrap();
        assert_eq!(private.kept().unwrap(), Some(machine));
        lock.note(&Kept::Daemon).unwrap();
        private.hand_over().unwrap();
        assert_eq!(private.kept().unwrap(), None);
    }

    #[test]
    fn a_note_that_says_nothing_known_is_a_daemon_s() {
        assert_eq!(Kept::of_note("\n"), None);
        assert_eq!(Kept::of_note("machine ../x\n"), Some(Kept::Daemon));
        assert_eq!(Kept::of_note("?"), Some(Kept::Daemon));
    }

    #[test]
    fn a_log_is_not_written_for_ever() {
        let (_home, private) = private();
        private.open_log().unwrap().write_all(b"one\n").unwrap();
        private.open_log().unwrap().write_all(b"two\n").unwrap();
        assert_eq!(said_since(&private.log(), 4), b"two\n");
        File::options().write(true).open(private.log()).unwrap().set_len(MAX_LOG + 1).unwrap();
        assert_eq!(private.open_log().unwrap().metadata().unwrap().len(), 0);
    }
}
