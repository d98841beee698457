//! What runs in a sandbox: `forkd context …`, `forkd process …`.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use forkd_api::exec::Signal;

use super::{DaemonOptions, LanguageArgument, Output, parse_seconds};

#[derive(Debug, Subcommand)]
pub enum ContextCommand {
    /// List contexts.
    Ls(ContextLsOptions),
    /// Create a context with its own interpreter, and print its id.
    New(ContextNewOptions),
    /// Interrupt the code that runs in a context, as Ctrl-C does.
    ///
    /// If the code does not stop within --grace, the interpreter is replaced and its variables are lost.
    Interrupt(ContextInterruptOptions),
    /// Replace the interpreter of a context. Running code is ended.
    Restart(ContextOptions),
    /// Remove a context. Running code is ended.
    Rm(ContextOptions),
}

#[derive(Debug, Args)]
pub struct ContextLsOptions {
    /// The sandbox's id.
    pub sandbox: String,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct ContextNewOptions {
    /// The sandbox's id.
    pub sandbox: String,
    /// The language.
    #[arg(long, short, value_enum, default_value = "python")]
    pub language: LanguageArgument,
    /// Working directory [default: the user's home].
    #[arg(long = "workdir", short = 'w', alias = "cwd", value_name = "PATH")]
    pub cwd: Option<String>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct ContextOptions {
    /// The sandbox's id.
    pub sandbox: String,
    /// The context's id, as `forkd context ls` shows it.
    pub context: String,
    #[command(flatten)]
    pub daemon: DaemonOptions,
}

#[derive(Debug, Args)]
pub struct ContextInterruptOptions {
    /// The sandbox's id.
    pub sandbox: String,
    /// The context's id, as `forkd context ls` shows it.
    pub context: String,
    /// How long the code may take to stop, such as 5 or 1m.
    #[arg(long, value_name = "TIME", default_value = "5", value_parser = parse_seconds)]
    pub grace: u64,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Subcommand)]
pub enum ProcessCommand {
    /// List running processes that clients started.
    Ls(ProcessLsOptions),
    /// Start a process in the background, and print its pid.
    Start(ProcessStartOptions),
    /// Connect this terminal to a running process.
    ///
    /// The process keeps running when this command ends. Exits with the status of the process if it ends first.
    Attach(ProcessAttachOptions),
    /// Write this command's stdin to the stdin of a process.
    Write(ProcessWriteOptions),
    /// Send a signal to a process and its process group.
    Signal(ProcessSignalOptions),
}

#[derive(Debug, Args)]
pub struct ProcessLsOptions {
    /// The sandbox's id.
    pub sandbox: String,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct ProcessStartOptions {
    /// The sandbox's id.
    pub sandbox: String,
    /// The command and its arguments.
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
    /// Keep stdin open for `forkd process write` and `attach`.
    #[arg(long, short)]
    pub interactive: bool,
    /// Set an environment variable.
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = super::parse_pair)]
    pub env: Vec<(String, String)>,
    /// Working directory.
    #[arg(long = "workdir", short = 'w', alias = "cwd", value_name = "PATH")]
    pub cwd: Option<String>,
    /// The user [default: the image's].
    #[arg(long, short)]
    pub user: Option<String>,
    /// Kill the command after this time, such as 90, 10m or 2h [default: unlimited].
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub timeout: Option<u64>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct ProcessAttachOptions {
    /// The sandbox's id.
    pub sandbox: String,
    /// The pid, as `forkd process ls` shows it.
    pub pid: u32,
    /// Do not connect stdin.
    #[arg(long)]
    pub no_stdin: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
}

#[derive(Debug, Args)]
pub struct ProcessWriteOptions {
    /// The sandbox's id.
    pub sandbox: String,
    /// The pid, as `forkd process ls` shows it.
    pub pid: u32,
    /// Close the stdin of the process afterwards.
    #[arg(long)]
    pub close: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
}

#[derive(Debug, Args)]
pub struct ProcessSignalOptions {
    /// The sandbox's id.
    pub sandbox: String,
    /// The pid, as `forkd process ls` shows it.
    pub pid: u32,
    /// The signal.
    #[arg(default_value = "TERM", ignore_case = true, value_parser = signal_parser())]
    pub signal: Signal,
    #[command(flatten)]
    pub daemon: DaemonOptions,
}

const SIGNALS: [(&str, &str, Signal); 10] = [
    ("HUP", "SIGHUP", Signal::Hup),
    ("INT", "SIGINT", Signal::Int),
    ("QUIT", "SIGQUIT", Signal::Quit),
    ("KILL", "SIGKILL", Signal::Kill),
    ("USR1", "SIGUSR1", Signal::Usr1),
    ("USR2", "SIGUSR2", Signal::Usr2),
    ("TERM", "SIGTERM", Signal::Term),
    ("CONT", "SIGCONT", Signal::Cont),
    ("STOP", "SIGSTOP", Signal::Stop),
    ("TSTP", "SIGTSTP", Signal::Tstp),
];

fn signal_parser() -> impl TypedValueParser<Value = Signal> {
    let names = SIGNALS.map(|(name, long, _)| PossibleValue::new(name).alias(long));
    PossibleValuesParser::new(names).map(|text| {
        let is = |name: &str| name.eq_ignore_ascii_case(&text);
        let known = SIGNALS.iter().find(|(name, long, _)| is(name) || is(long));
        // The parser has refused all others.
        known.map_or(Signal::Term, |(_, _, signal)| *signal)
    })
}
