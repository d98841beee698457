//! Paths of the engine's files.
//!
//! ```text
//! ROOT/
//!   snapshots/           a store of `forkd-store`
//!   names/NAME           further names of snapshots
//!   layers/ID            layers of disks; many VMs may share a frozen one
//!   partial/DIGEST       data of a pull that failed; removed after a day
//!   arriving/TAG         bases of a snapshot that is being received
//!   run/BOOT/            state that ends with the host
//!     sandboxes/ID/      record.json  control  vsock  console.log
//!     zygotes/TAG/       record.json  control
//!     promised/ID        an empty file: all sandboxes of one request are promised
//!     passing/           guests that end with the daemon
//! ```
//!
//! `BOOT` is the beginning of the host's boot id: other directories beside it belong to VMs that ended with the host, and are removed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use forkd_store::Tag;

use crate::ids::{LayerId, SandboxId};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Enough of it to tell boots apart; paths of sockets must be short.
const BOOT_DIGITS: usize = 8;

#[derive(Debug, Clone)]
pub struct Paths {
    root: PathBuf,
    run: PathBuf,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {}", path.display())]
pub struct PathError {
    pub verb: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

impl PathError {
    pub(crate) fn at(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PathError {
        move |source| PathError { verb, path: path.into(), source }
    }
}

impl Paths {
    /// Makes what is missing, and removes what ended with an earlier boot of the host.
    pub fn new(root: &Path) -> Result<Paths, PathError> {
        let boot = fs::read_to_string(BOOT_ID).map_err(PathError::at("read", Path::new(BOOT_ID)))?;
        let boot: String = boot.chars().take(BOOT_DIGITS).collect();
        let runs = root.join("run");
        let paths = Paths { root: root.into(), run: runs.join(&boot) };
        for directory in [
            paths.snapshots(),
            paths.names(),
            paths.layers(),
            paths.partial(),
            paths.arriving(),
            paths.sandboxes(),
            paths.zygotes(),
            paths.promises(),
        ] {
            fs::create_dir_all(&directory).map_err(PathError::at("create", &directory))?;
        }
        match fs::remove_dir_all(paths.temporary()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(PathError::at("remove", &paths.temporary())(error));
            }
            _ => {}
        }
        for entry in fs::read_dir(&runs).map_err(PathError::at("list", &runs))? {
            let path = entry.map_err(PathError::at("list", &runs))?.path();
            if path != paths.run {
                fs::remove_dir_all(&path).map_err(PathError::at("remove", &path))?;
            }
        }
        Ok(paths)
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn snapshots(&self) -> PathBuf {
        self.root.join("snapshots")
    }

    pub fn names(&self) -> PathBuf {
        self.root.join("names")
    }

    pub fn layers(&self) -> PathBuf {
        self.root.join("layers")
    }

    pub fn partial(&self) -> PathBuf {
        self.root.join("partial")
    }

    pub fn arriving(&self) -> PathBuf {
        self.root.join("arriving")
    }

    pub fn layer(&self, id: &LayerId) -> PathBuf {
        self.layers().join(id.as_str())
    }

    pub fn sandboxes(&self) -> PathBuf {
        self.run.join("sandboxes")
    }

    pub fn sandbox(&self, id: &SandboxId) -> PathBuf {
        self.sandboxes().join(id.as_str())
    }

    /// Guests that end with the daemon. Those of a killed daemon are removed when the next one starts.
    pub fn temporary(&self) -> PathBuf {
        self.run.join("passing")
    }

    /// The promises of groups of sandboxes.
    pub fn promises(&self) -> PathBuf {
        self.run.join("promised")
    }

    pub fn zygotes(&self) -> PathBuf {
        self.run.join("zygotes")
    }

    pub fn zygote(&self, tag: &Tag) -> PathBuf {
        self.zygotes().join(tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ended_with_another_boot_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let old = root.path().join("run/00000000/sandboxes/i1/control");
        fs::create_dir_all(&old).unwrap();
        let id: SandboxId = "iabc".parse().unwrap();
        let paths = Paths::new(root.path()).unwrap();
        fs::create_dir(paths.sandbox(&id)).unwrap();
        fs::create_dir_all(paths.temporary().join("guest")).unwrap();
        let again = Paths::new(root.path()).unwrap();
        assert!(again.sandbox(&id).is_dir());
        assert!(!old.exists() && !again.temporary().exists());
        assert_eq!(fs::read_dir(root.path().join("run")).unwrap().count(), 1);
    }
}
