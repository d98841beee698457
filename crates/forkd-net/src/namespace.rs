//! Network namespaces with names, as `ip netns` shows them: a name is a file that the namespace is mounted on.
//!
//! A thread's namespace is its own. Whatever must happen inside of one happens on a thread that ends right after, so that no
//! worker of a runtime is ever found in the wrong place. What such a thread makes (sockets, taps) stays where it was made.

#![expect(unsafe_code, reason = "a thread leaves its namespace by unshare(2)")]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;

use rustix::io::Errno;
use rustix::mount::{
    MountPropagationFlags, UnmountFlags, mount_bind, mount_bind_recursive, mount_change, unmount,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

const OWN: &str = "/proc/thread-self/ns/net";

/// Where names are.
#[derive(Debug, Clone)]
pub struct Namespaces {
    directory: PathBuf,
}

#[derive(Debug)]
pub struct Namespace(File);

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Namespace {
    fn from(descriptor: OwnedFd) -> Namespace {
        Namespace(descriptor.into())
    }
}

impl Namespaces {
    /// Prepares the directory. Mounts below it are shared, so that a namespace that is removed here is removed everywhere;
    /// otherwise every mount namespace that was copied meanwhile would keep it alive.
    pub fn new(directory: &Path) -> io::Result<Namespaces> {
        fs::create_dir_all(directory)?;
        let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
        match mount_change(directory, shared) {
            // It is no mount point yet.
            Err(Errno::INVAL) => {
                mount_bind_recursive(directory, directory)?;
                mount_change(directory, shared)?;
            }
            result => result?,
        }
        Ok(Namespaces { directory: directory.into() })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            names.extend(entry?.file_name().into_string().ok());
        }
        Ok(names)
    }

    /// Makes a namespace, runs something inside, and gives it its name. Without success there is no namespace.
    pub fn create<T: Send>(
        &self,
        name: &str,
        inside: impl FnOnce(&Namespace) -> io::Result<T> + Send,
    ) -> io::Result<(Namespace, T)> {
        let path = self.path(name);
        OpenOptions::new().write(true).create_new(true).open(&path)?;
        let made = on_a_thread(|| {
            // SAFETY: the file table stays shared, so no descriptor of another thread changes.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            mount_bind(OWN, &path)?;
            let namespace = Namespace(File::open(OWN)?);
            let result = inside(&namespace)?;
            Ok((namespace, result))
        });
        if made.is_err() {
            // The first failure is the one that counts.
            let _ = self.remove(name);
        }
        made
    }

    /// Gives a namespace a name that it has lost.
    pub fn name(&self, name: &str, namespace: &Namespace) -> io::Result<()> {
        let path = self.path(name);
        OpenOptions::new().write(true).create(true).truncate(false).open(&path)?;
        Ok(mount_bind(format!("/proc/self/fd/{}", namespace.as_fd().as_raw_fd()), &path)?)
    }

    pub fn open(&self, name: &str) -> io::Result<Namespace> {
        Ok(Namespace(File::open(self.path(name))?))
    }

    /// Takes the name away. The namespace ends when it is not used any more.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        let path = self.path(name);
        loop {
            match unmount(&path, UnmountFlags::DETACH) {
                Ok(()) => {}
                // Nothing is mounted there, or there is no such file.
                Err(Errno::INVAL | Errno::NOENT) => break,
                Err(error) => return Err(error.into()),
            }
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

impl Namespace {
    /// Runs inside, on a thread of its own.
    pub fn run<T: Send>(&self, inside: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        on_a_thread(|| {
            // A file that is no namespace is refused here.
            move_into_link_name_space(self.as_fd(), Some(LinkNameSpaceType::Network))?;
            inside()
        })
    }
}

fn on_a_thread<T: Send>(run: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("forkd-netns".into()).spawn_scoped(scope, run)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread in a namespace has panicked")))
    })
}
