//! Where guests of a build run: on this host, or in the machine where this host's KVM cannot run guests.

use std::io;
use std::path::{Path, PathBuf};

use forkd_engine::agent::{Agent, AgentError};
use forkd_engine::boot::BootError;
use forkd_engine::layered::{self, EndError};
use forkd_host::{home, kvm};
use forkd_image::kernels::KernelStore;
use forkd_machine::{Home, Machine, Name};
use forkd_proto::probe::KvmFinding;
use tokio::runtime::Runtime;

use super::LIMIT;
use super::here::{self, Machinery};
use super::machine::RemoteGuest;
use crate::progress::Progress;

/// What the user chose.
#[derive(Debug, Clone)]
pub struct GuestsOptions {
    pub library: PathBuf,
    pub vcpus: u8,
    pub memory_bytes: u64,
    pub machine: Name,
}

#[derive(Debug, thiserror::Error)]
pub enum GuestsError {
    #[error(transparent)]
    Home(#[from] home::NoHome),
    #[error(transparent)]
    Probe(#[from] kvm::ProbeError),
    #[error(transparent)]
    Kernel(#[from] forkd_image::kernels::KernelStoreError),
    #[error(transparent)]
    Open(#[from] forkd_machine::OpenError),
    #[error(transparent)]
    NotRunning(#[from] forkd_machine::NotRunning),
    #[error("the step's guest")]
    Boot(#[from] BootError),
    #[error(transparent)]
    End(#[from] EndError),
    #[error("the guest cannot be asked to end")]
    Ask(#[source] AgentError),
    #[error("machine {0} gave no guest")]
    Gone(Name),
    #[error("{} is not in the library that the machine sees", .0.display())]
    Outside(PathBuf),
    #[error("cannot {0}")]
    Io(&'static str, #[source] io::Error),
}

/// Makes guests.
#[derive(Debug)]
pub struct Guests {
    machinery: Machinery,
    library: PathBuf,
    /// `None` for this host.
    machine: Option<Machine>,
}

/// A guest whose agent answers. Unless it is finished, nothing is left of it.
#[derive(Debug)]
pub enum RunningGuest {
    Here(Box<here::Guest>),
    Machine(Box<RemoteGuest>, PathBuf),
}

impl Guests {
    /// Finds out where guests can run, and what they boot from.
    pub fn find(options: &GuestsOptions, progress: &Progress) -> Result<Guests, GuestsError> {
        let binaries =
            home::binaries().map_err(|error| GuestsError::Io("tell where forkd's binaries are", error))?;
        let kernel = KernelStore::new(&options.library).ensure_default(progress)?;
        let initramfs = kernel.initramfs(&binaries.join("guest/forkd-agent"), progress)?;
        let machine = match kvm::probe(&binaries)?.kvm {
            KvmFinding::Good { .. } => None,
            _ => Some(Machine::open(&Home::new(home::directory()?), &options.machine)?),
        };
        let machinery = Machinery {
            program: binaries.join("forkd-vmm"),
            kernel: kernel.vmlinux(),
            initramfs,
            vcpus: options.vcpus,
            memory_bytes: options.memory_bytes,
        };
        Ok(Guests { machinery, library: options.library.clone(), machine })
    }

    /// Boots a guest on a base and its layers, the oldest first. What it writes will be in a new file, `top`.
    pub fn start(
        &self,
        runtime: &Runtime,
        base: &Path,
        layers: &[PathBuf],
        top: &Path,
    ) -> Result<RunningGuest, GuestsError> {
        match &self.machine {
            None => {
                let guest = runtime.block_on(self.machinery.start(base, layers, top))?;
                Ok(RunningGuest::Here(Box::new(guest)))
            }
            Some(machine) => {
                let guest = RemoteGuest::start(machine, &self.library, &self.machinery, base, layers)?;
                Ok(RunningGuest::Machine(Box::new(guest), top.into()))
            }
        }
    }

    /// Lets the machine forget what it has read of files that were replaced: it believes that they never are.
    pub fn forget_files(&self) {
        let words = ["sh", "-c", "echo 3 >/proc/sys/vm/drop_caches"].map(String::from);
        if let Some(Ok(mut command)) = self.machine.as_ref().map(|machine| machine.exec(&words)) {
            let _ = command.status();
        }
    }
}

impl RunningGuest {
    pub fn agent(&self) -> &Agent {
        match self {
            RunningGuest::Here(guest) => &guest.vm.agent,
            RunningGuest::Machine(guest, _) => &guest.agent,
        }
    }

    /// What the guest's console says, as far as it is here.
    pub fn console(&self) -> Option<String> {
        match self {
            RunningGuest::Here(guest) => Some(layered::last_words(guest.directory.path())),
            RunningGuest::Machine(..) => None,
        }
    }

    /// Ends the guest in order. Its top layer is then whole.
    pub fn finish(self, runtime: &Runtime) -> Result<(), GuestsError> {
        match self {
            RunningGuest::Here(guest) => Ok(runtime.block_on(layered::shut_down(guest.vm, LIMIT))?),
            RunningGuest::Machine(guest, top) => {
                runtime.block_on(layered::ask_for_end(&guest.agent)).map_err(GuestsError::Ask)?;
                guest.finish(&top)
            }
        }
    }
}
