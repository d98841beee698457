//! Verbs that look on.

use clap::{Args, Subcommand};

use forkd_api::event::What;

use super::{DaemonOptions, Output};

#[derive(Debug, Args)]
pub struct ConsoleOptions {
    /// The sandbox.
    pub sandbox: String,
    /// Go on printing what comes, until interrupted or until the sandbox ends.
    #[arg(long, short)]
    pub follow: bool,
    /// How many bytes, from the end.
    #[arg(long, default_value_t = 65536)]
    pub bytes: u64,
    #[command(flatten)]
    pub daemon: DaemonOptions,
}

#[derive(Debug, Args)]
pub struct StatsOptions {
    /// Sandboxes [default: all].
    #[arg(value_name = "SANDBOX")]
    pub sandboxes: Vec<String>,
    /// Print one table and end, as it does when stdout is not a terminal.
    #[arg(long)]
    pub once: bool,
    /// Seconds between two tables.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub interval: u64,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct EventsOptions {
    /// Begin behind the event that has this cursor, as --json shows them, instead of now.
    #[arg(long, value_name = "CURSOR")]
    pub after: Option<String>,
    /// Only those of this sandbox; may be repeated.
    #[arg(long, value_name = "SANDBOX")]
    pub sandbox: Vec<String>,
    /// Only those of this snapshot; may be repeated.
    #[arg(long, value_name = "TAG")]
    pub snapshot: Vec<String>,
    /// Only those of this kind; may be repeated.
    #[arg(long, value_name = "KIND", value_parser = What::KINDS)]
    pub event: Vec<String>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Time what a user of the API sees: children made, ready, answering; and the pause of a branch.
    Api(BenchApiOptions),
    /// The main job from nothing: a warm parent, its children, a branch in the middle of a computation; as a table, a picture and JSON.
    ///
    /// Starts a daemon if there is none, and makes the image the first time.
    Demo(BenchDemoOptions),
}

#[derive(Debug, Args)]
pub struct BenchDemoOptions {
    /// How many children.
    #[arg(long, short, value_name = "COUNT", default_value_t = 100)]
    pub n: u32,
    /// How often the same image is booted cold, for comparison.
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    pub cold_boots: u32,
    /// How often a sandbox is branched while a client talks to it.
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    pub branches: u32,
    /// An image with Python and numpy [default: one that is made of Debian's packages].
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// Where demo.json and demo.svg are written.
    #[arg(long, value_name = "DIRECTORY", default_value = "bench/out")]
    pub out: std::path::PathBuf,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct BenchApiOptions {
    /// The snapshot, whose guest runs Python.
    #[arg(long, alias = "tag", value_name = "TAG")]
    pub snapshot: String,
    /// How many children.
    #[arg(long, short, value_name = "COUNT", default_value_t = 100)]
    pub n: u32,
    /// What every child evaluates, in Python.
    #[arg(long, default_value = "1 + 1")]
    pub code: String,
    /// How often a sandbox is branched while a client talks to it.
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    pub branches: u32,
    /// How often the snapshot's image is booted cold, for comparison.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub cold_boots: u32,
    /// How many single children are made one after another.
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    pub singles: u32,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct CompletionsOptions {
    /// The shell.
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub struct ManOptions {
    /// The directory to write them to, such as ~/.local/share/man/man1.
    pub directory: std::path::PathBuf,
}
