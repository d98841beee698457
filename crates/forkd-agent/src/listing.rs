//! What is in a directory.

use std::io;
use std::path::{Path, PathBuf};

/// The paths in a directory, in no order; none if it is not there.
pub fn paths(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.map(|entry| Ok(entry?.path())).collect(),
    }
}
