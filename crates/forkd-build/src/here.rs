//! Guests of a build on this host.

use std::path::{Path, PathBuf};

use forkd_engine::Cgroups;
use forkd_engine::agent::Agent;
use forkd_engine::boot::{BootedVm, DiskPlan, Plan, boot, command_line, last_words};
use forkd_engine::shutdown::shut_down;
use forkd_image::Progress;
use forkd_image::kernels::KernelStore;

use crate::LIMIT;
use crate::guests::{Guests, GuestsError, RunningGuest};
use crate::network::GuestNetwork;
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
    /// Whether guests have a network.
    pub network: bool,
    /// Where guests are limited to what they have, as sandboxes are.
    pub cgroups: Option<Cgroups>,
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
    /// Whether guests have a network.
    pub network: bool,
    /// Where guests are limited to what they have.
    pub cgroups: Option<Cgroups>,
}

/// A guest's VM, and what it needs as long as it runs.
#[derive(Debug)]
pub struct BuildVm {
    pub vm: BootedVm,
    /// After the VM.
    pub network: Option<GuestNetwork>,
}

/// A guest, with the directory that its socket and its console are in.
struct Guest {
    vm: BuildVm,
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
            network: options.network,
            cgroups: options.cgroups.clone(),
        })
    }

    fn plan(&self, disk: &DiskPlan, directory: &Path, network: Option<&GuestNetwork>) -> Plan {
        let words = network.map(|_| forkd_net::plan::guest_words()).unwrap_or_default();
        Plan {
            program: self.program.clone(),
            kernel: self.kernel.clone(),
            initramfs: self.initramfs.clone(),
            disk: disk.clone(),
            vcpus: self.vcpus,
            memory_bytes: self.memory_bytes,
            command_line: command_line(forkd_host::is_emulated()) + &words,
            network: network.and_then(GuestNetwork::plan),
            cgroups: self.cgroups.clone(),
            directory: directory.into(),
            limit: LIMIT,
        }
    }

    /// Boots a guest whose socket is in `directory`. What has to be changed on this host for its network is said.
    pub async fn boot(
        &self,
        disk: &DiskPlan,
        directory: &Path,
        say: impl Fn(&str),
    ) -> Result<BuildVm, GuestsError> {
        let network = match self.network && forkd_net::Host::is_permitted() {
            true => {
                let (network, prepared) = GuestNetwork::make().await?;
                prepared.changes.iter().for_each(|change| say(change));
                Some(network)
            }
            false => None,
        };
        let vm = boot(&self.plan(disk, directory, network.as_ref())).await?;
        Ok(BuildVm { vm, network })
    }
}

impl Guests for Machinery {
    fn start(&self, wait: &Wait<'_>, disk: &DiskPlan) -> Result<Box<dyn RunningGuest>, GuestsError> {
        let make = || {
            std::fs::create_dir_all(&self.directory)?;
            tempfile::Builder::new().prefix("forkd-build-").tempdir_in(&self.directory)
        };
        let directory = make().map_err(|error| GuestsError::Io("make a directory", error))?;
        let say = |text: &str| wait.progress().warn(text);
        let vm = wait.until(self.boot(disk, directory.path(), say))??;
        Ok(Box::new(Guest { vm, directory }))
    }
}

impl RunningGuest for Guest {
    fn agent(&self) -> &Agent {
        &self.vm.vm.agent
    }

    fn console(&self) -> Option<String> {
        Some(last_words(self.directory.path()))
    }

    fn has_network(&self) -> bool {
        self.vm.network.is_some()
    }

    fn finish(self: Box<Self>, wait: &Wait<'_>) -> Result<(), GuestsError> {
        Ok(wait.until(shut_down(self.vm.vm, LIMIT))??)
    }
}
