//! `forkd recipe …`.

use clap::{Args, Subcommand};

use super::{DaemonOptions, Output};

#[derive(Debug, Subcommand)]
pub enum RecipeCommand {
    /// List the recipes that come with forkd, and the snapshots built from them.
    Ls(RecipeLsOptions),
    /// Print a recipe's page, its forkd.toml, and where its files are.
    Show(RecipeShowOptions),
    /// Build a recipe's images and snapshots, unless they exist already.
    ///
    /// Prints the tag of the snapshot. Starts a daemon if none is running. Images are made on this host even if the daemon runs in the
    /// machine.
    Build(RecipeBuildOptions),
}

#[derive(Debug, Args)]
pub struct RecipeLsOptions {
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct RecipeShowOptions {
    /// The recipe: a name that `forkd recipe ls` lists, or a directory (./NAME).
    #[arg(value_name = "NAME|DIRECTORY")]
    pub recipe: String,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct RecipeBuildOptions {
    /// The recipe: a name that `forkd recipe ls` lists, or a directory (./NAME) with a forkd.toml.
    #[arg(value_name = "NAME|DIRECTORY")]
    pub recipe: String,
    /// Rebuild the snapshots even if nothing has changed. Images are kept; `forkd image rm` removes one.
    #[arg(long)]
    pub no_cache: bool,
    /// Show what would be built, and build nothing. Needs a running daemon.
    #[arg(long, short = 'n')]
    pub dry_run: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}
