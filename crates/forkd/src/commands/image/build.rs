//! `forkd image build`.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use forkd_build::{Build, MAX_DOCKERFILE, build_image};
use forkd_host::home;
use forkd_image::dockerfile::{Context, parse};
use forkd_image::host_environment::HostEnvironment;
use forkd_image::images::ImageStore;
use forkd_image::recipe::Recipe;

use super::show;
use crate::arguments::{BuildNetwork, ImageBuildOptions};
use crate::build::{GuestsOptions, find};
use crate::error::CliError;
use crate::exit::Exit;
use crate::progress::Progress;

pub fn run(options: &ImageBuildOptions) -> Result<Exit, CliError> {
    let library = home::library()?;
    let path = options.file.clone().unwrap_or_else(|| options.directory.join("Dockerfile"));
    let text = read(&path).map_err(|source| CliError::Dockerfile { path: path.clone(), source })?;
    let wanted = Build {
        dockerfile: parse(&text)?,
        recipe: Recipe::read(directory_of(&path))?,
        context: Context::open(&options.directory)?,
        path,
        arguments: options.build_args.iter().cloned().collect(),
        target: options.target.clone(),
        name: options.tag.clone(),
        uses_cache: !options.no_cache,
        host: if options.host_certs { Some(HostEnvironment::collect()?) } else { None },
    };
    let guests = GuestsOptions {
        library: library.clone(),
        vcpus: options.vcpus,
        memory_bytes: options.memory << 20,
        network: options.network == BuildNetwork::Internet,
        machine: options.machine.clone(),
    };
    let progress = Progress::interruptible().map_err(|error| CliError::Io("listen to signals", error))?;
    let find = |progress: &dyn forkd_image::Progress| find(&guests, progress);
    let image = build_image(&library, &ImageStore::new(&library), wanted, &find, &progress)?;
    progress.finish();
    show(&image, &options.output)?;
    Ok(Exit::Success)
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
