//! `forkd e2b …`.

use clap::{Args, Subcommand};

use super::{DaemonOptions, Output, SnapshotShape};

#[derive(Debug, Subcommand)]
pub enum E2bCommand {
    /// Make the template that E2B's clients take if nothing else is said: code-interpreter-v1, which is also base.
    ///
    /// Without an image, one of Debian with Python, numpy, pandas, matplotlib and Node.js is made the first time. A template that
    /// is there already stays.
    Setup(E2bSetupOptions),
}

#[derive(Debug, Args)]
pub struct E2bSetupOptions {
    /// The image, by its name, instead of the usual one.
    pub image: Option<String>,
    #[command(flatten)]
    pub shape: SnapshotShape,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}
