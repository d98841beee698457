//! `init`: makes a machine. It appears whole, under its name, or not at all.

use std::fs;
use std::path::Path;
use std::time::Duration;

use forkd_host::command::{self, CommandError};
use forkd_host::disk::{self, DiskError};
use forkd_host::tool::{self, MissingTool};
use forkd_proto::probe::ProbeReport;

use crate::files::{self, FileError};
use crate::image::{self, Image, ImageError};
use crate::lock::{self, LockError};
use crate::machine::{Home, Machine, MachineConfig};
use crate::name::Name;
use crate::qemu::Accelerator;
use crate::ssh::{self, SshError};
use crate::{OpenError, Progress};

const SCRATCH_PREFIX: &str = ".init-";

/// What a machine needs to come up; less, and its kernel runs out of memory.
const MIN_MEMORY_MIB: u64 = 512;
/// The disk is a layer over the image's file system, so it cannot be smaller.
const MIN_DISK_MIB: u64 = image::ROOT_MIB;
const DEFAULT_MEMORY_MIB: u64 = 4 << 10;
const DEFAULT_DISK_MIB: u64 = 20 << 10;
/// Room for the first start's writes; the disk grows as the machine writes.
const DISK_HEADROOM: u64 = 64 << 20;

/// What is asked for; `None` is the default.
#[derive(Debug, Default)]
pub struct InitOptions {
    pub cpus: Option<u32>,
    pub memory_mib: Option<u64>,
    pub disk_mib: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("there is a machine {0} already; remove it first with: forkd machine rm --name {0}")]
    Exists(Name),
    #[error("a machine needs at least {MIN_MEMORY_MIB} MiB of memory, not {0}")]
    Memory(u64),
    #[error("a machine needs a disk of at least {MIN_DISK_MIB} MiB, not {0}")]
    DiskSize(u64),
    #[error("a machine has 1 to 255 CPUs, not {0}")]
    Cpus(u32),
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error(transparent)]
    Tool(#[from] MissingTool),
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Ssh(#[from] SshError),
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error("cannot make the machine's disk: {0}")]
    QemuImg(String),
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// Makes a machine; builds the image first where it is not in the cache.
pub fn init(
    home: &Home,
    name: &Name,
    options: &InitOptions,
    host: &ProbeReport,
    progress: &dyn Progress,
) -> Result<Machine, InitError> {
    let directory = Machine::directory_of(home, name)?;
    if directory.exists() {
        return Err(InitError::Exists(name.clone()));
    }
    // Found out now rather than after the image was built.
    for tool in [tool::QEMU, tool::QEMU_IMG, tool::SSH, tool::SSH_KEYGEN] {
        tool.find()?;
    }
    let accelerator = Accelerator::choose(&host.kvm);
    let cpus = options.cpus.unwrap_or_else(|| accelerator.default_cpus());
    let memory_mib = options.memory_mib.unwrap_or(DEFAULT_MEMORY_MIB);
    let disk_mib = options.disk_mib.unwrap_or(DEFAULT_DISK_MIB);
    check(cpus, memory_mib, disk_mib)?;
    if accelerator == Accelerator::Tcg && cpus > 1 {
        progress.warn(
            "more than one CPU is unreliable under emulation: now and then a guest or the machine crashes",
        );
    }

    let (image, _image_lock) = Image::ensure(home, progress)?;
    progress.step(&format!("making machine {name}"));
    let machines = home.machines()?;
    let _lock = lock::lock(&machines, progress)?;
    files::remove_leftovers(&machines, SCRATCH_PREFIX)?;
    disk::require(&machines, DISK_HEADROOM, "a machine")?;
    let scratch = tempfile::Builder::new().prefix(SCRATCH_PREFIX).tempdir_in(&machines);
    let scratch = scratch.map_err(FileError::at("make a directory in", &machines))?;
    let config = MachineConfig::new(cpus, memory_mib, disk_mib, image.id.clone());
    fill(scratch.path(), name, &config, &image)?;
    if directory.exists() {
        return Err(InitError::Exists(name.clone()));
    }
    fs::rename(scratch.path(), &directory).map_err(FileError::at("make", &directory))?;
    // It has another name now, and there is nothing left to remove.
    let _ = scratch.keep();
    Ok(Machine::open(home, name)?)
}

fn check(cpus: u32, memory_mib: u64, disk_mib: u64) -> Result<(), InitError> {
    if !(1..=255).contains(&cpus) {
        return Err(InitError::Cpus(cpus));
    }
    if memory_mib < MIN_MEMORY_MIB {
        return Err(InitError::Memory(memory_mib));
    }
    if disk_mib < MIN_DISK_MIB {
        return Err(InitError::DiskSize(disk_mib));
    }
    Ok(())
}

fn fill(scratch: &Path, name: &Name, config: &MachineConfig, image: &Image) -> Result<(), InitError> {
    let shared = scratch.join("host");
    fs::create_dir(&shared).map_err(FileError::at("make", &shared))?;
    files::write(&shared.join("hostname"), format!("{name}\n").as_bytes())?;
    ssh::make_keys(scratch, &shared)?;

    let mut qemu_img = tool::QEMU_IMG.command()?;
    qemu_img.current_dir(scratch).args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]);
    qemu_img.arg(image.root_from_machine()).arg("disk.qcow2").arg(format!("{}M", config.disk_mib));
    let outcome = command::run(&mut qemu_img, "", Duration::from_secs(60))?;
    if !outcome.status.success() {
        return Err(InitError::QemuImg(outcome.complaint()));
    }
    Ok(files::write_json(&scratch.join("machine.json"), config)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_cannot_work_are_refused() {
        assert!(check(1, MIN_MEMORY_MIB, MIN_DISK_MIB).is_ok());
        assert!(matches!(check(0, 4096, 20480), Err(InitError::Cpus(0))));
        assert!(matches!(check(1, 511, 20480), Err(InitError::Memory(511))));
        assert!(matches!(check(1, 4096, 1), Err(InitError::DiskSize(1))));
    }
}
