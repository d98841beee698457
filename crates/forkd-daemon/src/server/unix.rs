//! The Unix socket: who may open its file is an admin.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use tokio::net::UnixListener;

use crate::config::Socket;

/// What the kernel's address has room for, with the end of a string.
const MAX_PATH: usize = 107;

/// The socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("a daemon listens on {} already; stop it first, or choose another socket (--socket)", .0.display())]
    InUse(PathBuf),
    #[error("{} exists and is not a socket; remove it, or choose another path (--socket)", .0.display())]
    NotASocket(PathBuf),
    #[error("{} is too long for a socket: at most {MAX_PATH} bytes, with 5 for a temporary name (--socket)", .0.display())]
    TooLong(PathBuf),
    #[error("cannot {verb} {}", path.display())]
    Io { verb: &'static str, path: PathBuf, source: io::Error },
}

/// A socket's file that is this daemon's. It is removed with this value.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    inode: u64,
    /// Says that a daemon lives, also between the moments when a socket could be asked.
    _lock: File,
}

pub(super) fn bind(socket: &Socket) -> Result<(UnixListener, SocketFile), SocketError> {
    let path = &socket.path;
    let failed = |verb: &'static str| move |source| SocketError::Io { verb, path: path.clone(), source };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(directory).map_err(failed("make the directory of"))?;
    let beside = |ending: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    };
    let temporary = beside(".new");
    if temporary.as_os_str().len() > MAX_PATH {
        return Err(SocketError::TooLong(path.clone()));
    }
    let lock = File::create(beside(".lock")).map_err(failed("lock"))?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(SocketError::InUse(path.clone())),
        Err(errno) => return Err(failed("lock")(errno.into())),
    }
    refuse_living(path)?;
    remove_if_there(&temporary).map_err(failed("make"))?;
    // Under another name first: no client connects before its mode is right, and the rename replaces a stale one.
    let listener = UnixListener::bind(&temporary).map_err(failed("make"))?;
    let mode = if socket.group.is_some() { 0o660 } else { 0o600 };
    let publish = || {
        if let Some(group) = socket.group {
            std::os::unix::fs::chown(&temporary, None, Some(group))?;
        }
        fs::set_permissions(&temporary, Permissions::from_mode(mode))?;
        fs::rename(&temporary, path)?;
        Ok(fs::symlink_metadata(path)?.ino())
    };
    let inode = publish().inspect_err(|_| drop(fs::remove_file(&temporary))).map_err(failed("make"))?;
    Ok((listener, SocketFile { path: path.clone(), inode, _lock: lock }))
}

/// Refuses a path on which any process answers.
fn refuse_living(path: &Path) -> Result<(), SocketError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(SocketError::Io { verb: "look at", path: path.into(), source }),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(SocketError::NotASocket(path.into()));
        }
        Ok(_) => {}
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(SocketError::InUse(path.into())),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(source) => Err(SocketError::Io { verb: "ask", path: path.into(), source }),
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

impl SocketFile {
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another process may have put its own there.
        if fs::symlink_metadata(&self.path).is_ok_and(|metadata| metadata.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(path: &Path) -> Socket {
        Socket { path: path.into(), group: None }
    }

    #[tokio::test]
    async fn a_dead_socket_is_replaced_and_a_living_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/forkd.sock");
        let first = bind(&socket(&path)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(bind(&socket(&path)), Err(SocketError::InUse(_))));
        drop(first);
        assert!(!path.exists());

        // A process that was killed leaves the file.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let second = bind(&socket(&path)).unwrap();
        std::os::unix::net::UnixStream::connect(&path).unwrap();
        drop(second);

        // Another program's, which knows nothing of our lock.
        let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(matches!(bind(&socket(&path)), Err(SocketError::InUse(_))));
        drop(other);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert!(matches!(bind(&socket(&path)), Err(SocketError::NotASocket(_))));
        let long = directory.path().join("x".repeat(120));
        assert!(matches!(bind(&socket(&long)), Err(SocketError::TooLong(_))));
    }

    #[tokio::test]
    async fn a_group_may_connect() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("forkd.sock");
        let own = rustix::process::getgid().as_raw();
        let bound = bind(&Socket { path: path.clone(), group: Some(own) }).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!((metadata.permissions().mode() & 0o777, metadata.gid()), (0o660, own));
        assert_eq!(bound.1.path(), path);
    }
}
