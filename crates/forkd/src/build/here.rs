//! Guests of a build on this host.

use std::path::{Path, PathBuf};

use forkd_engine::boot::{BootedVm, Plan};
use forkd_engine::layered;

use super::LIMIT;
use super::guests::GuestsError;

/// A guest reboots by ending, and its console is the log.
const COMMAND_LINE: &str = "console=ttyS0 quiet panic=-1";
/// What a guest under QEMU's emulated SVM needs; `forkd dev` has the reasons.
const EMULATED: &str = " noxsave nmi_watchdog=0 watchdog_thresh=30 tsc=reliable mitigations=off";

/// What every guest of a build has.
#[derive(Debug, Clone)]
pub struct Machinery {
    /// `forkd-vmm`.
    pub program: PathBuf,
    pub kernel: PathBuf,
    pub initramfs: PathBuf,
    pub vcpus: u8,
    pub memory_bytes: u64,
}

/// A guest, with the directory that its socket and its console are in.
#[derive(Debug)]
pub struct Guest {
    pub vm: BootedVm,
    pub directory: tempfile::TempDir,
}

impl Machinery {
    fn plan(&self, base: &Path, directory: &Path) -> Plan {
        let emulated = if forkd_host::is_emulated() { EMULATED } else { "" };
        Plan {
            program: self.program.clone(),
            kernel: self.kernel.clone(),
            initramfs: self.initramfs.clone(),
            base: base.into(),
            disk_bytes: 0,
            vcpus: self.vcpus,
            memory_bytes: self.memory_bytes,
            command_line: format!("{COMMAND_LINE}{emulated}"),
            directory: directory.into(),
            limit: LIMIT,
        }
    }

    /// Boots a guest whose socket is in `directory`.
    pub async fn boot(
        &self,
        base: &Path,
        layers: &[PathBuf],
        top: &Path,
        directory: &Path,
    ) -> Result<BootedVm, GuestsError> {
        Ok(layered::boot(&self.plan(base, directory), layers, top).await?)
    }

    /// Boots a guest in a directory of its own. Not beside its disk: the path of a socket must be short.
    pub async fn start(&self, base: &Path, layers: &[PathBuf], top: &Path) -> Result<Guest, GuestsError> {
        let directory = tempfile::Builder::new().prefix("forkd-build-").tempdir();
        let directory = directory.map_err(|error| GuestsError::Io("make a directory", error))?;
        let vm = self.boot(base, layers, top, directory.path()).await?;
        Ok(Guest { vm, directory })
    }
}
