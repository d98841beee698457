//! `forkd kernel …`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{DaemonOptions, Output};

#[derive(Debug, Subcommand)]
pub enum KernelCommand {
    /// Add a kernel: without options, that of the distribution of the daemon's host, downloaded and not installed.
    Add(KernelAddOptions),
    /// List the kernels.
    Ls(KernelLsOptions),
    /// Remove a kernel.
    Rm(KernelRmOptions),
    /// Show the kernel that is used when none is named, or choose another.
    Default(KernelDefaultOptions),
}

#[derive(Debug, Args)]
pub struct KernelAddOptions {
    /// Take the own kernel of the daemon's host, from /boot and /lib/modules.
    #[arg(long, conflicts_with = "path")]
    pub host: bool,
    /// Of the host's kernels, this version [default: the newest].
    #[arg(long, requires = "host", value_name = "VERSION")]
    pub version: Option<String>,
    /// Take this file, an ELF kernel or a bzImage. It is sent to the daemon.
    #[arg(long, value_name = "FILE")]
    pub path: Option<PathBuf>,
    /// The modules of that kernel, the directory with modules.dep; without it, everything must be built in.
    #[arg(long, requires = "path", value_name = "DIRECTORY")]
    pub modules: Option<PathBuf>,
    /// Let it be the default.
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
    /// The kernel's id, its version, or how they begin.
    pub kernel: String,
    /// Also the default one.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct KernelDefaultOptions {
    /// The kernel's id, its version, or how they begin.
    pub kernel: Option<String>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}
