//! Which snapshots in registries are trusted: a file of the daemon's, read anew for each pull.

use std::io;
use std::path::{Path, PathBuf};

use forkd_hub::trust::{Policy, PolicyError};

use crate::config::Config;
use crate::whole_file;

/// In forkd's home, if nothing else is said.
const FILE: &str = "snapshot-policy.toml";

/// Where the policy is.
#[derive(Debug, Clone)]
pub struct PolicyFile {
    path: PathBuf,
    /// Whether it was asked for. One that was and is not there is an error, and not no policy.
    required: bool,
}

/// There is a policy that cannot be used. Nothing is pulled then.
#[derive(Debug, thiserror::Error)]
pub enum PolicyFileError {
    #[error("cannot read the snapshot policy {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("the snapshot policy {} is not UTF-8", path.display())]
    Encoding { path: PathBuf },
    #[error("the snapshot policy {} cannot be used", path.display())]
    Policy { path: PathBuf, source: PolicyError },
}

impl PolicyFile {
    pub fn new(config: &Config) -> PolicyFile {
        match &config.snapshot_policy {
            Some(path) => PolicyFile { path: path.clone(), required: true },
            None => PolicyFile { path: config.home.join(FILE), required: false },
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The current policy; nothing if the file does not exist.
    pub fn read(&self) -> Result<Option<Policy>, PolicyFileError> {
        let path = || self.path.clone();
        let failed = |source| PolicyFileError::Read { path: path(), source };
        let Some(text) = whole_file::read(&self.path, Policy::MAX_BYTES).map_err(failed)? else {
            // A link to nowhere is a policy that cannot be read.
            return match self.required || self.path.is_symlink() {
                true => Err(failed(io::ErrorKind::NotFound.into())),
                false => Ok(None),
            };
        };
        let text = String::from_utf8(text).map_err(|_| PolicyFileError::Encoding { path: path() })?;
        let policy = Policy::parse(&text).map_err(|source| PolicyFileError::Policy { path: path(), source });
        policy.map(Some)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_policy_that_cannot_be_used_is_not_no_policy() {
        let home = tempfile::tempdir().unwrap();
        let file = PolicyFile { path: home.path().join(FILE), required: false };
        assert!(file.read().unwrap().is_none());
        fs::write(&file.path, "default = \"accept\"").unwrap();
        assert!(file.read().unwrap().is_some());

        let refused = |says: &str| {
            let error = crate::error::chain(&file.read().unwrap_err());
            assert!(error.contains(says) && error.contains(FILE), "{error}");
        };
        for (text, says) in [
            (&b"garbage"[..], "cannot be used"),
            (b"default = \"\xff\"", "not UTF-8"),
            (&[b'#'; (1 << 20) + 1], "bytes, expected at most"),
        ] {
            fs::write(&file.path, text).unwrap();
            refused(says);
        }
        fs::remove_file(&file.path).unwrap();
        std::os::unix::fs::symlink("nowhere", &file.path).unwrap();
        refused("cannot read");
        fs::remove_file(&file.path).unwrap();
        fs::create_dir(&file.path).unwrap();
        refused("cannot read");
        fs::remove_dir(&file.path).unwrap();
        assert!(file.read().unwrap().is_none());
        assert!(PolicyFile { required: true, ..file.clone() }.read().is_err());
    }
}
