//! Guests of builds of a daemon that serves one command: on this host, or in the machine where this host's KVM cannot run guests.
//! The machine's own daemon does not build for it: what a build reads and writes is in this host's library, and everything but
//! the guests themselves is many times faster here than in an emulator.

mod machine;
mod sparse;

pub use machine::{GuestRequest, MachineError};
pub use sparse::write_sparse;

use std::path::{Path, PathBuf};

use forkd_build::{Guests, GuestsError, Machinery, MachineryOptions};
use forkd_daemon::build_guests::{BuildGuests, GuestShape};
use forkd_engine::Cgroups;
use forkd_host::{home, kvm};
use forkd_image::Progress;
use forkd_image::kernels::KernelStore;
use forkd_machine::{Home, Machine, Name};
use forkd_proto::causes::with_causes;
use forkd_proto::probe::KvmFinding;

use machine::InMachine;

/// Orders between [`machine`] and the guest's keeper there, one a line.
pub const READY: &str = "ready";
pub const END: &str = "end";

/// Guests wherever they can run.
#[derive(Debug, Clone)]
pub struct HostOrMachine {
    pub library: PathBuf,
    /// The guest's first program.
    pub agent: PathBuf,
    pub machine: Name,
}

/// Where guests of a build without a daemon are limited. Who may not make cgroups builds without, and is told so: its guests run
/// as the user's own program does.
pub fn cgroups(disks: &Path, tell: impl Fn(&str)) -> Option<Cgroups> {
    if std::env::var_os("FORKD_CGROUP").is_some_and(|value| value == "none") {
        return None;
    }
    let Some(mount) = forkd_host::cgroup::mount_point() else {
        tell("this host has no cgroup v2: build guests have no resource limits");
        return None;
    };
    match Cgroups::prepare(&mount.join("forkd"), disks) {
        Ok(cgroups) => Some(cgroups),
        Err(error) => {
            let why = with_causes(&error);
            tell(&format!("build guests have no resource limits: {why}"));
            None
        }
    }
}

impl BuildGuests for HostOrMachine {
    fn find(&self, shape: GuestShape, progress: &dyn Progress) -> Result<Box<dyn Guests>, GuestsError> {
        let binaries = home::binaries();
        let binaries = binaries.map_err(|error| GuestsError::Io("tell where forkd's binaries are", error))?;
        let wanted = MachineryOptions {
            kernels: KernelStore::new(&self.library),
            program: binaries.join("forkd-vmm"),
            agent: self.agent.clone(),
            directory: std::env::temp_dir(),
            vcpus: shape.vcpus,
            memory_bytes: shape.memory_bytes,
            network: shape.network,
            // Only those are asked for who can run here.
            cgroups: None,
        };
        let mut machinery = Machinery::find(&wanted, progress)?;
        match kvm::probe(&binaries).map_err(MachineError::from)?.kvm {
            KvmFinding::Good { .. } => {
                machinery.cgroups = cgroups(&machinery.directory, |why| progress.warn(why));
                Ok(Box::new(machinery))
            }
            _ => {
                let home = Home::new(home::directory().map_err(MachineError::from)?);
                let machine = Machine::open(&home, &self.machine).map_err(MachineError::from)?;
                Ok(Box::new(InMachine { machine, machinery, library: self.library.clone() }))
            }
        }
    }

    /// The engine of such a daemon does not know who else uses this host, and the machine's memory is the machine's already.
    fn are_counted(&self) -> bool {
        false
    }
}
