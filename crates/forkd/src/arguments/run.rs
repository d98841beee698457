//! Verbs that run something in a sandbox.

use clap::{Args, ValueEnum};
use forkd_api::code::Language;

use super::{DaemonOptions, EgressArguments, LimitOptions, Output, SnapshotShape, parse_pair, parse_seconds};

/// The longest time that the daemon gives a command.
const DAY: &str = "24h";

#[derive(Debug, Args)]
pub struct RunOptions {
    /// A snapshot to fork from, or an image, of which a snapshot is made the first time.
    #[arg(value_name = "SNAPSHOT|IMAGE")]
    pub source: String,
    /// The command and its arguments [default: a shell].
    #[arg(last = true)]
    pub command: Vec<String>,
    /// Leave the sandbox there at the end.
    #[arg(long)]
    pub keep: bool,
    /// Pull the image from a registry if it is not there.
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
    /// The sandbox.
    pub sandbox: String,
    /// The command and its arguments.
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
    #[command(flatten)]
    pub how: How,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct ShellIn {
    /// The sandbox.
    pub sandbox: String,
    /// The program [default: bash if it is there, else sh].
    #[arg(last = true)]
    pub command: Vec<String>,
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = parse_pair, help = "Add this to the environment")]
    pub env: Vec<(String, String)>,
    /// The directory to start in.
    #[arg(long, short = 'w', alias = "workdir", value_name = "PATH")]
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
    /// Let the command read this command's stdin, also from a terminal.
    #[arg(long, short)]
    pub interactive: bool,
    /// Give the command a terminal; its stderr then comes with its stdout.
    #[arg(long, short)]
    pub tty: bool,
    /// Add this to the command's environment.
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub env: Vec<(String, String)>,
    /// The directory to start in.
    #[arg(long, short = 'w', alias = "workdir", value_name = "PATH")]
    pub cwd: Option<String>,
    /// The user [default: the image's].
    #[arg(long, short)]
    pub user: Option<String>,
    /// End the command after this time, such as 90, 10m or 2h.
    #[arg(long, alias = "timeout-secs", value_name = "TIME", default_value = DAY, value_parser = parse_seconds)]
    pub timeout: u64,
}

#[derive(Debug, Args)]
pub struct EvalOptions {
    /// The sandbox.
    pub sandbox: String,
    /// The code; `-` reads it from stdin.
    pub code: String,
    /// The language.
    #[arg(long, short, value_enum, default_value = "python")]
    pub language: LanguageArgument,
    /// A context of its own, by its id, instead of the language's default one.
    #[arg(long, value_name = "ID")]
    pub context: Option<String>,
    /// Add this to the environment.
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
    /// What is copied: a path here, or SANDBOX:PATH.
    pub from: String,
    /// Where it goes: a path here, or SANDBOX:PATH.
    pub to: String,
    /// Who it belongs to in the sandbox [default: root].
    #[arg(long, short)]
    pub user: Option<String>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
}
