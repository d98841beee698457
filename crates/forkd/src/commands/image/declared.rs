//! The images of a `forkd.toml`: those that are missing are made.
//!
//! Each has a name in the library that is made of what is in it, so an image of this name is the one that is wanted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forkd_api::library::DebianImage;
use forkd_api::snapshot::BuildOutcome;
use forkd_source::image_table::{ImageContents, ImageStep, debian_name};
use serde::Serialize;

use super::{build, debian};
use crate::arguments::{BuildNetwork, DaemonOptions, ImageBuildOptions, Output};
use crate::error::CliError;
use crate::library;

/// Memory of the guests that commands of a Dockerfile run in, as `forkd image build` has it.
const BUILD_MEMORY_MIB: u64 = 1024;
/// What a Dockerfile knows its base by.
const BASE: &str = "BASE";

/// An image of the file.
#[derive(Debug, Serialize)]
pub struct DeclaredImage {
    /// In the file.
    pub name: String,
    pub outcome: BuildOutcome,
    /// In the library.
    pub image: String,
    /// Missing if it would be made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// Makes those of the images that are missing. With `dry_run`, says which these are.
pub fn make_missing(
    daemon: &DaemonOptions,
    images: &[ImageStep],
    file: &Path,
    dry_run: bool,
) -> Result<Vec<DeclaredImage>, CliError> {
    let mut declared: Vec<DeclaredImage> = Vec::new();
    if images.is_empty() {
        return Ok(declared);
    }
    let there: BTreeMap<String, String> = library::images(daemon)?
        .into_iter()
        .flat_map(|image| image.names.into_iter().map(move |name| (name, image.id.clone())))
        .collect();
    for step in images {
        let order = order(daemon, step, file, &declared)?;
        let image = order.image().to_owned();
        let (outcome, id) = match there.get(&image) {
            Some(id) => (BuildOutcome::Unchanged, Some(id.clone())),
            None if dry_run => (BuildOutcome::Made, None),
            None => (BuildOutcome::Made, Some(order.make(daemon)?)),
        };
        declared.push(DeclaredImage { name: step.name.clone(), outcome, image, id });
    }
    Ok(declared)
}

/// How an image is made.
enum Order {
    Debian { name: String, wanted: DebianImage },
    Dockerfile { name: String, wanted: Box<ImageBuildOptions> },
}

impl Order {
    fn image(&self) -> &str {
        match self {
            Order::Debian { name, .. } | Order::Dockerfile { name, .. } => name,
        }
    }

    /// The id of the new image.
    fn make(self, daemon: &DaemonOptions) -> Result<String, CliError> {
        let image = match self {
            Order::Debian { wanted, .. } => debian::make(daemon, &wanted)?,
            Order::Dockerfile { wanted, .. } => build::make(&wanted)?,
        };
        Ok(image.summary.id)
    }
}

fn order(
    daemon: &DaemonOptions,
    step: &ImageStep,
    file: &Path,
    before: &[DeclaredImage],
) -> Result<Order, CliError> {
    match &step.contents {
        ImageContents::Debian { suite, include } => {
            let name = debian_name(suite, include);
            let wanted = DebianImage {
                suite: suite.clone(),
                include: include.clone(),
                mirror: None,
                name: Some(name.clone()),
                size_mib: None,
            };
            Ok(Order::Debian { name, wanted })
        }
        ImageContents::Dockerfile { dockerfile, context, base } => {
            let base = base.iter().flat_map(|base| before.iter().find(|image| image.name == *base));
            let directory = directory_of(file);
            let mut wanted = ImageBuildOptions {
                directory: directory.join(context),
                file: Some(directory.join(dockerfile)),
                name: None,
                build_args: base.map(|base| (BASE.to_owned(), base.image.clone())).collect(),
                target: None,
                host_certs: false,
                network: BuildNetwork::Internet,
                no_cache: false,
                vcpus: 1,
                memory: BUILD_MEMORY_MIB,
                daemon: daemon.clone(),
                output: Output { json: false },
            };
            let name = step.built_name(build::key(&wanted)?);
            wanted.name = Some(name.parse().map_err(CliError::of_verb)?);
            Ok(Order::Dockerfile { name, wanted: Box::new(wanted) })
        }
    }
}

/// The directory that paths of a file are relative to.
fn directory_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}
