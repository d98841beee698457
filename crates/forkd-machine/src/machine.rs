//! A machine on disk: its directory and what `init` was asked for.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::files::{self, FileError};
use crate::image;
use crate::name::Name;

/// The version of `machine.json`.
const FORMAT: u32 = 1;

/// Where machines and their images are kept.
#[derive(Debug, Clone)]
pub struct Home {
    root: PathBuf,
}

impl Home {
    /// `root` is forkd's own directory; the machines are two directories in it.
    pub fn new(root: impl Into<PathBuf>) -> Home {
        Home { root: root.into() }
    }

    /// One directory a machine.
    pub(crate) fn machines(&self) -> Result<PathBuf, FileError> {
        made(self.root.join("machines"))
    }

    /// One directory an image, named by what it was built from.
    pub(crate) fn images(&self) -> Result<PathBuf, FileError> {
        made(self.root.join("machine-images"))
    }

    /// The names of all machines, sorted.
    pub(crate) fn names(&self) -> Result<Vec<Name>, FileError> {
        let machines = self.machines()?;
        let entries = fs::read_dir(&machines).map_err(FileError::at("list", &machines))?;
        let mut names: Vec<Name> =
            entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
        names.sort();
        Ok(names)
    }
}

fn made(directory: PathBuf) -> Result<PathBuf, FileError> {
    fs::create_dir_all(&directory).map_err(FileError::at("make", &directory))?;
    Ok(directory)
}

/// What `init` was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineConfig {
    pub(crate) format: u32,
    pub cpus: u32,
    pub memory_mib: u64,
    pub disk_mib: u64,
    /// The image below the disk.
    pub image: String,
}

impl MachineConfig {
    pub(crate) fn new(cpus: u32, memory_mib: u64, disk_mib: u64, image: String) -> MachineConfig {
        MachineConfig { format: FORMAT, cpus, memory_mib, disk_mib, image }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("there is no machine {0}; make it with: forkd machine init --name {0}")]
    NoMachine(Name),
    #[error(
        "machine {name} was made by another version of forkd (format {format}, this is {FORMAT}); remove it with: forkd machine rm --force --name {name}"
    )]
    Format { name: Name, format: u32 },
    #[error(transparent)]
    File(#[from] FileError),
}

/// A machine that was initialised.
#[derive(Debug, Clone)]
pub struct Machine {
    pub name: Name,
    pub config: MachineConfig,
    directory: PathBuf,
}

impl Machine {
    /// Opens a machine by its name.
    pub fn open(home: &Home, name: &Name) -> Result<Machine, OpenError> {
        let directory = Machine::directory_of(home, name)?;
        let config = files::read_json::<MachineConfig>(&directory.join("machine.json"))?
            .ok_or_else(|| OpenError::NoMachine(name.clone()))?;
        if config.format != FORMAT {
            return Err(OpenError::Format { name: name.clone(), format: config.format });
        }
        Ok(Machine { name: name.clone(), config, directory })
    }

    /// Where a machine of this name is or would be.
    pub(crate) fn directory_of(home: &Home, name: &Name) -> Result<PathBuf, FileError> {
        Ok(home.machines()?.join(name.as_str()))
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Whether the machine was made from the image that this version of forkd makes.
    pub fn is_current(&self) -> bool {
        self.config.image == image::current_id()
    }

    /// What the machine has printed on its console since it was last started.
    pub fn console_log(&self) -> PathBuf {
        self.file("console.log")
    }

    /// Bytes that the machine's disk takes on the host, beyond the image that it shares.
    pub(crate) fn disk_used(&self) -> io::Result<u64> {
        use std::os::unix::fs::MetadataExt;
        Ok(fs::metadata(self.file("disk.qcow2"))?.blocks() * 512)
    }
}
