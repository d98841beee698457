//! The machine's image: kernel, initial RAM disk and root file system, built once and shared by all machines made from
//! the same inputs.

mod build;
mod recipe;

pub(crate) use recipe::id as current_id;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use forkd_host::apt::MirrorProblem;
use forkd_host::command::CommandError;
use forkd_host::disk::DiskError;
use forkd_host::tool::MissingTool;
use forkd_image::kernel::KernelError;
use forkd_image::kernels::DependsError;

use crate::files::{self, FileError};
use crate::lock::{self, DirectoryLock, LockError};
use crate::machine::{Home, Machine};
use crate::{OpenError, Progress};

const KERNEL: &str = "vmlinux";
const INITRD: &str = "initrd";
const ROOT: &str = "root.ext4";

/// The size of the root file system before it is grown to the size of a machine's disk. Sparse: it takes 650 MB.
pub(crate) const ROOT_MIB: u64 = 4 << 10;

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error(transparent)]
    Tool(#[from] MissingTool),
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error("{problem}\n{step} failed:\n{log}")]
    Unreachable { problem: MirrorProblem, step: &'static str, log: String },
    #[error("{step} failed:\n{log}")]
    Failed { step: &'static str, log: String },
    #[error("the image has no kernel in /boot")]
    NoKernel,
    #[error("cannot use the image's kernel: {0}")]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Modules(#[from] DependsError),
}

impl ImageError {
    fn mirror_problem(&self) -> Option<&MirrorProblem> {
        match self {
            ImageError::Unreachable { problem, .. } => Some(problem),
            _ => None,
        }
    }
}

/// A built image.
#[derive(Debug)]
pub(crate) struct Image {
    pub id: String,
    directory: PathBuf,
}

impl Image {
    /// The image with this id, if it is in the cache.
    pub fn open(home: &Home, id: &str) -> Result<Option<Image>, FileError> {
        let directory = home.images()?.join(id);
        let whole = directory.join(KERNEL).is_file();
        Ok(whole.then(|| Image { id: id.into(), directory }))
    }

    /// The image of this version of forkd, built now unless it is in the cache. While the lock that comes with it is
    /// held, no image is removed.
    pub fn ensure(home: &Home, progress: &dyn Progress) -> Result<(Image, DirectoryLock), ImageError> {
        let id = current_id();
        let images = home.images()?;
        let lock = lock::lock(&images, progress)?;
        let image = match Image::open(home, &id)? {
            Some(image) => image,
            None => {
                let directory = images.join(&id);
                build::build(&images, &directory, progress)?;
                Image { id, directory }
            }
        };
        Ok((image, lock))
    }

    pub fn kernel(&self) -> PathBuf {
        self.directory.join(KERNEL)
    }

    pub fn initrd(&self) -> PathBuf {
        self.directory.join(INITRD)
    }

    /// The root file system's path as seen from a machine's directory, so that forkd's files can be moved together.
    pub fn root_from_machine(&self) -> PathBuf {
        Path::new("../../machine-images").join(&self.id).join(ROOT)
    }
}

/// Removes the images that no machine uses, and returns how many bytes that gave back.
pub fn prune(home: &Home, progress: &dyn Progress) -> Result<u64, ImageError> {
    let images = home.images()?;
    let _lock = lock::lock(&images, progress)?;
    let mut used = BTreeSet::new();
    for name in home.names()? {
        match Machine::open(home, &name) {
            Ok(machine) => drop(used.insert(machine.config.image)),
            // What a machine that cannot be read needs is not known, so nothing may go.
            Err(OpenError::File(error)) => return Err(error.into()),
            Err(OpenError::NoMachine(_)) => {}
            Err(OpenError::Format { .. }) => return Ok(0),
        }
    }
    build::remove_leftovers(&images)?;
    let mut freed = 0;
    for entry in fs::read_dir(&images).map_err(FileError::at("list", &images))? {
        let path = entry.map_err(FileError::at("list", &images))?.path();
        let is_used = path.file_name().is_some_and(|name| used.contains(&*name.to_string_lossy()));
        if !is_used {
            freed += size_on_disk(&path).unwrap_or(0);
            fs::remove_dir_all(&path).map_err(FileError::at("remove", &path))?;
        }
    }
    Ok(freed)
}

fn size_on_disk(directory: &Path) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    fs::read_dir(directory)?.map(|entry| Ok(entry?.metadata()?.blocks() * 512)).sum()
}

/// The last lines of a step's log, as an error.
fn failed(step: &'static str, log: &Path) -> ImageError {
    let log = files::tail(log, 12);
    match MirrorProblem::of(&log) {
        Some(problem) => ImageError::Unreachable { problem, step, log },
        None => ImageError::Failed { step, log },
    }
}
