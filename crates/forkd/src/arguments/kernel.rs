//! `forkd kernel …`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{DaemonOptions, Output};

#[derive(Debug, Subcommand)]
pub enum KernelCommand {
    /// Add a kernel. Without options, downloads the kernel package of the daemon host's distribution.
    Add(KernelAddOptions),
    /// List kernels.
    Ls(KernelLsOptions),
    /// Remove a kernel.
    Rm(KernelRmOptions),
    /// Show or set the default kernel.
    Default(KernelDefaultOptions),
}

#[derive(Debug, Args)]
pub struct KernelAddOptions {
    /// Use the kernel of the daemon's host, from /boot and /lib/modules.
    #[arg(long, conflicts_with = "path")]
    pub host: bool,
    /// Version of the host's kernel [default: the newest].
    #[arg(long, requires = "host", value_name = "VERSION")]
    pub version: Option<String>,
    /// Use this file, an ELF kernel or a bzImage. It is sent to the daemon.
    #[arg(long, value_name = "FILE")]
    pub path: Option<PathBuf>,
    /// Directory with modules.dep of that kernel. Without it, everything must be built in.
    #[arg(long, requires = "path", value_name = "DIRECTORY")]
    pub modules: Option<PathBuf>,
    /// Make it the default kernel.
    #[arg(long)]
    pub default: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct KernelLsOptions {
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct KernelRmOptions {
    /// The kernel's id or version, or a prefix of one.
    pub kernel: String,
    /// Remove it even if it is the default.
    #[arg(long, short)]
    pub force: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct KernelDefaultOptions {
    /// The kernel's id or version, or a prefix of one.
    pub kernel: Option<String>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}
