//! The files of a snapshot and the system calls that make them durable.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

pub(crate) const MANIFEST: &str = "manifest.json";
pub(crate) const STATE: &str = "state.bin";
pub(crate) const MEMORY: &str = "memory.bin";
pub(crate) const MAP: &str = "memory.map";
pub(crate) const LOCAL: &str = "local.json";
/// What a process that writes a snapshot says of the pages in `memory.bin`. It is gone when the snapshot has its name.
pub(crate) const RUNS: &str = "memory.runs";

/// Directories in a store whose names begin with this are being written or removed, or were left behind.
pub(crate) const TEMPORARY: &str = ".tmp-";

/// Creates a file that only this user may read: it will hold a guest's memory.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, path, flags, Mode::RUSR | Mode::WUSR)?;
    Ok(file.into())
}

/// Opens a regular file of a directory for reading. A link is refused; so is a pipe or a device, without waiting for its
/// other side.
pub(crate) fn open(directory: impl AsFd, name: &str) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::LOOP) => return Err(not_regular()),
        Err(errno) => return Err(errno.into()),
    };
    length(&file)?;
    Ok(file)
}

pub(crate) fn open_directory(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?.into())
}

/// How many bytes a regular file has. Anything else is refused, also when it came as a descriptor.
pub(crate) fn length(file: &File) -> io::Result<u64> {
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok(metadata.len()) } else { Err(not_regular()) }
}

fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a link, a directory or a device, expected a regular file")
}

/// Reads the first `length` bytes of a file, or as many as it has. The file's position plays no part: a descriptor that
/// came from another process shares its position with that process.
pub(crate) fn read(file: &File, length: u64) -> io::Result<Vec<u8>> {
    let length = usize::try_from(length).map_err(io::Error::other)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length)?;
    bytes.resize(length, 0);
    let mut filled = 0;
    while filled < length {
        match file.read_at(&mut bytes[filled..], filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Gives a file a further name. On another disk it is copied instead.
pub fn link_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    match std::fs::hard_link(from, to) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => std::fs::copy(from, to).map(drop),
        linked => linked,
    }
}

/// Makes the names in a directory durable. Syncing a file does not do that.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Where the next data of a sparse file is, from `offset` on; `None` if there is only a hole up to the end. A file system
/// that knows no holes says `offset`. Moves the file's position, which nothing here relies on.
pub(crate) fn next_data(file: &File, offset: u64) -> Option<u64> {
    match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(data) => Some(data.max(offset)),
        Err(Errno::NXIO) => None,
        // Only a hint: a hole reads as zeroes.
        Err(_) => Some(offset),
    }
}

/// Where the data that is at `offset` ends: the next hole, or the end of the file. `None` if the file system does not say.
pub(crate) fn next_hole(file: &File, offset: u64) -> Option<u64> {
    rustix::fs::seek(file, SeekFrom::Hole(offset)).ok().filter(|hole| *hole > offset)
}

/// A directory that is locked while this lives.
///
/// The lock ends with the last process that has the descriptor. Unlocking by name, instead of by closing, lets it end here
/// even if the process was forked meanwhile.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    directory: File,
}

impl DirectoryLock {
    /// Locks a directory; waits while someone else has it.
    pub fn wait(path: &Path) -> io::Result<DirectoryLock> {
        let directory = File::open(path)?;
        rustix::fs::flock(&directory, FlockOperation::LockExclusive)?;
        Ok(DirectoryLock { directory })
    }

    /// Locks a directory unless someone else has it.
    pub fn attempt(path: &Path) -> io::Result<Option<DirectoryLock>> {
        let directory = File::open(path)?;
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(DirectoryLock { directory })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether `path` still names what was locked.
    pub fn is_at(&self, path: &Path) -> io::Result<bool> {
        let locked = self.directory.metadata()?;
        match std::fs::symlink_metadata(path) {
            Ok(named) => Ok((named.dev(), named.ino()) == (locked.dev(), locked.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // Cannot fail on a descriptor that is open and locked; closing unlocks too.
        let _ = rustix::fs::flock(&self.directory, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_regular_files_are_opened() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("file"), "x").unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        rustix::fs::mknodat(CWD, path("pipe"), rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        let opened = open_directory(directory.path()).unwrap();
        assert!(open(&opened, "file").is_ok());
        for name in ["link", "pipe", "."] {
            assert_eq!(open(&opened, name).unwrap_err().kind(), io::ErrorKind::InvalidData, "{name}");
        }
        assert_eq!(open(&opened, "none").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(open_directory(&path("file")).is_err());
        assert!(length(&opened).is_err());
    }

    #[test]
    fn reading_does_not_depend_on_the_position() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"0123456789", 0).unwrap();
        for position in [0, 5, 10] {
            rustix::fs::seek(&file, SeekFrom::Start(position)).unwrap();
            assert_eq!(read(&file, 4).unwrap(), b"0123");
            assert_eq!(read(&file, 99).unwrap(), b"0123456789");
        }
    }

    #[test]
    fn a_created_file_is_private_and_new() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mode = create(&path).unwrap().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0);
        assert_eq!(create(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn a_lock_excludes_and_notices_a_removal() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("store");
        std::fs::create_dir(&path).unwrap();
        let lock = DirectoryLock::attempt(&path).unwrap().unwrap();
        assert!(DirectoryLock::attempt(&path).unwrap().is_none());
        assert!(lock.is_at(&path).unwrap());
        std::fs::rename(&path, parent.path().join("other")).unwrap();
        assert!(!lock.is_at(&path).unwrap());
        std::fs::create_dir(&path).unwrap();
        assert!(!lock.is_at(&path).unwrap());
        // As a forked process would have it.
        let _inherited = lock.directory.try_clone().unwrap();
        drop(lock);
        assert!(DirectoryLock::attempt(&parent.path().join("other")).unwrap().is_some());
    }
}
