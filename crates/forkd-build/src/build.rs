//! The recipe of a whole build: from what the caller has read to an image of the library.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forkd_host::disk;
use forkd_image::Progress;
use forkd_image::builds::{BuildCache, BuildCacheError};
use forkd_image::dockerfile::{BuildError, BuildOptions, Context, Dockerfile, build};
use forkd_image::host_environment::HostEnvironment;
use forkd_image::images::{BuiltImage, Image, ImageError, ImageStore, Name};
use forkd_image::recipe::Recipe;
use forkd_proto::agent::account::Account;

use crate::flatten::{FlattenError, flatten};
use crate::guests::FindGuests;
use crate::runner::{GuestRunner, RunError};

/// What steps of earlier builds may take on the disk.
const CACHE_LIMIT: u64 = 20 << 30;
/// What a small build writes: some layers and the image.
const DISK: u64 = 1 << 30;

#[derive(Debug, thiserror::Error)]
pub enum BuildImageError {
    #[error("cannot make the library")]
    Library(#[source] std::io::Error),
    #[error("{}", dockerfile.display())]
    Step { dockerfile: PathBuf, source: Box<BuildError<RunError>> },
    #[error(transparent)]
    Runner(#[from] RunError),
    #[error(transparent)]
    Flatten(#[from] FlattenError),
    #[error(transparent)]
    Cache(#[from] BuildCacheError),
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// What a build is made from. The requester has read the files; it knows which ones may be read.
#[derive(Debug)]
pub struct Build {
    /// As errors name it.
    pub path: PathBuf,
    pub dockerfile: Dockerfile,
    pub recipe: Recipe,
    pub context: Context,
    pub arguments: BTreeMap<String, String>,
    pub target: Option<String>,
    pub name: Option<Name>,
    /// Whether steps of earlier builds are used.
    pub uses_cache: bool,
    /// What steps see of the host.
    pub host: Option<HostEnvironment>,
    /// A user that every step finds, and the image has.
    pub account: Option<Account>,
}

/// Builds an image. Blocks; must not be called from an asynchronous task.
pub fn build_image(
    library: &Path,
    images: &ImageStore,
    wanted: Build,
    find: &FindGuests<'_>,
    progress: &dyn Progress,
) -> Result<Image, BuildImageError> {
    let cache = BuildCache::new(library);
    let image = make(library, images, &cache, wanted, find, progress)?;
    match cache.prune(CACHE_LIMIT, images) {
        // The last one to end does it.
        Err(BuildCacheError::Busy) => {}
        result => drop(result?),
    }
    Ok(image)
}

fn make(
    library: &Path,
    images: &ImageStore,
    cache: &BuildCache,
    wanted: Build,
    find: &FindGuests<'_>,
    progress: &dyn Progress,
) -> Result<Image, BuildImageError> {
    let Build { path, dockerfile, recipe, context, arguments, target, name, uses_cache, host, account } =
        wanted;
    std::fs::create_dir_all(library).map_err(BuildImageError::Library)?;
    disk::require(library, DISK, "a build").map_err(ImageError::from)?;
    let disk_bytes = recipe.disk_mib.unwrap_or(0) << 20;
    let mut runner = GuestRunner::new(images, cache, find, uses_cache, host, disk_bytes, progress)?;
    let options = BuildOptions { arguments, target, owns_workdir: account.is_some() };
    runner.account = account;
    let done = build(&dockerfile, &context, &options, &mut runner, progress)
        .map_err(|source| BuildImageError::Step { dockerfile: path, source: Box::new(source) })?;
    let built = BuiltImage {
        key: done.key,
        config: done.config,
        recipe: Some(recipe).filter(|recipe| *recipe != Recipe::default()),
        default_user: done.disk.default_user(),
        name,
    };
    if uses_cache && let Some(image) = images.find_built(&built)? {
        return Ok(image);
    }
    progress.step("making the image");
    let draft = cache.draft()?;
    let flat = draft.path().join("flat");
    flatten(done.disk.base(), &done.disk.layers(cache), &flat)?;
    let image = match uses_cache {
        true => images.adopt(&flat, built)?,
        false => images.adopt_anew(&flat, built)?,
    };
    if let Some(guests) = runner.guests().filter(|_| !uses_cache) {
        guests.forget_files();
    }
    Ok(image)
}
