//! Where guests of a build run: on this host, or in the machine where this host's KVM cannot run guests.

use std::io;
use std::path::{Path, PathBuf};

use forkd_engine::agent::{Agent, AgentError};
use forkd_engine::boot::BootError;
use forkd_engine::shutdown::EndError;
use forkd_host::{home, kvm};
use forkd_image::kernels::KernelStore;
use forkd_machine::{Home, Machine, Name};
use forkd_proto::probe::KvmFinding;
use tokio::runtime::Runtime;

use super::here::Machinery;
use super::machine::InMachine;
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
pub trait Guests {
    /// Boots a guest on a base and its layers, the oldest first. What it writes will be in a new file, `top`.
    fn start(
        &self,
        runtime: &Runtime,
        base: &Path,
        layers: &[PathBuf],
        top: &Path,
    ) -> Result<Box<dyn RunningGuest>, GuestsError>;

    /// Forgets what was read of files that were replaced.
    fn forget_files(&self) {}
}

/// A guest whose agent answers. Unless it is finished, nothing is left of it.
pub trait RunningGuest {
    fn agent(&self) -> &Agent;

    /// What the guest's console says, as far as it is here.
    fn console(&self) -> Option<String> {
        None
    }

    /// Ends the guest in order. Its top layer is then whole.
    fn finish(self: Box<Self>, runtime: &Runtime) -> Result<(), GuestsError>;
}

/// Finds out where guests can run, and what they boot from.
pub fn find(options: &GuestsOptions, progress: &Progress) -> Result<Box<dyn Guests>, GuestsError> {
    let binaries = home::binaries();
    let binaries = binaries.map_err(|error| GuestsError::Io("tell where forkd's binaries are", error))?;
    let kernel = KernelStore::new(&options.library).ensure_default(progress)?;
    let initramfs = kernel.initramfs(&binaries.join("guest/forkd-agent"), progress)?;
    let machinery = Machinery {
        program: binaries.join("forkd-vmm"),
        kernel: kernel.vmlinux(),
        initramfs,
        vcpus: options.vcpus,
        memory_bytes: options.memory_bytes,
    };
    match kvm::probe(&binaries)?.kvm {
        KvmFinding::Good { .. } => Ok(Box::new(machinery)),
        _ => {
            let machine = Machine::open(&Home::new(home::directory()?), &options.machine)?;
            Ok(Box::new(InMachine { machine, machinery, library: options.library.clone() }))
        }
    }
}
