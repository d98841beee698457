//! Lays one layer over a tree.
//!
//! | entry | what it does |
//! |---|---|
//! | a directory where one is | gives it new owner, mode and time; what is in it stays |
//! | anything else | replaces what is there, a link as the link that it is |
//! | `.wh.NAME` | removes `NAME` of the layers below |
//! | `.wh..wh..opq` | removes all that the layers below have in this directory |

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use super::remove::{remove, remove_lower};
use super::tree::{Failure, Tree, is_directory};
use super::{ArchiveEntry, ArchiveError, EntryPath, Kind, Limits, Problem, Used, read_entries, shown};
use crate::progress::Progress;

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Notes that aufs kept for itself.
const AUFS: &[u8] = b".wh..wh.";

/// Whether names that begin with `.wh.` mean something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whiteouts {
    /// In the layers of an image.
    Apply,
    /// In a plain archive they are names like others.
    Keep,
}

/// Unpacks `archive` (not compressed) into `tree`, over what is there.
pub fn apply(
    tree: &mut Tree,
    archive: impl Read,
    whiteouts: Whiteouts,
    limits: &Limits,
    used: &mut Used,
    progress: &dyn Progress,
) -> Result<(), ArchiveError> {
    tree.begin_layer();
    read_entries(archive, limits, used, |entry, content| {
        if progress.is_cancelled() {
            return Err(ArchiveError::Cancelled);
        }
        let name = || shown(entry.path.as_path().as_os_str().as_bytes());
        place(tree, &entry, content, whiteouts, limits).map_err(|failure| match failure {
            Failure::Problem(problem) => ArchiveError::Refused { entry: name(), problem },
            Failure::Io(source) => ArchiveError::Unpack { entry: name(), source },
        })
    })
}

fn place(
    tree: &mut Tree,
    entry: &ArchiveEntry,
    content: &mut dyn Read,
    whiteouts: Whiteouts,
    limits: &Limits,
) -> Result<(), Failure> {
    let Some((parent, name)) = entry.path.split() else {
        return match entry.kind {
            Kind::Directory => {
                let root = tree.directory(entry.path.as_path())?;
                tree.dress(root.as_fd(), OsStr::new("."), entry, false)
            }
            _ => Err(Problem::BadName.into()),
        };
    };
    if whiteouts == Whiteouts::Apply && name.as_bytes().starts_with(WHITEOUT) {
        return white_out(tree, &entry.path);
    }
    let parent = tree.directory_or_make(parent, limits)?;
    let parent = parent.as_fd();
    tree.check_name(parent, name, limits)?;
    let present = tree.look(parent, name)?;
    let merged = matches!(entry.kind, Kind::Directory) && present.as_ref().is_some_and(is_directory);
    // A hard link's target may be below what it replaces, or be the same name: look before removing.
    let target = match &entry.kind {
        Kind::HardLink(target) => Some(link_target(tree, target)?),
        _ => None,
    };
    if let (Some(present), Some(target)) = (&present, &target)
        && (present.st_ino, present.st_dev) == (target.1.st_ino, target.1.st_dev)
    {
        return tree.touch(parent, name);
    }
    if present.is_some() && !merged {
        remove(parent, name)?;
    }
    tree.touch(parent, name)?;
    match &entry.kind {
        Kind::Directory if merged => {}
        Kind::Directory => tree.make_directory(parent, name, limits)?,
        Kind::File { size } => write_file(parent, name, *size, content)?,
        Kind::Symlink(target) => rustix::fs::symlinkat(&target[..], parent, name)?,
        Kind::HardLink(path) => {
            // Owner, mode and time are the target's.
            return match target.zip(path.split()) {
                Some(((directory, _), (_, target))) => link(&directory, target, parent, name, path),
                None => Err(missing(path).into()),
            };
        }
        Kind::Character { major, minor } => {
            make_node(parent, name, FileType::CharacterDevice, *major, *minor)?;
        }
        Kind::Block { major, minor } => make_node(parent, name, FileType::BlockDevice, *major, *minor)?,
        Kind::Fifo => make_node(parent, name, FileType::Fifo, 0, 0)?,
    }
    tree.dress(parent, name, entry, matches!(entry.kind, Kind::Symlink(_)))
}

/// Copies the content.
fn write_file(
    parent: BorrowedFd<'_>,
    name: &OsStr,
    size: u64,
    content: &mut dyn Read,
) -> Result<(), Failure> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o600))?);
    let copied = io::copy(content, &mut &file)?;
    if copied == size { Ok(()) } else { Err(Problem::Truncated.into()) }
}

fn make_node(
    parent: BorrowedFd<'_>,
    name: &OsStr,
    kind: FileType,
    major: u32,
    minor: u32,
) -> Result<(), Failure> {
    let device = rustix::fs::makedev(major, minor);
    Ok(rustix::fs::mknodat(parent, name, kind, Mode::from_raw_mode(0o600), device)?)
}

fn missing(target: &EntryPath) -> Problem {
    Problem::LinkMissing(shown(target.as_path().as_os_str().as_bytes()))
}

/// The directory and the file that a hard link means.
fn link_target(tree: &Tree, target: &EntryPath) -> Result<(std::os::fd::OwnedFd, rustix::fs::Stat), Failure> {
    let (parent, name) = target.split().ok_or_else(|| missing(target))?;
    let directory = match tree.directory(parent) {
        Err(Failure::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
            return Err(missing(target).into());
        }
        result => result?,
    };
    let stat = tree.look(directory.as_fd(), name)?.ok_or_else(|| missing(target))?;
    if is_directory(&stat) {
        return Err(Problem::LinkToDirectory(shown(target.as_path().as_os_str().as_bytes())).into());
    }
    Ok((directory, stat))
}

fn link(
    directory: impl AsFd,
    target: &OsStr,
    parent: BorrowedFd<'_>,
    name: &OsStr,
    path: &EntryPath,
) -> Result<(), Failure> {
    match rustix::fs::linkat(directory, target, parent, name, AtFlags::empty()) {
        // It was below the directory that the link replaced.
        Err(rustix::io::Errno::NOENT) => Err(missing(path).into()),
        result => Ok(result?),
    }
}

/// Takes away what the layers below have. What this layer brought stays, wherever in the archive the mark is.
fn white_out(tree: &mut Tree, path: &EntryPath) -> Result<(), Failure> {
    let Some((parent, mark)) = path.split() else { return Ok(()) };
    let name = OsStr::from_bytes(&mark.as_bytes()[WHITEOUT.len()..]);
    if matches!(name.as_bytes(), b"" | b"." | b"..") {
        return Err(Problem::BadName.into());
    }
    let directory = match tree.directory(parent) {
        // Nothing is there to take away.
        Err(Failure::Io(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        result => result?,
    };
    let directory = directory.as_fd();
    if mark.as_bytes() == OPAQUE {
        return remove_lower(tree, directory);
    }
    if mark.as_bytes().starts_with(AUFS) {
        return Ok(());
    }
    let Some(present) = tree.look(directory, name)? else { return Ok(()) };
    let inode = rustix::fs::fstat(directory)?.st_ino;
    if !tree.is_touched(inode, name) {
        return remove(directory, name);
    }
    if is_directory(&present) {
        let inner = rustix::fs::openat(directory, name, super::tree::OPEN_DIRECTORY, Mode::empty())?;
        remove_lower(tree, inner.as_fd())?;
    }
    Ok(())
}
