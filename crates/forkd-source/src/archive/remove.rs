//! Taking away what lower layers brought.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, Mode};

use super::tree::{Failure, OPEN_DIRECTORY, Tree, is_directory};

/// The names in a directory.
pub(super) fn names(directory: BorrowedFd<'_>) -> rustix::io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}

/// Removes a name and all below it; links are not followed. How deep the recursion goes is bounded by the tree's limit.
pub(super) fn remove(directory: BorrowedFd<'_>, name: &OsStr) -> Result<(), Failure> {
    let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if !is_directory(&stat) {
        return Ok(rustix::fs::unlinkat(directory, name, AtFlags::empty())?);
    }
    let inner = rustix::fs::openat(directory, name, OPEN_DIRECTORY, Mode::empty())?;
    for name in names(inner.as_fd())? {
        remove(inner.as_fd(), &name)?;
    }
    Ok(rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)?)
}

/// Removes from a directory, and from those below it, what the current layer did not bring.
pub(super) fn remove_lower(tree: &Tree, directory: BorrowedFd<'_>) -> Result<(), Failure> {
    let inode = rustix::fs::fstat(directory)?.st_ino;
    for name in names(directory)? {
        if !tree.is_touched(inode, &name) {
            remove(directory, &name)?;
            continue;
        }
        let stat = rustix::fs::statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        if is_directory(&stat) {
            let inner = rustix::fs::openat(directory, &name, OPEN_DIRECTORY, Mode::empty())?;
            remove_lower(tree, inner.as_fd())?;
        }
    }
    Ok(())
}
