//! VM processes: the one handle to them, and who ends them.
//!
//! ```text
//!   EndsWithMe   control socket is one half of a pair    ends with the last clone of its handle, or with this process
//!   OutlivesMe   control socket listens in a directory   ends when it is killed; a daemon that starts again finds it
//! ```

pub(crate) mod control;
pub(crate) mod descriptors;
pub mod page_table;
pub(crate) mod socket;
pub(crate) mod stop;
pub(crate) mod users;

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forkd_proto::channel::{Channel, ChannelError};
use forkd_proto::control::{Command, Event, KvmCounts, Reply};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::{mpsc, watch};

use crate::blocking::in_place;
use crate::process::control::{CallError, Control};
use crate::process::socket::AsyncPidfd;
use crate::process::users::{NoneLeft, User};
use crate::record::{self, AnyRecord, Unreadable};

/// The socket's name in a process' directory.
pub const CONTROL: &str = "control";

/// No process takes longer to end, however large.
const PATIENCE: Duration = Duration::from_secs(30);

/// A file in /proc about one process has a few hundred bytes.
const SMALL: usize = 4096;

/// Clients that wait while another is served.
const BACKLOG: i32 = 4;

#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("cannot use the control socket {}", path.display())]
    Socket { path: PathBuf, source: io::Error },
    #[error("cannot start {}", program.display())]
    Program { program: PathBuf, source: io::Error },
    #[error("cannot make a control socket")]
    Pair(#[from] ChannelError),
    #[error("cannot wait for the VM process")]
    Wait(#[source] io::Error),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("the VM process of {} claims the process id {pid}, which belongs to another process", directory.display())]
    Impostor { directory: PathBuf, pid: i32 },
    #[error(transparent)]
    Record(#[from] Unreadable),
    #[error(transparent)]
    Users(#[from] NoneLeft),
    #[error("unexpected first message of the VM process: {0:?}")]
    Answer(Reply),
}

/// A process, told what to do over its control socket. Clones are the same process.
#[derive(Debug, Clone)]
pub struct VmProcess {
    pub control: Arc<Control>,
    pub pid: i32,
    /// The user id it runs as. Set when a process is found or taken over.
    pub user: Option<User>,
    handle: Arc<Handle>,
}

/// Who ends a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ownership {
    EndsWithMe,
    OutlivesMe,
}

#[derive(Debug)]
struct Handle {
    pidfd: AsyncPidfd,
    ownership: Ownership,
    /// Only the parent of a process learns its status.
    status: Option<watch::Receiver<Option<ExitStatus>>>,
    has_page_table: AtomicBool,
}

impl Handle {
    fn new(
        pidfd: AsyncPidfd,
        ownership: Ownership,
        status: Option<watch::Receiver<Option<ExitStatus>>>,
    ) -> Handle {
        Handle { pidfd, ownership, status, has_page_table: AtomicBool::new(false) }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.ownership == Ownership::EndsWithMe {
            // It may have ended already.
            let _ = self.pidfd.kill();
        }
    }
}

/// A process and its events, which end with it.
pub type WithEvents = (VmProcess, mpsc::Receiver<Event>);

/// A process that was found again, and its disks: see [`Reply::Identified`].
#[derive(Debug)]
pub struct Found {
    pub process: WithEvents,
    pub disks: Vec<Vec<u64>>,
}

/// A socket for a new process to listen at, in its directory.
pub fn listen_in(directory: &Path) -> Result<OwnedFd, ProcessError> {
    let path = directory.join(CONTROL);
    let listening = || {
        let socket = seqpacket(SocketFlags::CLOEXEC)?;
        bind(&socket, &SocketAddrUnix::new(&path)?)?;
        listen(&socket, BACKLOG)?;
        Ok(socket)
    };
    in_place(listening)
        .map_err(|errno: Errno| ProcessError::Socket { path: path.clone(), source: errno.into() })
}

fn seqpacket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn connect_in(directory: &Path) -> Result<Channel, ProcessError> {
    let path = directory.join(CONTROL);
    let connected = || {
        // One that does not block: a process that hangs accepts no client, and clients that have given up still wait for it
        // in its queue. When that is full, connecting would take as long as the process hangs.
        let socket = seqpacket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        connect(&socket, &SocketAddrUnix::new(&path)?)?;
        Ok(Channel::new(socket))
    };
    connected().map_err(|errno: Errno| ProcessError::Socket { path: path.clone(), source: errno.into() })
}

/// Time limit for optional numbers.
pub(crate) const COUNTED: Duration = Duration::from_secs(1);

impl VmProcess {
    /// What KVM has counted of its VM, unless it takes long to say.
    pub(crate) async fn kvm_counts(&self) -> Option<KvmCounts> {
        match tokio::time::timeout(COUNTED, self.control.call(Command::Stats, &[])).await {
            Ok(Ok((Reply::Stats(stats), _))) => stats.kvm,
            _ => None,
        }
    }

    /// Starts `forkd-vmm`, without a VM yet, to end with the last clone of its handle.
    pub fn start(program: &Path) -> Result<WithEvents, ProcessError> {
        let (ours, theirs) = Channel::pair()?;
        let mut command = tokio::process::Command::new(program);
        command.arg("run").stdin(Stdio::from(theirs.into_inner()));
        let (pid, handle) = spawn(program, command, Ownership::EndsWithMe)?;
        let (control, events) = Control::new(ours).map_err(ProcessError::Wait)?;
        Ok((VmProcess { control: Arc::new(control), pid, user: None, handle: Arc::new(handle) }, events))
    }

    /// Starts a `forkd-vmm` that outlives this process, in its own directory. Neither it nor its children can make a file larger than
    /// `file_bytes`: the kernel enforces that, also when a guest has taken the process over.
    pub fn start_detached(
        program: &Path,
        directory: &Path,
        user: Option<User>,
        file_bytes: u64,
    ) -> Result<WithEvents, ProcessError> {
        let mut command = tokio::process::Command::new(program);
        command
            .args(["run", "--file-bytes", &file_bytes.to_string()])
            .args(user.iter().flat_map(|user| ["--uid".to_owned(), user.uid().to_string()]))
            .stdin(Stdio::from(listen_in(directory)?))
            // Signals of a terminal are for the daemon.
            .process_group(0);
        let (pid, handle) = spawn(program, command, Ownership::OutlivesMe)?;
        VmProcess::connect(directory, pid, user, handle)
    }

    /// Takes over a process that the process `parent` has just forked, and that has its socket in this directory.
    pub fn take(directory: &Path, parent: i32, pid: i32, pidfd: OwnedFd) -> Result<WithEvents, ProcessError> {
        if !is_child(pid, &pidfd, parent) {
            return Err(ProcessError::Impostor { directory: directory.into(), pid });
        }
        let pidfd = AsyncPidfd::new(pidfd).map_err(ProcessError::Wait)?;
        VmProcess::connect(directory, pid, None, Handle::new(pidfd, Ownership::OutlivesMe, None))
    }

    fn connect(
        directory: &Path,
        pid: i32,
        user: Option<User>,
        handle: Handle,
    ) -> Result<WithEvents, ProcessError> {
        let connected =
            connect_in(directory).and_then(|channel| Control::new(channel).map_err(ProcessError::Wait));
        match connected {
            Ok((control, events)) => {
                Ok((VmProcess { control: Arc::new(control), pid, user, handle: Arc::new(handle) }, events))
            }
            Err(error) => {
                // It would never be ended otherwise.
                let _ = handle.pidfd.kill();
                Err(error)
            }
        }
    }

    /// Finds the process of a directory again. `None` if it has ended.
    pub async fn find(directory: &Path) -> Result<Option<Found>, ProcessError> {
        let channel = match connect_in(directory) {
            Ok(channel) => channel,
            Err(ProcessError::Socket { source, .. })
                if matches!(source.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let (control, events) = Control::new(channel).map_err(ProcessError::Wait)?;
        let (reply, mut descriptors) = match control.call(Command::Identify, &[]).await {
            Ok(answer) => answer,
            Err(CallError::Gone) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let (Reply::Identified { pid, disks }, Some(pidfd)) = (reply.clone(), descriptors.pop()) else {
            return Err(ProcessError::Answer(reply));
        };
        let user = record::read::<AnyRecord>(directory)?.and_then(|record| record.user);
        if !is_true(pid, &pidfd, user.map(|user| user.uid)) {
            return Err(ProcessError::Impostor { directory: directory.into(), pid });
        }
        let pidfd = AsyncPidfd::new(pidfd).map_err(ProcessError::Wait)?;
        let handle = Arc::new(Handle::new(pidfd, Ownership::OutlivesMe, None));
        let process = VmProcess { control: Arc::new(control), pid, user: None, handle };
        Ok(Some(Found { process: (process, events), disks }))
    }

    /// Gives the process its page table, unless it has it. Without it, it looks at more pages than it must; that is not reported.
    pub async fn give_page_table(&self) {
        if self.handle.has_page_table.load(Ordering::Relaxed) {
            return;
        }
        if let Ok(file) = page_table::open(self.pid, self.user.as_ref().map(User::uid)) {
            let given = self.control.call(Command::PageTable, &[file.into()]).await.is_ok();
            self.handle.has_page_table.store(given, Ordering::Relaxed);
        }
    }

    /// Ends what may have been made in a directory by a process that died before it could say so. No other process may hold the socket
    /// that listens there.
    pub async fn end_stray(directory: &Path) {
        if let Ok(Ok(Some(found))) = tokio::time::timeout(PATIENCE, VmProcess::find(directory)).await {
            found.process.0.end().await;
        }
    }

    /// Ends the process at once.
    pub fn kill(&self) {
        // It may have ended already.
        let _ = self.handle.pidfd.kill();
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
        let _ = self.handle.pidfd.ended().await;
    }

    /// Waits for its end, and says how it ended: none if it is not this process's child.
    pub async fn status(&self) -> Option<ExitStatus> {
        self.ended().await;
        let mut status = self.handle.status.clone()?;
        *status.wait_for(Option::is_some).await.ok()?
    }
}

/// Starts a program whose stdin is a control socket.
fn spawn(
    program: &Path,
    mut command: tokio::process::Command,
    ownership: Ownership,
) -> Result<(i32, Handle), ProcessError> {
    let failed = |source| ProcessError::Program { program: program.into(), source };
    let mut child = command.stdout(Stdio::null()).spawn().map_err(failed)?;
    let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let pid = pid.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    // Not reaped yet, so the number is its own.
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| failed(errno.into()))?;
    let pidfd = AsyncPidfd::new(pidfd).map_err(ProcessError::Wait)?;
    let (ended, status) = watch::channel(None);
    // Reaps it.
    tokio::spawn(async move { ended.send_replace(child.wait().await.ok()) });
    Ok((pid.as_raw_nonzero().get(), Handle::new(pidfd, ownership, Some(status))))
}

/// Whether a process is what its parent has forked, and not another one that an attacker in the parent would like to see
/// ended. One that has ended already does not count.
fn is_child(pid: i32, pidfd: &OwnedFd, parent: i32) -> bool {
    // Before its number is looked at: a process that still has it then had it all the time.
    let has_parent = parent_of(pid) == Some(parent);
    match pid_of(pidfd) {
        Some(-1) => true,
        Some(meant) => meant == pid && has_parent,
        None => false,
    }
}

/// Whether a process is one that its parent has forked, and is still there.
pub(crate) fn is_living_child(pid: i32, pidfd: &OwnedFd, parent: i32) -> bool {
    pid_of(pidfd) == Some(pid) && is_child(pid, pidfd, parent)
}

/// The number of a process by its pidfd: -1 if it has ended, and none if this is no pidfd.
fn pid_of(pidfd: &OwnedFd) -> Option<i32> {
    let said = read_small(&format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    said.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok())
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = read_small(&format!("/proc/{pid}/stat"))?;
    // Its name, in parentheses, may be anything.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The beginning of a file in /proc, which is all of one that is about a process. Who does not know its length asks for it, and
/// reads piece by piece: every sandbox that is made would cost a dozen system calls more.
fn read_small(path: &str) -> Option<String> {
    let mut bytes = vec![0; SMALL];
    let read = File::open(path).and_then(|mut file| file.read(&mut bytes)).ok()?;
    bytes.truncate(read);
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether a process is who it says. A guest that has taken over its VM process could name any other, and have it ended in its
/// place: at least it is one of the same user id, which only its line has.
fn is_true(pid: i32, pidfd: &OwnedFd, uid: Option<u32>) -> bool {
    pid_of(pidfd) == Some(pid) && uid.is_none_or(|uid| page_table::user_of(pid) == Some(uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that waits, whatever its arguments are.
    fn waiting(directory: &Path) -> PathBuf {
        let path = directory.join("waiting");
        std::fs::write(&path, "#!/bin/sh\nexec sleep 60\n").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        path
    }

    #[tokio::test]
    async fn a_process_ends_with_its_last_handle_or_outlives_it() {
        let directory = tempfile::tempdir().unwrap();
        let program = waiting(directory.path());
        let (process, _events) = VmProcess::start(&program).unwrap();
        let (clone, pid) = (process.clone(), Pid::from_raw(process.pid).unwrap());
        drop(process);
        let early = tokio::time::timeout(Duration::from_millis(20), clone.ended()).await;
        assert!(early.is_err(), "it has a handle");
        let pidfd = AsyncPidfd::new(pidfd_open(pid, PidfdFlags::empty()).unwrap()).unwrap();
        drop(clone);
        tokio::time::timeout(PATIENCE, pidfd.ended()).await.unwrap().unwrap();

        let (detached, _events) =
            VmProcess::start_detached(&program, directory.path(), None, 1 << 20).unwrap();
        let pid = Pid::from_raw(detached.pid).unwrap();
        drop(detached);
        let pidfd = AsyncPidfd::new(pidfd_open(pid, PidfdFlags::empty()).unwrap()).unwrap();
        let early = tokio::time::timeout(Duration::from_millis(20), pidfd.ended()).await;
        assert!(early.is_err(), "it needs none");
        pidfd.kill().unwrap();
    }

    #[tokio::test]
    async fn the_parent_learns_how_a_process_ended() {
        let directory = tempfile::tempdir().unwrap();
        let (process, _events) = VmProcess::start(&waiting(directory.path())).unwrap();
        process.kill();
        assert!(process.status().await.is_some_and(|status| !status.success()));
        assert!(process.status().await.is_some(), "also when it is asked again");
    }

    #[test]
    fn only_a_child_is_taken_over() {
        let own = i32::try_from(std::process::id()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let open = |pid| pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
        let pidfd = open(pid);
        assert!(is_child(pid, &pidfd, own) && is_living_child(pid, &pidfd, own));
        assert!(!is_child(pid, &pidfd, 1), "another's child");
        assert!(!is_child(own, &pidfd, own), "another's number");
        assert!(!is_child(own, &open(own), own), "not a child at all");
        let directory = tempfile::tempdir().unwrap();
        let taken = VmProcess::take(directory.path(), 1, pid, open(pid));
        assert!(matches!(taken, Err(ProcessError::Impostor { .. })), "{taken:?}");
        assert!(child.try_wait().unwrap().is_none(), "and lives");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_child(pid, &pidfd, own), "one that has ended is nobody else");
        assert!(!is_living_child(pid, &pidfd, own));
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
        let Some(ProcessError::Socket { source, .. }) = refused else { panic!("{refused:?}") };
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
