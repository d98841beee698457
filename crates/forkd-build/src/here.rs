//! Guests of a build on this host.

use std::path::{Path, PathBuf};

use forkd_engine::agent::Agent;
use forkd_engine::boot::{BootedVm, DiskPlan, Plan, boot, command_line, last_words};
use forkd_engine::shutdown::shut_down;
use forkd_image::Progress;
use forkd_image::kernels::KernelStore;

use crate::LIMIT;
use crate::guests::{Guests, GuestsError, RunningGuest};
use crate::wait::Wait;

/// What guests of a build are made with.
#[derive(Debug, Clone)]
pub struct MachineryOptions {
    pub kernels: KernelStore,
    /// `forkd-vmm`.
    pub program: PathBuf,
    /// The guest's first program.
    pub agent: PathBuf,
    /// Where directories with the guests' sockets are made. Not beside their disks: the path of a socket must be short.
    pub directory: PathBuf,
    pub vcpus: u8,
    pub memory_bytes: u64,
}

/// What every guest of a build has.
#[derive(Debug, Clone)]
pub struct Machinery {
    /// `forkd-vmm`.
    pub program: PathBuf,
    pub kernel: PathBuf,
    pub initramfs: PathBuf,
    /// Where directories with the guests' sockets are made.
    pub directory: PathBuf,
    pub vcpus: u8,
    pub memory_bytes: u64,
}

/// A guest, with the directory that its socket and its console are in.
struct Guest {
    vm: BootedVm,
    directory: tempfile::TempDir,
}

impl Machinery {
    /// Takes the default kernel. The first time, that is a download.
    pub fn find(options: &MachineryOptions, progress: &dyn Progress) -> Result<Machinery, GuestsError> {
        let kernel = options.kernels.ensure_default(progress)?;
        let initramfs = kernel.initramfs(&options.agent, progress)?;
        Ok(Machinery {
            program: options.program.clone(),
            kernel: kernel.vmlinux(),
            initramfs,
            directory: options.directory.clone(),
            vcpus: options.vcpus,
            memory_bytes: options.memory_bytes,
        })
    }

    fn plan(&self, disk: &DiskPlan, directory: &Path) -> Plan {
        Plan {
            program: self.program.clone(),
            kernel: self.kernel.clone(),
            initramfs: self.initramfs.clone(),
            disk: disk.clone(),
            vcpus: self.vcpus,
            memory_bytes: self.memory_bytes,
            command_line: command_line(forkd_host::is_emulated()),
            directory: directory.into(),
            limit: LIMIT,
        }
    }

    /// Boots a guest whose socket is in `directory`.
    pub async fn boot(&self, disk: &DiskPlan, directory: &Path) -> Result<BootedVm, GuestsError> {
        Ok(boot(&self.plan(disk, directory)).await?)
    }
}

impl Guests for Machinery {
    fn start(&self, wait: &Wait<'_>, disk: &DiskPlan) -> Result<Box<dyn RunningGuest>, GuestsError> {
        let make = || {
            std::fs::create_dir_all(&self.directory)?;
            tempfile::Builder::new().prefix("forkd-build-").tempdir_in(&self.directory)
        };
        let directory = make().map_err(|error| GuestsError::Io("make a directory", error))?;
        let vm = wait.until(self.boot(disk, directory.path()))??;
        Ok(Box::new(Guest { vm, directory }))
    }
}

impl RunningGuest for Guest {
    fn agent(&self) -> &Agent {
        &self.vm.agent
    }

    fn console(&self) -> Option<String> {
        Some(last_words(self.directory.path()))
    }

    fn finish(self: Box<Self>, wait: &Wait<'_>) -> Result<(), GuestsError> {
        Ok(wait.until(shut_down(self.vm, LIMIT))??)
    }
}
