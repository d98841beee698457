//! Free disk space.

use std::io;
use std::path::{Path, PathBuf};

/// A directory's file system has too little room.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    #[error("not enough disk space: {purpose} needs {needed} MiB in {}, and {free} MiB are free", directory.display())]
    Full { purpose: &'static str, needed: u64, free: u64, directory: PathBuf },
    #[error("cannot find out how much space is free in {}", directory.display())]
    Unknown { directory: PathBuf, source: io::Error },
}

/// Bytes that this user can still write below `directory`, which need not exist yet.
pub fn free_bytes(directory: &Path) -> Result<u64, DiskError> {
    let mut existing = directory;
    loop {
        match rustix::fs::statvfs(existing) {
            Ok(stat) => return Ok(stat.f_bavail.saturating_mul(stat.f_frsize)),
            Err(rustix::io::Errno::NOENT) if existing.parent().is_some() => {
                existing = existing.parent().unwrap_or(existing);
            }
            Err(errno) => {
                return Err(DiskError::Unknown { directory: directory.into(), source: errno.into() });
            }
        }
    }
}

/// Refuses when fewer than `needed` bytes are free below `directory`.
pub fn require(directory: &Path, needed: u64, purpose: &'static str) -> Result<(), DiskError> {
    let free = free_bytes(directory)?;
    if free >= needed {
        return Ok(());
    }
    Err(DiskError::Full { purpose, needed: needed >> 20, free: free >> 20, directory: directory.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_does_not_exist_yet_counts_as_its_parent() {
        let directory = tempfile::tempdir().unwrap();
        assert!(free_bytes(&directory.path().join("a/b/c")).unwrap() > 0);
    }

    #[test]
    fn too_little_is_refused_with_the_numbers() {
        let directory = tempfile::tempdir().unwrap();
        let error = require(directory.path(), u64::MAX, "the moon").unwrap_err().to_string();
        assert!(error.contains("the moon needs") && error.contains("MiB are free"), "{error}");
    }
}
