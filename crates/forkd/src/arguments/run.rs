//! Verbs that run something in a sandbox.

use clap::{Args, ValueEnum};
use forkd_api::code::Language;

use super::{DaemonOptions, EgressArguments, LimitOptions, Output, SnapshotShape, parse_pair, parse_seconds};

/// The longest time that the daemon gives a command.
const DAY: &str = "24h";

#[derive(Debug, Args)]
pub struct RunOptions {
    /// A snapshot, or an image. The first run of an image makes a snapshot of it.
    #[arg(value_name = "SNAPSHOT|IMAGE")]
    pub source: String,
    /// The command and its arguments [default: a shell].
    #[arg(last = true)]
    pub command: Vec<String>,
    /// Keep the sandbox when the command ends.
    #[arg(long)]
    pub keep: bool,
    /// Accepted as of `docker run`. The sandbox is removed in any case, without --keep.
    #[arg(long, hide = true, conflicts_with = "keep")]
    pub rm: bool,
    /// Pull the image from a registry if it is missing.
    #[arg(long)]
    pub pull: bool,
    #[command(flatten)]
    pub egress: EgressArguments,
    #[command(flatten)]
    pub how: How,
    #[command(flatten)]
    pub shape: SnapshotShape,
    #[command(flatten)]
    pub limits: LimitOptions,
    #[command(flatten)]
    pub daemon: DaemonOptions,
}

#[derive(Debug, Args)]
pub struct ExecIn {
    /// The sandbox's id.
    pub sandbox: String,
    /// The command and its arguments.
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
    /// Start the command in the background and print its process number, for `forkd process`.
    #[arg(long, short, conflicts_with = "tty")]
    pub detach: bool,
    #[command(flatten)]
    pub how: How,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct ShellIn {
    /// The sandbox's id.
    pub sandbox: String,
    /// The shell [default: bash if installed, else sh].
    #[arg(last = true)]
    pub command: Vec<String>,
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = parse_pair, help = "Set an environment variable")]
    pub env: Vec<(String, String)>,
    /// Working directory.
    #[arg(long = "workdir", short = 'w', alias = "cwd", value_name = "PATH")]
    pub cwd: Option<String>,
    /// The user [default: the image's].
    #[arg(long, short)]
    pub user: Option<String>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
}

/// How a command is run.
#[derive(Debug, Args)]
pub struct How {
    /// Connect stdin, even if it is a terminal.
    #[arg(long, short)]
    pub interactive: bool,
    /// Allocate a terminal; stdout and stderr are then one stream.
    #[arg(long, short)]
    pub tty: bool,
    /// Set an environment variable.
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub env: Vec<(String, String)>,
    /// Working directory.
    #[arg(long = "workdir", short = 'w', alias = "cwd", value_name = "PATH")]
    pub cwd: Option<String>,
    /// The user [default: the image's].
    #[arg(long, short)]
    pub user: Option<String>,
    /// Kill the command after this time, such as 90, 10m or 2h.
    #[arg(long, alias = "timeout-secs", value_name = "TIME", default_value = DAY, value_parser = parse_seconds)]
    pub timeout: u64,
}

#[derive(Debug, Args)]
pub struct EvalOptions {
    /// The sandbox's id.
    pub sandbox: String,
    /// The code, or `-` to read it from stdin.
    pub code: String,
    /// The language.
    #[arg(long, short, value_enum, default_value = "python")]
    pub language: LanguageArgument,
    /// Id of the context to run in [default: the language's default context].
    #[arg(long, value_name = "ID")]
    pub context: Option<String>,
    /// Set an environment variable.
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub env: Vec<(String, String)>,
    /// Interrupt the code after this time, such as 90, 10m or 2h.
    #[arg(long, alias = "timeout-secs", value_name = "TIME", default_value = DAY, value_parser = parse_seconds)]
    pub timeout: u64,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LanguageArgument {
    Python,
    #[value(alias = "js")]
    Javascript,
    #[value(alias = "ts")]
    Typescript,
    Bash,
    R,
    Java,
}

impl From<LanguageArgument> for Language {
    fn from(argument: LanguageArgument) -> Language {
        match argument {
            LanguageArgument::Python => Language::Python,
            LanguageArgument::Javascript => Language::Javascript,
            LanguageArgument::Typescript => Language::Typescript,
            LanguageArgument::Bash => Language::Bash,
            LanguageArgument::R => Language::R,
            LanguageArgument::Java => Language::Java,
        }
    }
}

#[derive(Debug, Args)]
pub struct CpOptions {
    /// Source: a local path, or SANDBOX:PATH.
    pub from: String,
    /// Destination: a local path, or SANDBOX:PATH.
    pub to: String,
    /// Owner of the files in the sandbox [default: root].
    #[arg(long, short)]
    pub user: Option<String>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
}
