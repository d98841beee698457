//! VM processes that outlive the daemon.
//!
//! The control socket of such a process listens at a path in its directory. Whoever connects there commands it, one after
//! another: a daemon that starts again finds all of them. Nothing here ends a process but [`Lasting::kill`].

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use forkd_proto::channel::Channel;
use forkd_proto::control::{Command, Event, Reply};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::mpsc;

use crate::blocking::in_place;
use crate::control::{CallError, Control};
use crate::page_table;
use crate::record::{self, AnyRecord, Unreadable};
use crate::socket::AsyncPidfd;
use crate::users::{NoneLeft, User};

/// The socket's name in a process' directory.
pub const CONTROL: &str = "control";

/// No process takes longer to end, however large.
const PATIENCE: Duration = Duration::from_secs(30);

/// Clients that wait while another is served.
const BACKLOG: i32 = 4;

#[derive(Debug, thiserror::Error)]
pub enum LastingError {
    #[error("the control socket {}", path.display())]
    Socket { path: PathBuf, source: io::Error },
    #[error("{} cannot be started", program.display())]
    Program { program: PathBuf, source: io::Error },
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("the VM process of {} says that it is process {pid}, which is somebody else", directory.display())]
    Impostor { directory: PathBuf, pid: i32 },
    #[error(transparent)]
    Record(#[from] Unreadable),
    #[error(transparent)]
    Users(#[from] NoneLeft),
    #[error("the VM process identifies itself with {0:?}")]
    Answer(Reply),
}

/// A process. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Lasting {
    pub control: Arc<Control>,
    pub pid: i32,
    /// Whose the process is. Whoever finds or takes it over knows.
    pub user: Option<User>,
    pidfd: Arc<AsyncPidfd>,
}

/// A process, and what happens in it by itself.
pub type WithEvents = (Lasting, mpsc::Receiver<Event>);

/// A process that was found again, and its disk: see [`Reply::Identified`].
#[derive(Debug)]
pub struct Found {
    pub process: WithEvents,
    pub disk: Vec<u64>,
}

/// A socket for a new process to listen at, in its directory.
pub fn listen_in(directory: &Path) -> Result<OwnedFd, LastingError> {
    let path = directory.join(CONTROL);
    let listening = || {
        let socket = seqpacket(SocketFlags::CLOEXEC)?;
        bind(&socket, &SocketAddrUnix::new(&path)?)?;
        listen(&socket, BACKLOG)?;
        Ok(socket)
    };
    in_place(listening)
        .map_err(|errno: Errno| LastingError::Socket { path: path.clone(), source: errno.into() })
}

fn seqpacket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn connect_in(directory: &Path) -> Result<Channel, LastingError> {
    let path = directory.join(CONTROL);
    let connected = || {
        // One that does not block: a process that stands still accepts nobody, and those who have given up still wait for it
        // in its queue. When that is full, connecting would take as long as the process stands still.
        let socket = seqpacket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        connect(&socket, &SocketAddrUnix::new(&path)?)?;
        Ok(Channel::new(socket))
    };
    connected().map_err(|errno: Errno| LastingError::Socket { path: path.clone(), source: errno.into() })
}

