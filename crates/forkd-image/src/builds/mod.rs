//! Steps of builds, kept: what each has written to its disk, by the key that stands for all that went into it.
//!
//! ```text
//! builds/
//!   KEY-UNIQUE/      64 hexadecimal digits, and 16 that tell two results of one step from each other
//!     layer          a layer of a disk (sparse); never written to again
//!     step.json      what it lies on: the base image and the steps before, by directory name
//!   .tmp-XXXX/       being made or removed; swept when its lock is free
//!   .in-use          locked by every build; removing steps needs it exclusively, and does not wait
//! ```
//!
//! A layer holds blocks, so it is of use only on exactly the blocks that it was made on: the steps before are named by what
//! cannot be made twice, and the base image by the digest of its bytes. A step whose ground is gone is not found any more.

mod prune;
#[cfg(test)]
mod tests;

pub use prune::Pruned;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::files::{self, FileError, Lock, Temporary};
use crate::images::{Image, ImageError, ImageStore};

const LAYER: &str = "layer";
const STEP: &str = "step.json";
const IN_USE: &str = ".in-use";
const FORMAT: u32 = 1;

#[derive(Debug, thiserror::Error)]
pub enum BuildCacheError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error("cannot get random numbers")]
    Random(#[source] std::io::Error),
    #[error("a build is running; its steps cannot be removed now")]
    Busy,
}

/// What a layer lies on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ground {
    /// The base image, and the digest of its bytes.
    pub image: Digest,
    pub bytes: Digest,
    /// Directory names of the steps before, the oldest first.
    pub steps: Vec<String>,
}

impl Ground {
    /// An image that no step has changed.
    pub fn of(image: &Image) -> Ground {
        Ground { image: image.id(), bytes: image.metadata.digest, steps: Vec::new() }
    }
}

/// `step.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StepFile {
    format: u32,
    ground: Ground,
    /// The user of processes of an image with this disk, if its configuration names no user.
    default_user: String,
}

/// A step that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptStep {
    /// The name of its directory.
    pub name: String,
    pub ground: Ground,
    pub default_user: String,
}

/// The steps of one library.
#[derive(Debug, Clone)]
pub struct BuildCache {
    directory: PathBuf,
}

/// Keeps steps from being removed for as long as it lives.
#[derive(Debug)]
pub struct InUse {
    _lock: Lock,
}

/// A directory for a step under construction. It goes with this value.
#[derive(Debug)]
pub struct StepDraft {
    temporary: Temporary,
}

impl StepDraft {
    pub fn path(&self) -> &Path {
        self.temporary.path()
    }
}

impl BuildCache {
    /// Nothing is made until a step is.
    pub fn new(library: &Path) -> BuildCache {
        BuildCache { directory: library.join("builds") }
    }

    /// Says that a build is running.
    pub fn hold(&self) -> Result<InUse, BuildCacheError> {
        Ok(self.lock(FlockOperation::LockShared)?)
    }

    fn lock(&self, operation: FlockOperation) -> Result<InUse, FileError> {
        fs::create_dir_all(&self.directory).map_err(FileError::at("make", &self.directory))?;
        let path = self.directory.join(IN_USE);
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(FileError::at("open", &path))?;
        Ok(InUse { _lock: Lock::new(file, operation).map_err(FileError::at("lock", &path))? })
    }

    /// A place for a step on its way.
    pub fn draft(&self) -> Result<StepDraft, BuildCacheError> {
        Ok(StepDraft { temporary: Temporary::new(&self.directory)? })
    }

    /// Keeps a layer, which is moved: a file in the draft's directory.
    pub fn keep(
        &self,
        draft: &StepDraft,
        layer: &Path,
        key: Digest,
        ground: Ground,
        default_user: String,
    ) -> Result<KeptStep, BuildCacheError> {
        let unique = getrandom::u64().map_err(|error| BuildCacheError::Random(error.into()))?;
        let name = format!("{}-{unique:016x}", key.hex());
        let inner = draft.path().join("step");
        fs::create_dir(&inner).map_err(FileError::at("make", &inner))?;
        fs::rename(layer, inner.join(LAYER)).map_err(FileError::at("move", layer))?;
        let step = StepFile { format: FORMAT, ground: ground.clone(), default_user: default_user.clone() };
        files::write_json(&inner.join(STEP), &step)?;
        draft.temporary.publish(&inner, &self.directory.join(&name))?;
        Ok(KeptStep { name, ground, default_user })
    }

    /// The newest result of a step, if all that it lies on is still there. It is then used, and so is all below it.
    pub fn find(&self, key: Digest, images: &ImageStore) -> Result<Option<KeptStep>, BuildCacheError> {
        let prefix = format!("{}-", key.hex());
        let mut found = Vec::new();
        for name in files::names(&self.directory)?.into_iter().filter(|name| name.starts_with(&prefix)) {
            if let Some(step) = self.load(&name)?
                && self.is_sound(&step, images)?
            {
                found.push((self.used(&name), step));
            }
        }
        let Some((_, step)) = found.into_iter().max_by_key(|(used, _)| *used) else { return Ok(None) };
        for name in step.ground.steps.iter().chain([&step.name]) {
            self.touch(name)?;
        }
        Ok(Some(step))
    }

    /// The layer of a step.
    pub fn layer(&self, name: &str) -> PathBuf {
        self.directory.join(name).join(LAYER)
    }

    /// `None` for what is no step, or one of another format.
    fn load(&self, name: &str) -> Result<Option<KeptStep>, FileError> {
        let step = files::read_json::<StepFile>(&self.directory.join(name).join(STEP))?;
        Ok(step.filter(|step| step.format == FORMAT).map(|step| KeptStep {
            name: name.to_owned(),
            ground: step.ground,
            default_user: step.default_user,
        }))
    }

    fn is_sound(&self, step: &KeptStep, images: &ImageStore) -> Result<bool, ImageError> {
        let is_there = |name: &String| {
            let plain = name.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
            plain && self.layer(name).is_file()
        };
        if !step.ground.steps.iter().chain([&step.name]).all(is_there) {
            return Ok(false);
        }
        let image = images.get(step.ground.image)?;
        Ok(image.is_some_and(|image| image.metadata.digest == step.ground.bytes))
    }

    /// When a step was last used, to its file's time.
    fn used(&self, name: &str) -> SystemTime {
        let time = fs::metadata(self.directory.join(name).join(STEP)).and_then(|file| file.modified());
        time.unwrap_or(SystemTime::UNIX_EPOCH)
    }

    fn touch(&self, name: &str) -> Result<(), FileError> {
        let path = self.directory.join(name).join(STEP);
        let touch = || File::options().write(true).open(&path)?.set_modified(SystemTime::now());
        touch().map_err(FileError::at("touch", &path))
    }
}
