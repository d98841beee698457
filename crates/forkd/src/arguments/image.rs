//! `forkd image …`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use forkd_source::name::Name;

use super::{DaemonOptions, Output, parse_pair};
use crate::size::parse_mib;

#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Pull an image from a registry: python:3.12, registry.example/owner/name:tag.
    ///
    /// Credentials come from `docker login`. Plain HTTP is used only for registries on the daemon's own host.
    Pull(ImagePullOptions),
    /// Make an image from Debian packages, without a registry.
    Debian(ImageDebianOptions),
    /// Import a root file system (tar, tar.gz, tar.zst) or an archive made by `docker save`.
    Import(ImageImportOptions),
    /// Build an image from a Dockerfile. Commands run in microVMs.
    ///
    /// Commands can connect to the internet, but not to this host or its networks; this needs root. The build context is sent to the
    /// daemon, except for what .dockerignore lists. If only the machine has a daemon, commands run in the machine.
    ///
    /// Steps are cached; `forkd image prune` removes them. A forkd.toml next to the Dockerfile sets defaults for snapshots of the image,
    /// and is stored with it.
    Build(ImageBuildOptions),
    /// List images.
    Ls(ImageLsOptions),
    /// Show the details of an image as JSON.
    Inspect(ImageInspectOptions),
    /// Let all projects use an image. By default only projects that made it can.
    Share(ImageShareOptions),
    /// Remove images by name or id. An image is deleted with its last name.
    ///
    /// An image that snapshots or sandboxes use cannot be removed.
    Rm(ImageRmOptions),
    /// Remove cached build steps.
    Prune(ImagePruneOptions),
}

#[derive(Debug, Args)]
pub struct ImageKeep {
    /// Name of the new image.
    #[arg(long = "tag", short = 't', alias = "name", value_name = "NAME")]
    pub name: Option<Name>,
    /// Minimum size of the file system, in MiB or with a unit (512, 8G) [default: content plus 1 GiB].
    #[arg(long, value_parser = parse_mib)]
    pub size: Option<u64>,
}

#[derive(Debug, Args)]
pub struct ImagePullOptions {
    /// The image to pull.
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
    /// Debian release.
    #[arg(long, default_value = "bookworm")]
    pub suite: String,
    /// Packages to add to the minimal system, such as python3,python3-numpy.
    #[arg(long, value_delimiter = ',')]
    pub include: Vec<String>,
    /// Package mirror [default: Debian's].
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
    /// Name of the new image.
    #[arg(long = "tag", short = 't', alias = "name", value_name = "NAME")]
    pub name: Option<Name>,
    /// Value of a build argument (ARG), such as VERSION=3.
    #[arg(long = "build-arg", value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub build_args: Vec<(String, String)>,
    /// Stage to build [default: the last].
    #[arg(long)]
    pub target: Option<String>,
    /// Give commands the CA certificates and proxy settings of the daemon's host. They are not stored in the image.
    #[arg(long)]
    pub host_certs: bool,
    /// Network of commands.
    #[arg(long, value_enum, default_value = "internet")]
    pub network: BuildNetwork,
    /// Run every step, without the cache.
    #[arg(long)]
    pub no_cache: bool,
    /// Number of vCPUs for commands.
    #[arg(long, default_value_t = 1)]
    pub vcpus: u8,
    /// Memory for commands, in MiB or with a unit (512, 2G).
    #[arg(long, default_value = "1G", value_parser = parse_mib)]
    pub memory: u64,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct ImagePruneOptions {
    /// Keep this much of the most recently used steps, in MiB or with a unit (512, 10G).
    #[arg(long, default_value = "0", value_parser = parse_mib)]
    pub keep: u64,
    /// Also remove images without a name.
    #[arg(long)]
    pub images: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BuildNetwork {
    /// The internet, but not this host or its networks.
    Internet,
    /// No network.
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
    /// The image's name or id, or a prefix of its id.
    pub image: String,
    /// Make it private again. Snapshots that other projects made of it stay.
    #[arg(long)]
    pub off: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct ImageInspectOptions {
    /// The image's name or id, or a prefix of its id.
    pub image: String,
    /// Print JSON, which it does in any case.
    #[arg(long, hide = true)]
    pub json: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
}

#[derive(Debug, Args)]
pub struct ImageRmOptions {
    /// Names or ids of images, or prefixes of ids.
    #[arg(value_name = "IMAGE", required = true)]
    pub images: Vec<String>,
    /// Accepted as of `docker rmi`. Images in use are not removed in any case.
    #[arg(long, short, hide = true)]
    pub force: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}
