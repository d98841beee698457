//! The directory that layers are unpacked to. Nothing outside of it can be reached through it.
//!
//! The kernel resolves every path below the directory's descriptor (openat2 with RESOLVE_BENEATH), so a link that a layer
//! brought cannot lead another entry out of it. No other user writes to the directory meanwhile: its parent is accessible to its
//! owner only. So what was just made under a name is still what that name means.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::{ArchiveEntry, EntryPath, Limits, Problem};

/// What is known of a directory, by its inode number.
#[derive(Debug, Clone, Copy)]
struct Directory {
    /// Set last of all: every name that comes or goes changes it.
    mtime: (i64, u32),
    depth: u32,
    path_length: usize,
}

/// An image's files in a directory.
#[derive(Debug)]
pub struct Tree {
    root: OwnedFd,
    path: PathBuf,
    directories: HashMap<u64, Directory>,
    /// Names that the current layer brought, by their directory.
    touched: HashSet<(u64, OsString)>,
    /// Directories whose whole path is among those.
    walked: HashSet<PathBuf>,
}

/// How much is in a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Contents {
    /// Files of all kinds, hard links counted once.
    pub inodes: u64,
    /// What the files' contents take in blocks of 4 KiB.
    pub bytes: u64,
}

/// Why one entry could not be unpacked.
#[derive(Debug)]
pub(super) enum Failure {
    Problem(Problem),
    Io(io::Error),
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Failure {
        Failure::Problem(problem)
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        Failure::Io(errno.into())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Io(error)
    }
}

