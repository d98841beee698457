//! Users and groups, read from the guest's `/etc/passwd` and `/etc/group`.
//!
//! A static binary has no name service, and an image may have no such files or odd ones. What cannot be read as an entry is
//! skipped; what is too large is cut off. The files are read anew for every question, because guests change them.

mod table;

use std::path::{Path, PathBuf};

pub use table::Users;

const ROOT: u32 = 0;

/// A user that can run a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    pub home: PathBuf,
    /// All of the user's groups, the first one included.
    pub groups: Vec<u32>,
}

#[derive(Debug, thiserror::Error)]
#[error("there is no user '{0}'")]
pub struct UnknownUser(pub String);

/// The user that this process runs as, with a made-up entry when the files know nothing of it.
pub fn current() -> User {
    let uid = rustix::process::getuid().as_raw();
    let gid = rustix::process::getgid().as_raw();
    Users::read().by_uid(uid).unwrap_or_else(|| {
        let (name, home) = if uid == ROOT { ("root".into(), "/root") } else { (uid.to_string(), "/") };
        User { name, uid, gid, home: Path::new(home).to_owned(), groups: vec![gid] }
    })
}
