//! Guests of a build on this host.

use std::path::{Path, PathBuf};

use forkd_engine::agent::Agent;
use forkd_engine::boot::{BootedVm, Plan};
use forkd_engine::layered;
use tokio::runtime::Runtime;

use super::LIMIT;
use super::guests::{Guests, GuestsError, RunningGuest};

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
struct Guest {
    vm: BootedVm,
    directory: tempfile::TempDir,
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
}

impl Guests for Machinery {
    fn start(
        &self,
        runtime: &Runtime,
        base: &Path,
        layers: &[PathBuf],
        top: &Path,
    ) -> Result<Box<dyn RunningGuest>, GuestsError> {
        // Not beside its disk: the path of a socket must be short.
        let directory = tempfile::Builder::new().prefix("forkd-build-").tempdir();
        let directory = directory.map_err(|error| GuestsError::Io("make a directory", error))?;
        let vm = runtime.block_on(self.boot(base, layers, top, directory.path()))?;
        Ok(Box::new(Guest { vm, directory }))
    }
}

impl RunningGuest for Guest {
    fn agent(&self) -> &Agent {
        &self.vm.agent
    }

    fn console(&self) -> Option<String> {
        Some(layered::last_words(self.directory.path()))
    }

    fn finish(self: Box<Self>, runtime: &Runtime) -> Result<(), GuestsError> {
        Ok(runtime.block_on(layered::shut_down(self.vm, LIMIT))?)
    }
}