impl Lasting {
    /// Starts `forkd-vmm`, without a VM yet, in a directory of its own. Neither it nor its children can make a file larger than
    /// `file_bytes`: the kernel enforces that, also when a guest has taken the process over.
    pub fn start(
        program: &Path,
        directory: &Path,
        user: Option<User>,
        file_bytes: u64,
    ) -> Result<WithEvents, LastingError> {
        let failed = |source| LastingError::Program { program: program.into(), source };
        let listener = listen_in(directory)?;
        let mut child = tokio::process::Command::new(program)
            .args(["run", "--file-bytes", &file_bytes.to_string()])
            .args(user.iter().flat_map(|user| ["--uid".to_owned(), user.uid().to_string()]))
            .stdin(Stdio::from(listener))
            .stdout(Stdio::null())
            // Signals of a terminal are for the daemon.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let pid = pid.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        // Not reaped yet, so the number is its own.
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| failed(errno.into()))?;
        // Somebody must collect its status.
        tokio::spawn(async move { child.wait().await });
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let (mut process, events) = Lasting::take(directory, own, pid.as_raw_nonzero().get(), pidfd)?;
        process.user = user;
        Ok((process, events))
    }

    /// Takes over a process that the process `parent` has just forked, and that has its socket in this directory.
    pub fn take(directory: &Path, parent: i32, pid: i32, pidfd: OwnedFd) -> Result<WithEvents, LastingError> {
        let failed = |source| LastingError::Socket { path: directory.join(CONTROL), source };
        if !in_place(|| is_child(pid, &pidfd, parent)) {
            return Err(LastingError::Impostor { directory: directory.into(), pid });
        }
        let pidfd = AsyncPidfd::new(pidfd).map_err(failed)?;
        let connected = connect_in(directory).and_then(|channel| Control::new(channel).map_err(failed));
        match connected {
            Ok((control, events)) => {
                let control = Arc::new(control);
                Ok((Lasting { control, pid, user: None, pidfd: Arc::new(pidfd) }, events))
            }
            Err(error) => {
                // Nobody would ever end it.
                let _ = pidfd.kill();
                Err(error)
            }
        }
    }

    /// Finds the process of a directory again. `None` if it has ended.
    pub async fn find(directory: &Path) -> Result<Option<Found>, LastingError> {
        let channel = match connect_in(directory) {
            Ok(channel) => channel,
            Err(LastingError::Socket { source, .. })
                if matches!(source.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let failed = |source| LastingError::Socket { path: directory.join(CONTROL), source };
        let (control, events) = Control::new(channel).map_err(failed)?;
        let (reply, mut descriptors) = match control.call(Command::Identify, &[]).await {
            Ok(answer) => answer,
            Err(CallError::Gone) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let (Reply::Identified { pid, disk }, Some(pidfd)) = (reply.clone(), descriptors.pop()) else {
            return Err(LastingError::Answer(reply));
        };
        let user = record::read::<AnyRecord>(directory)?.and_then(|record| record.user);
        if !is_true(pid, &pidfd, user.map(|user| user.uid)) {
            return Err(LastingError::Impostor { directory: directory.into(), pid });
        }
        let pidfd = AsyncPidfd::new(pidfd).map_err(failed)?;
        let process = Lasting { control: Arc::new(control), pid, user: None, pidfd: Arc::new(pidfd) };
        Ok(Some(Found { process: (process, events), disk }))
    }

    /// Gives the process its page table. Without it, it looks at more pages than it must: nobody has to know.
    pub async fn give_page_table(&self) {
        if let Ok(file) = page_table::open(self.pid, self.user.as_ref().map(User::uid)) {
            let _ = self.control.call(Command::PageTable, &[file.into()]).await;
        }
    }

    /// Ends what may have been made in a directory by a process that died before it could say so. Nobody else may hold the socket
    /// that listens there.
    pub async fn end_stray(directory: &Path) {
        if let Ok(Ok(Some(found))) = tokio::time::timeout(PATIENCE, Lasting::find(directory)).await {
            found.process.0.end().await;
        }
    }

    /// Ends the process at once.
    pub fn kill(&self) {
        // It may have ended already.
        let _ = self.pidfd.kill();
    }

    /// Ends the process and waits until it is gone. One that the kernel cannot end is left to it.
    pub async fn end(&self) {
        self.kill();
        self.gone().await;
    }

    /// Waits until a process is gone that is about to end.
    pub async fn gone(&self) {
        let _ = tokio::time::timeout(PATIENCE, self.ended()).await;
    }

    /// Waits for its end.
    pub async fn ended(&self) {
        // A descriptor that cannot be waited for is that of a process that cannot be waited for.
        let _ = self.pidfd.ended().await;
    }
}

/// Whether a process is what its parent has forked, and no other that somebody who has taken the parent over would like to see
/// ended. One that has ended already is nobody.
fn is_child(pid: i32, pidfd: &OwnedFd, parent: i32) -> bool {
    match pid_of(pidfd) {
        Some(-1) => true,
        // Read after its number: as long as the process is there, the number is its own.
        Some(meant) => meant == pid && parent_of(pid) == Some(parent) && pid_of(pidfd) == Some(pid),
        None => false,
    }
}

/// The number of a process by its pidfd: -1 if it has ended, and none if this is no pidfd.
fn pid_of(pidfd: &OwnedFd) -> Option<i32> {
    let said = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    said.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok())
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Its name, in parentheses, may be anything.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Whether a process is who it says. A guest that has taken over its VM process could name any other, and have it ended in its
/// place: at least it is one of the same user id, which is nobody's but its line's.
fn is_true(pid: i32, pidfd: &OwnedFd, uid: Option<u32>) -> bool {
    pid_of(pidfd) == Some(pid) && uid.is_none_or(|uid| page_table::user_of(pid) == Some(uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_child_is_taken_over() {
        let own = i32::try_from(std::process::id()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let open = |pid| pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
        let pidfd = open(pid);
        assert!(is_child(pid, &pidfd, own));
        assert!(!is_child(pid, &pidfd, 1), "another's child");
        assert!(!is_child(own, &pidfd, own), "another's number");
        assert!(!is_child(own, &open(own), own), "not a child at all");
        let directory = tempfile::tempdir().unwrap();
        let taken = Lasting::take(directory.path(), 1, pid, open(pid));
        assert!(matches!(taken, Err(LastingError::Impostor { .. })), "{taken:?}");
        assert!(child.try_wait().unwrap().is_none(), "and lives");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_child(pid, &pidfd, own), "one that has ended is nobody else");
        assert!(!is_child(pid, &std::fs::File::open("/dev/null").unwrap().into(), own));
    }

    #[test]
    fn who_connects_to_a_process_that_accepts_nobody_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let _listener = listen_in(directory.path()).unwrap();
        let path = directory.path().to_owned();
        let (told, heard) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let refused = (0..=BACKLOG + 1).find_map(|_| connect_in(&path).err());
            told.send(refused)
        });
        let refused = heard.recv_timeout(Duration::from_secs(20)).unwrap();
        let Some(LastingError::Socket { source, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(source.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_process_is_who_it_says_or_nobody() {
        let own = rustix::process::getpid();
        let pid = own.as_raw_nonzero().get();
        let pidfd = pidfd_open(own, PidfdFlags::empty()).unwrap();
        let uid = rustix::process::getuid().as_raw();
        assert!(is_true(pid, &pidfd, None) && is_true(pid, &pidfd, Some(uid)));
        assert!(!is_true(pid, &pidfd, Some(uid + 1)), "another user's");
        assert!(!is_true(1, &pidfd, None), "another's number");
        let file = std::fs::File::open("/dev/null").unwrap().into();
        assert!(!is_true(pid, &file, None), "no process at all");
    }
}
