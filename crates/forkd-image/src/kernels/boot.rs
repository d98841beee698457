//! The initial RAM disk of a kernel: the agent as `/init` and the modules, `/modules/NN-NAME.ko`.
//!
//! The same agent and modules make the same bytes, so it is kept under the digest of what went in.

use std::fs;
use std::path::{Path, PathBuf};

use super::{KernelStoreError, MODULES, StoredKernel};
use crate::digest::Hasher;
use crate::files::{self, FileError};
use crate::initramfs::Initramfs;
use crate::progress::Progress;

/// Changes with the layout inside.
const FORMAT: &str = "forkd initramfs 2";
/// Directories that the agent mounts on before it has a root disk.
const DIRECTORIES: [&str; 5] = ["dev", "modules", "proc", "root", "sys"];

impl StoredKernel {
    /// The initial RAM disk with this agent, made now unless it is there.
    pub fn initramfs(&self, agent: &Path, progress: &dyn Progress) -> Result<PathBuf, KernelStoreError> {
        let read = |path: &Path| fs::read(path).map_err(FileError::at("read", path));
        let agent = read(agent)?;
        let hasher = Hasher::new(FORMAT).part(self.metadata.digest.hex().as_bytes()).part(&agent);
        let name = format!("initramfs-{}", hasher.finish().short());
        let path = self.cache.join(&name);
        if path.is_file() {
            return Ok(path);
        }
        // Any writer of a shared library may have made it there.
        if self.shared && files::is_listed(&self.path, &name)? {
            return Ok(self.path.join(&name));
        }
        progress.step(&format!("making the initial RAM disk for kernel {}", self.metadata.version));
        let mut modules = Vec::new();
        for name in &self.metadata.modules {
            modules.push((name, read(&self.path.join(MODULES).join(name))?));
        }
        let build = || {
            let mut archive = Initramfs::new();
            for directory in DIRECTORIES {
                archive.directory(directory)?;
            }
            // The kernel opens it for the first program, which has nothing to speak to otherwise.
            archive.device("dev/console", 0o600, 5, 1)?;
            archive.file("init", 0o755, &agent)?;
            for (name, content) in &modules {
                archive.file(&format!("modules/{name}"), 0o644, content)?;
            }
            archive.finish()
        };
        let archive = build().map_err(FileError::at("make", &path))?;
        fs::create_dir_all(&self.cache).map_err(FileError::at("make", &self.cache))?;
        files::write(&path, &archive)?;
        Ok(path)
    }
}