pub(super) const OPEN_DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Tree {
    /// Makes the directory, which must not exist, in one that no other user may enter.
    pub fn create(path: &Path) -> io::Result<Tree> {
        rustix::fs::mkdirat(CWD, path, Mode::from_raw_mode(0o755))?;
        let root = rustix::fs::openat(CWD, path, OPEN_DIRECTORY, Mode::empty())?;
        let inode = rustix::fs::fstat(&root)?.st_ino;
        let directory = Directory { mtime: (0, 0), depth: 0, path_length: 0 };
        let directories = HashMap::from([(inode, directory)]);
        Ok(Tree { root, path: path.into(), directories, touched: HashSet::new(), walked: HashSet::new() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn begin_layer(&mut self) {
        self.touched.clear();
        self.walked.clear();
    }

    pub(super) fn touch(&mut self, directory: BorrowedFd<'_>, name: &OsStr) -> Result<(), Failure> {
        self.touched.insert((rustix::fs::fstat(directory)?.st_ino, name.to_owned()));
        Ok(())
    }

    pub(super) fn is_touched(&self, directory: u64, name: &OsStr) -> bool {
        self.touched.contains(&(directory, name.to_owned()))
    }

    /// Opens a directory of the tree. A link on the way that stays inside is followed.
    pub(super) fn directory(&self, path: &Path) -> Result<OwnedFd, Failure> {
        if path.as_os_str().is_empty() {
            return Ok(rustix::io::fcntl_dupfd_cloexec(&self.root, 0)?);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        loop {
            return match rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve) {
                Ok(directory) => Ok(directory),
                // The kernel cannot tell when something was renamed on the way.
                Err(Errno::AGAIN) => continue,
                Err(Errno::XDEV | Errno::LOOP) => Err(Problem::ThroughLink.into()),
                Err(Errno::NOTDIR) => Err(Problem::NotADirectory.into()),
                Err(errno) => Err(errno.into()),
            };
        }
    }

    /// The same for a directory that gets a new name: all on its path counts as brought by this layer, and what is missing
    /// is made. Archives need not list directories.
    pub(super) fn directory_or_make(&mut self, path: &Path, limits: &Limits) -> Result<OwnedFd, Failure> {
        if self.walked.contains(path) {
            match self.directory(path) {
                Err(Failure::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
                result => return result,
            }
        }
        let mut prefix = PathBuf::new();
        for name in path {
            let parent = self.directory(&prefix)?;
            prefix.push(name);
            match rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(_) => {}
                Err(Errno::NOENT) => self.make_directory(parent.as_fd(), name, limits)?,
                Err(errno) => return Err(errno.into()),
            }
            self.touch(parent.as_fd(), name)?;
        }
        self.walked.insert(path.into());
        match self.directory(path) {
            // Something is there and leads nowhere: a dangling link.
            Err(Failure::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                Err(Problem::ThroughLink.into())
            }
            result => result,
        }
    }

    /// Makes a directory, within the limits on nesting and paths. They count real directories: through links the path of
    /// an entry can be short and its place deep.
    pub(super) fn make_directory(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        limits: &Limits,
    ) -> Result<(), Failure> {
        let above = self.place(parent)?;
        let depth = above.depth + 1;
        let path_length = above.path_length + name.len() + 1;
        if depth > limits.depth {
            return Err(Problem::TooDeep.into());
        }
        if path_length > limits.path {
            return Err(Problem::PathTooLong.into());
        }
        rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755))?;
        // The umask may have taken rights away.
        rustix::fs::chmodat(parent, name, Mode::from_raw_mode(0o755), AtFlags::empty())?;
        let inode = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?.st_ino;
        self.directories.insert(inode, Directory { mtime: (0, 0), depth, path_length });
        Ok(())
    }

    /// Refuses a name that would make the path too long.
    pub(super) fn check_name(
        &self,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        limits: &Limits,
    ) -> Result<(), Failure> {
        if self.place(parent)?.path_length + name.len() + 1 > limits.path {
            return Err(Problem::PathTooLong.into());
        }
        Ok(())
    }

    fn place(&self, directory: BorrowedFd<'_>) -> Result<Directory, Failure> {
        let inode = rustix::fs::fstat(directory)?.st_ino;
        let known = self.directories.get(&inode).copied();
        known.ok_or_else(|| io::Error::other("a directory that is not of this tree").into())
    }

    /// What is under a name; links are not followed.
    pub(super) fn look(&self, parent: BorrowedFd<'_>, name: &OsStr) -> Result<Option<Stat>, Failure> {
        match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Gives what was just made its owner, mode, attributes and time, in the order in which one does not undo another: a
    /// new owner clears setuid and capabilities.
    pub(super) fn dress(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        entry: &ArchiveEntry,
        is_link: bool,
    ) -> Result<(), Failure> {
        let owner = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::chownat(parent, name, Some(owner.0), Some(owner.1), nofollow)?;
        if !is_link {
            rustix::fs::chmodat(parent, name, Mode::from_raw_mode(entry.mode), AtFlags::empty())?;
        }
        for (attribute, value) in &entry.xattrs {
            // There is no call for attributes of links by descriptor.
            let mut path = format!("/proc/self/fd/{}/", parent.as_raw_fd()).into_bytes();
            path.extend_from_slice(name.as_bytes());
            rustix::fs::lsetxattr(&path[..], attribute.as_str(), value, XattrFlags::empty()).map_err(
                |errno| match errno {
                    Errno::NOSPC | Errno::DQUOT | Errno::IO => Failure::from(errno),
                    _ => Problem::Attribute(attribute.chars().take(80).collect()).into(),
                },
            )?;
        }
        let stat = rustix::fs::statat(parent, name, nofollow)?;
        match self.directories.get_mut(&stat.st_ino) {
            Some(directory) if is_directory(&stat) => directory.mtime = entry.mtime,
            _ => rustix::fs::utimensat(parent, name, &times(entry.mtime), nofollow)?,
        }
        Ok(())
    }

    /// Sets the times of all directories and counts what is there.
    pub fn finish(&self) -> io::Result<Contents> {
        let mut contents = Contents::default();
        let mut linked = HashSet::new();
        self.finish_directory(self.root.as_fd(), &mut contents, &mut linked)?;
        Ok(contents)
    }

    fn finish_directory(
        &self,
        directory: BorrowedFd<'_>,
        contents: &mut Contents,
        linked: &mut HashSet<u64>,
    ) -> io::Result<()> {
        contents.inodes += 1;
        for name in super::remove::names(directory)? {
            let stat = rustix::fs::statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW)?;
            contents.bytes += u64::try_from(stat.st_size).unwrap_or(0).next_multiple_of(4096);
            if is_directory(&stat) {
                let inner = rustix::fs::openat(directory, &name, OPEN_DIRECTORY, Mode::empty())?;
                self.finish_directory(inner.as_fd(), contents, linked)?;
            } else if stat.st_nlink == 1 || linked.insert(stat.st_ino) {
                contents.inodes += 1;
            } else {
                contents.bytes -= u64::try_from(stat.st_size).unwrap_or(0).next_multiple_of(4096);
            }
        }
        let inode = rustix::fs::fstat(directory)?.st_ino;
        let mtime = self.directories.get(&inode).map_or((0, 0), |directory| directory.mtime);
        rustix::fs::futimens(directory, &times(mtime))?;
        Ok(())
    }

    /// Opens a regular file as the guest would see it: links, also absolute ones, are followed inside the tree. `None` if
    /// there is no regular file.
    pub fn open(&self, path: &str) -> io::Result<Option<File>> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let file = match rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        Ok(file.metadata()?.is_file().then_some(file))
    }

    /// Reads such a file; `None` also if it has more than `max` bytes.
    pub fn read(&self, path: &str, max: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = self.open(path)? else { return Ok(None) };
        if file.metadata()?.len() > max {
            return Ok(None);
        }
        let mut content = Vec::new();
        file.take(max).read_to_end(&mut content)?;
        Ok(Some(content))
    }

    /// Whether a path of the tree exists, links not followed. For tests and checks.
    pub fn exists(&self, path: &EntryPath) -> bool {
        path.split().is_none_or(|(parent, name)| {
            self.directory(parent)
                .is_ok_and(|parent| self.look(parent.as_fd(), name).is_ok_and(|stat| stat.is_some()))
        })
    }
}

pub(super) fn is_directory(stat: &Stat) -> bool {
    rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir()
}

fn times((seconds, nanoseconds): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    Timestamps { last_access: time, last_modification: time }
}
