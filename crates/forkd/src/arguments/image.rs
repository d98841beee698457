//! `forkd image …`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use forkd_image::images::Name;

use super::{LsOptions, Output};
use crate::size::parse_mib;

#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Pull an image from a registry, as docker would: python:3.12, registry.example/owner/name:tag.
    ///
    /// Credentials are read from the Docker config file. Plain http is spoken with this host only.
    Pull(ImagePullOptions),
    /// Make a Debian image, without any registry.
    Debian(ImageDebianOptions),
    /// Import a root file system (tar, tar.gz, tar.zst), or an archive that docker save has written.
    Import(ImageImportOptions),
    /// List the images.
    Ls(LsOptions),
    /// Show what is known of an image, as JSON.
    Inspect(ImageInspectOptions),
    /// Remove a name, and the image when that was its last; given an id, the image with all its names.
    Rm(ImageRmOptions),
}

#[derive(Debug, Args)]
pub struct ImageKeep {
    /// The name that the image gets.
    #[arg(long)]
    pub name: Option<Name>,
    /// The least size of the file system, such as 8G [default: the content and 1 GiB].
    #[arg(long, value_parser = parse_mib)]
    pub size: Option<u64>,
}

#[derive(Debug, Args)]
pub struct ImagePullOptions {
    /// The image.
    pub reference: String,
    #[command(flatten)]
    pub keep: ImageKeep,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct ImageDebianOptions {
    /// Debian's release.
    #[arg(long, default_value = "bookworm")]
    pub suite: String,
    /// Packages beyond the smallest system, such as python3,python3-numpy.
    #[arg(long, value_delimiter = ',')]
    pub include: Vec<String>,
    /// Where the packages come from [default: Debian's own mirrors].
    #[arg(long)]
    pub mirror: Option<String>,
    #[command(flatten)]
    pub keep: ImageKeep,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct ImageImportOptions {
    /// The archive.
    pub file: PathBuf,
    #[command(flatten)]
    pub keep: ImageKeep,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct ImageInspectOptions {
    /// A name, an id, or the beginning of an id.
    pub image: String,
    /// Print JSON, which it does in any case.
    #[arg(long, hide = true)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ImageRmOptions {
    /// A name, an id, or the beginning of an id.
    pub image: String,
    #[command(flatten)]
    pub output: Output,
}
