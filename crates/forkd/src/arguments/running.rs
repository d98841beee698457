//! What runs in a sandbox: `forkd context …`, `forkd process …`.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use forkd_api::exec::Signal;

use super::{DaemonOptions, LanguageArgument, Output, parse_seconds};

#[derive(Debug, Subcommand)]
pub enum ContextCommand {
    /// List the contexts of a sandbox.
    Ls(ContextLsOptions),
    /// Make a context: an interpreter of its own. Prints its id.
    New(ContextNewOptions),
    /// Interrupt the code that runs in a context, as Ctrl-C does.
    ///
    /// Code that does not end within --grace is ended with its interpreter; a new one is started, without its variables.
    Interrupt(ContextInterruptOptions),
    /// Give a context a new interpreter. Ends the code that runs in it.
    Restart(ContextOptions),
    /// Remove a context and end the code that runs in it.
    Rm(ContextOptions),
}

#[derive(Debug, Args)]
pub struct ContextLsOptions {
    /// The sandbox.
    pub sandbox: String,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct ContextNewOptions {
    /// The sandbox.
    pub sandbox: String,
    /// The language.
    #[arg(long, short, value_enum, default_value = "python")]
    pub language: LanguageArgument,
    /// The directory that its code begins in [default: the user's].
    #[arg(long, short = 'w', alias = "workdir", value_name = "PATH")]
    pub cwd: Option<String>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct ContextOptions {
    /// The sandbox.
    pub sandbox: String,
    /// The context's id; those of the languages' default contexts are in `forkd context ls`.
    pub context: String,
    #[command(flatten)]
    pub daemon: DaemonOptions,
}

#[derive(Debug, Args)]
pub struct ContextInterruptOptions {
    /// The sandbox.
    pub sandbox: String,
    /// The context's id; those of the languages' default contexts are in `forkd context ls`.
    pub context: String,
    /// The time that the code has to end in, such as 5 or 1m.
    #[arg(long, value_name = "TIME", default_value = "5", value_parser = parse_seconds)]
    pub grace: u64,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Subcommand)]
pub enum ProcessCommand {
    /// List the programs that clients have started in a sandbox and that run.
    Ls(ProcessLsOptions),
    /// Start a program and leave it running. Prints its process number.
    Start(ProcessStartOptions),
    /// Print what a program prints from now on, and let it read this command's stdin.
    ///
    /// The program goes on when this command ends. Exits with the program's status if that ends first.
    Attach(ProcessAttachOptions),
    /// Write this command's stdin to a program.
    Write(ProcessWriteOptions),
    /// Send a signal to a program and its process group.
    Signal(ProcessSignalOptions),
}

#[derive(Debug, Args)]
pub struct ProcessLsOptions {
    /// The sandbox.
    pub sandbox: String,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct ProcessStartOptions {
    /// The sandbox.
    pub sandbox: String,
    /// The command and its arguments.
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
    /// Keep its input open, for `forkd process write` and `attach`.
    #[arg(long, short)]
    pub interactive: bool,
    /// Add this to the command's environment.
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = super::parse_pair)]
    pub env: Vec<(String, String)>,
    /// The directory to start in.
    #[arg(long, short = 'w', alias = "workdir", value_name = "PATH")]
    pub cwd: Option<String>,
    /// The user [default: the image's].
    #[arg(long, short)]
    pub user: Option<String>,
    /// End the command after this time, such as 90, 10m or 2h [default: never].
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub timeout: Option<u64>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct ProcessAttachOptions {
    /// The sandbox.
    pub sandbox: String,
    /// The process number.
    pub pid: u32,
    /// Only print: leave the program's input alone.
    #[arg(long)]
    pub no_stdin: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
}

#[derive(Debug, Args)]
pub struct ProcessWriteOptions {
    /// The sandbox.
    pub sandbox: String,
    /// The process number.
    pub pid: u32,
    /// Let the program read the end of its input after that.
    #[arg(long)]
    pub close: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
}

#[derive(Debug, Args)]
pub struct ProcessSignalOptions {
    /// The sandbox.
    pub sandbox: String,
    /// The process number.
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
