//! Where forkd keeps its files, and where its binaries are.

use std::path::{Path, PathBuf};
use std::{env, io};

/// The environment variable that moves forkd's files to another directory.
pub const HOME_VARIABLE: &str = "FORKD_HOME";

/// There is no directory to keep files in.
#[derive(Debug, thiserror::Error)]
#[error(
    "neither {HOME_VARIABLE} nor XDG_DATA_HOME nor HOME is set to an absolute path: forkd has nowhere to keep its files"
)]
pub struct NoHome;

/// The directory of forkd's files: `$FORKD_HOME`, else `$XDG_DATA_HOME/forkd`, else `~/.local/share/forkd`.
pub fn directory() -> Result<PathBuf, NoHome> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(HOME_VARIABLE)
        .or_else(|| Some(absolute("XDG_DATA_HOME")?.join("forkd")))
        .or_else(|| Some(absolute("HOME")?.join(".local/share/forkd")))
        .ok_or(NoHome)
}

/// The environment variable that names another directory of kernels and images.
pub const LIBRARY_VARIABLE: &str = "FORKD_LIBRARY";

/// The directory of kernels and images: `$FORKD_LIBRARY`, else `library` among forkd's files. The machine sees the same one.
pub fn library() -> Result<PathBuf, NoHome> {
    match env::var_os(LIBRARY_VARIABLE).map(PathBuf::from).filter(|path| path.is_absolute()) {
        Some(library) => Ok(library),
        None => Ok(directory()?.join("library")),
    }
}

/// The directory that forkd's binaries lie in: that of the running one.
pub fn binaries() -> io::Result<PathBuf> {
    let executable = env::current_exe()?;
    executable.parent().map(Path::to_owned).ok_or_else(|| io::ErrorKind::NotFound.into())
}
