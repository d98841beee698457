//! `forkd image …`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use forkd_source::name::Name;

use super::{DaemonOptions, Output, parse_pair};
use crate::size::parse_mib;

#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Pull an image from a registry, as docker would: python:3.12, registry.example/owner/name:tag.
    ///
    /// Credentials are read from this user's Docker config file. Plain http is spoken with the daemon's own host only.
    Pull(ImagePullOptions),
    /// Make a Debian image, without any registry.
    Debian(ImageDebianOptions),
    /// Import a root file system (tar, tar.gz, tar.zst), or an archive that docker save has written. It is sent to the daemon.
    Import(ImageImportOptions),
    /// Build an image from a Dockerfile. Commands run in microVMs.
    ///
    /// They reach the internet, but neither this host nor its networks; that takes root. The build context is sent to the
    /// daemon, without what .dockerignore names; no other file is. Where there is no daemon but the machine's, the commands run
    /// in the machine, and the image is made here.
    ///
    /// Steps are kept and used again; `forkd image prune` removes them. A forkd.toml beside the Dockerfile says what a parent
    /// needs beyond the image, and is kept with it.
    Build(ImageBuildOptions),
    /// List the images.
    Ls(ImageLsOptions),
    /// Show what is known of an image, as JSON.
    Inspect(ImageInspectOptions),
    /// Let every project make snapshots of an image. Without it, only those do that have made it.
    Share(ImageShareOptions),
    /// Remove names, and images when those were their last; given an id, the image with all its names.
    ///
    /// An image that snapshots or sandboxes need stays.
    Rm(ImageRmOptions),
    /// Remove steps that builds have kept.
    Prune(ImagePruneOptions),
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
    pub daemon: DaemonOptions,
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
    pub daemon: DaemonOptions,
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
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct ImageBuildOptions {
    /// The build context.
    pub directory: PathBuf,
    /// The Dockerfile [default: Dockerfile in the build context].
    #[arg(long, short)]
    pub file: Option<PathBuf>,
    /// The name that the image gets.
    #[arg(long, short)]
    pub tag: Option<Name>,
    /// A value for an ARG, such as VERSION=3.
    #[arg(long = "build-arg", value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub build_args: Vec<(String, String)>,
    /// The stage to end with [default: the last].
    #[arg(long)]
    pub target: Option<String>,
    /// Give commands the certificates and proxy settings of the daemon's host. The image does not keep them.
    #[arg(long)]
    pub host_certs: bool,
    /// What commands reach.
    #[arg(long, value_enum, default_value = "internet")]
    pub network: BuildNetwork,
    /// Do every step again.
    #[arg(long)]
    pub no_cache: bool,
    /// vCPUs of the guests that commands run in.
    #[arg(long, default_value_t = 1)]
    pub vcpus: u8,
    /// Memory of these guests, in MiB or with a unit: 512, 2G.
    #[arg(long, default_value = "1G", value_parser = parse_mib)]
    pub memory: u64,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct ImagePruneOptions {
    /// Keep this much of what was used last, such as 10G.
    #[arg(long, default_value = "0", value_parser = parse_mib)]
    pub keep: u64,
    /// Also remove images that have no name.
    #[arg(long)]
    pub images: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BuildNetwork {
    /// The internet, and nothing of this host or its networks.
    Internet,
    /// Nothing.
    None,
}

#[derive(Debug, Args)]
pub struct ImageLsOptions {
    /// Print ids only.
    #[arg(long, short, conflicts_with = "json")]
    pub quiet: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct ImageShareOptions {
    /// A name, an id, or the beginning of an id.
    pub image: String,
    /// Take it back. Snapshots that others have made of it stay.
    #[arg(long)]
    pub off: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
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
    #[command(flatten)]
    pub daemon: DaemonOptions,
}

#[derive(Debug, Args)]
pub struct ImageRmOptions {
    /// Images, each by a name, an id, or the beginning of an id.
    #[arg(value_name = "IMAGE", required = true)]
    pub images: Vec<String>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}
