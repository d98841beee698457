//! Verbs that look on.

use clap::{Args, Subcommand};

use forkd_api::event::What;

use super::{DaemonOptions, Output};

#[derive(Debug, Args)]
pub struct ConsoleOptions {
    /// The sandbox's id.
    pub sandbox: String,
    /// Keep printing new output until interrupted or until the sandbox ends.
    #[arg(long, short)]
    pub follow: bool,
    /// Number of lines to print, from the end.
    #[arg(long, short = 'n', value_name = "COUNT", conflicts_with = "bytes", value_parser = clap::value_parser!(u64).range(1..))]
    pub tail: Option<u64>,
    /// Number of bytes to print, from the end.
    #[arg(long, value_name = "COUNT", default_value_t = 65536)]
    pub bytes: u64,
    #[command(flatten)]
    pub daemon: DaemonOptions,
}

#[derive(Debug, Args)]
pub struct StatsOptions {
    /// Ids of sandboxes [default: all].
    #[arg(value_name = "SANDBOX")]
    pub sandboxes: Vec<String>,
    /// Print one table and exit. This is the default if stdout is not a terminal.
    #[arg(long, alias = "once")]
    pub no_stream: bool,
    /// Seconds between updates.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub interval: u64,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct EventsOptions {
    /// Start after the event with this cursor (see --json) instead of with new events.
    #[arg(long, alias = "since", value_name = "CURSOR")]
    pub after: Option<String>,
    /// Print only events of this sandbox; may be repeated.
    #[arg(long, value_name = "SANDBOX")]
    pub sandbox: Vec<String>,
    /// Print only events of this snapshot; may be repeated.
    #[arg(long, value_name = "TAG")]
    pub snapshot: Vec<String>,
    /// Print only events of this kind; may be repeated.
    #[arg(long, value_name = "KIND", value_parser = What::KINDS)]
    pub event: Vec<String>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure forks and branches through the API: until VMs run, are ready, and have answered.
    Api(BenchApiOptions),
    /// Fork 100 sandboxes from a warm Python parent and branch one of them; writes a table, a chart and JSON.
    ///
    /// Starts a daemon if none is running, and makes the image the first time.
    Demo(BenchDemoOptions),
}

#[derive(Debug, Args)]
pub struct BenchDemoOptions {
    /// Number of children.
    #[arg(long, short, value_name = "COUNT", default_value_t = 100)]
    pub n: u32,
    /// Number of cold boots of the same image, for comparison.
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    pub cold_boots: u32,
    /// Number of branches of a sandbox while a client uses it.
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    pub branches: u32,
    /// An image with Python and numpy [default: made from Debian packages].
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// Directory for demo.json and demo.svg.
    #[arg(long, value_name = "DIRECTORY", default_value = "bench/out")]
    pub out: std::path::PathBuf,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct BenchApiOptions {
    /// A snapshot with a Python interpreter.
    #[arg(long, alias = "tag", value_name = "TAG")]
    pub snapshot: String,
    /// Number of children.
    #[arg(long, short, value_name = "COUNT", default_value_t = 100)]
    pub n: u32,
    /// Python code that each child evaluates.
    #[arg(long, default_value = "1 + 1")]
    pub code: String,
    /// Number of branches of a sandbox while a client uses it.
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    pub branches: u32,
    /// Number of cold boots of the snapshot's image, for comparison.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub cold_boots: u32,
    /// Number of children that are forked one at a time.
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
    /// Directory to write to, such as ~/.local/share/man/man1.
    pub directory: std::path::PathBuf,
}
