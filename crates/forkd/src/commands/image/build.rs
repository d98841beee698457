//! `forkd image build`.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use forkd_host::{disk, home};
use forkd_image::builds::{BuildCache, BuildCacheError};
use forkd_image::dockerfile::{BuildOptions, Context, build, parse};
use forkd_image::host_environment::HostEnvironment;
use forkd_image::images::{BuiltImage, Image, ImageError, ImageStore};
use forkd_image::recipe::Recipe;

use super::show;
use crate::arguments::ImageBuildOptions;
use crate::build::{GuestRunner, GuestsOptions, flatten};
use crate::error::CliError;
use crate::exit::Exit;
use crate::progress::Progress;

/// What steps of earlier builds may take on the disk.
const CACHE_LIMIT: u64 = 20 << 30;
/// No Dockerfile is larger.
const MAX_DOCKERFILE: u64 = 4 << 20;
/// What a small build writes: some layers and the image.
const DISK: u64 = 1 << 30;

pub fn run(options: &ImageBuildOptions) -> Result<Exit, CliError> {
    let library = home::library()?;
    let images = ImageStore::new(&library);
    let cache = BuildCache::new(&library);
    let image = build_image(options, &library, &images, &cache)?;
    match cache.prune(CACHE_LIMIT, &images) {
        // The last one to end does it.
        Err(BuildCacheError::Busy) => {}
        result => drop(result?),
    }
    show(&image, &options.output)?;
    Ok(Exit::Success)
}

fn build_image(
    options: &ImageBuildOptions,
    library: &Path,
    images: &ImageStore,
    cache: &BuildCache,
) -> Result<Image, CliError> {
    let path = options.file.clone().unwrap_or_else(|| options.directory.join("Dockerfile"));
    let text = read(&path).map_err(|source| CliError::Dockerfile { path: path.clone(), source })?;
    let dockerfile = parse(&text)?;
    let recipe = Recipe::read(directory_of(&path))?;
    let context = Context::open(&options.directory)?;
    let host = if options.host_certs { Some(HostEnvironment::collect()?) } else { None };
    std::fs::create_dir_all(library).map_err(|error| CliError::Io("make the library", error))?;
    disk::require(library, DISK, "a build").map_err(ImageError::from)?;
    let guests = GuestsOptions {
        library: library.into(),
        vcpus: options.vcpus,
        memory_bytes: options.memory << 20,
        machine: options.machine.clone(),
    };
    let progress = Progress::new();
    let mut runner = GuestRunner::new(images, cache, guests, !options.no_cache, host, &progress)?;
    let wanted = BuildOptions {
        arguments: options.build_args.iter().cloned().collect(),
        target: options.target.clone(),
    };
    let done = build(&dockerfile, &context, &wanted, &mut runner, &progress)
        .map_err(|source| CliError::Build { dockerfile: path, source: Box::new(source) })?;
    let built = BuiltImage {
        key: done.key,
        config: done.config,
        recipe: Some(recipe).filter(|recipe| *recipe != Recipe::default()),
        default_user: done.disk.default_user(),
        name: options.tag.clone(),
    };
    if !options.no_cache
        && let Some(image) = images.find_built(&built)?
    {
        return Ok(image);
    }
    forkd_image::Progress::step(&progress, "making the image");
    let draft = cache.draft()?;
    let flat = draft.path().join("flat");
    flatten(done.disk.base(), &done.disk.layers(cache), &flat)?;
    if options.no_cache {
        images.forget_built(&built)?;
    }
    let image = images.adopt(&flat, built)?;
    if let Some(guests) = runner.guests().filter(|_| options.no_cache) {
        guests.forget_files();
    }
    progress.finish();
    Ok(image)
}

/// Where the Dockerfile is, and forkd.toml beside it.
fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

fn read(path: &PathBuf) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?.take(MAX_DOCKERFILE + 1).read_to_string(&mut text)?;
    if read as u64 > MAX_DOCKERFILE { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forkd_toml_is_beside_the_dockerfile() {
        assert_eq!(directory_of(Path::new("Dockerfile")), Path::new("."));
        assert_eq!(directory_of(Path::new("a/Dockerfile.dev")), Path::new("a"));
        assert_eq!(directory_of(Path::new("/Dockerfile")), Path::new("/"));
    }
}
