//! The command line's grammar. What the words mean is in `commands`.

mod daemon;
mod e2b;
mod image;
mod kernel;
mod mcp;
mod recipe;
mod run;
mod running;
mod sandbox;
mod serve;
mod snapshot;
mod token;
mod watch;

pub use daemon::*;
pub use e2b::*;
pub use image::*;
pub use kernel::*;
pub use mcp::*;
pub use recipe::*;
pub use run::*;
pub use running::*;
pub use sandbox::*;
pub use serve::*;
pub use snapshot::*;
pub use token::*;
pub use watch::*;

use clap::{Args, Parser, Subcommand};
use forkd_envd::port::{ENVD, INTERPRETER};
use forkd_machine::Name;

use crate::size::parse_mib;

/// Sandboxes for AI agents that fork like processes.
#[derive(Debug, Parser)]
#[command(name = "forkd", version, max_term_width = 100)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command in a new sandbox, which is removed at its end.
    ///
    /// Given an image, a snapshot of it is made the first time and forked from then on. Exits with the command's status. Starts
    /// a daemon where there is none.
    Run(RunOptions),
    /// Make a snapshot of an image or of a sandbox; list, show and remove snapshots.
    ///
    /// The image is booted and warmed up, then the guest is frozen. Prints the snapshot's tag.
    Snapshot(Box<SnapshotOptions>),
    /// Fork sandboxes from a snapshot, or from a sandbox. Prints their ids.
    Fork(ForkOptions),
    /// Make a snapshot of a sandbox, which goes on. Prints the snapshot's tag.
    Branch(BranchOptions),
    /// List the sandboxes.
    #[command(visible_alias = "ps")]
    Ls(SandboxLsOptions),
    /// Show what is known of a sandbox or a snapshot.
    Inspect(InspectOptions),
    /// Run a command in a sandbox, with this command's stdin, stdout and stderr.
    ///
    /// Exits with the command's status; 128 + N if a signal ended it.
    Exec(ExecIn),
    /// Run code in one of a sandbox's interpreters, which keep their state from call to call.
    ///
    /// Prints what the code prints, then the value of its last expression. Exits with 1 when the code fails.
    Eval(EvalOptions),
    /// Interpreter contexts of a sandbox: list them, make one, interrupt the code in one, restart or remove one.
    Context {
        #[command(subcommand)]
        command: ContextCommand,
    },
    /// Programs that were started in a sandbox: list them, attach to one, write to one, send a signal.
    Process {
        #[command(subcommand)]
        command: ProcessCommand,
    },
    /// Open a shell in a sandbox.
    Shell(ShellIn),
    /// Copy files and directories into a sandbox or out of it.
    Cp(CpOptions),
    /// Print a sandbox's console.
    Logs(ConsoleOptions),
    /// Show what sandboxes use, over and over.
    Stats(StatsOptions),
    /// Print what happens, as it happens.
    Events(EventsOptions),
    /// End sandboxes and forget them. Their branches stay.
    Kill(KillOptions),
    /// Stop sandboxes where they are.
    Pause(SandboxesOptions),
    /// Let sandboxes go on.
    Resume(SandboxesOptions),
    /// Take a sandbox back to one of its own branches, in place.
    Rollback(RollbackOptions),
    /// Show or change what a sandbox may reach, from one packet to the next.
    Egress(EgressOptions),
    /// Show or change how much a sandbox may send and receive each second, from one packet to the next.
    Bandwidth(BandwidthOptions),
    /// List the snapshots: what sandboxes are forked from. Images are listed by `forkd image ls`.
    Images(SnapshotLsOptions),
    /// Remove snapshots. Images are removed by `forkd image rm`.
    Rmi(SnapshotRmOptions),
    /// Ask the daemon, or the agent of a sandbox, whether it answers.
    Ping(PingOptions),
    /// Show what is left of sandboxes that have ended and of snapshots that failed, and remove it if told so.
    Cleanup(CleanupOptions),
    /// Time what matters, on this host.
    Bench {
        #[command(subcommand)]
        command: BenchCommand,
    },
    /// Find out whether and how sandboxes can run on this host.
    ///
    /// Exits with 1 when they can run neither natively nor in the machine.
    Doctor(DoctorOptions),
    /// Boot an image and put its agent on ports of the loopback, until Ctrl-C.
    ///
    /// The official E2B SDKs reach it there in their debug mode.
    Dev(DevOptions),
    /// Be the daemon: answer the API until SIGTERM.
    ///
    /// SIGHUP opens the audit log and the certificate again.
    Serve(ServeOptions),
    /// E2B's clients, unchanged, as users of this daemon.
    E2b {
        #[command(subcommand)]
        command: E2bCommand,
    },
    /// Serve sandboxes as tools of a model: the Model Context Protocol, over stdin and stdout.
    ///
    /// A client starts this command; `forkd mcp install` writes its configuration. The daemon itself serves the same over HTTP, at /mcp.
    Mcp(Box<McpOptions>),
    /// Tokens: who may do what over TCP.
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// Projects: whose sandboxes, snapshots and images are whose. A token belongs to one.
    Project {
        #[command(subcommand)]
        command: ProjectCommand,
    },
    /// A Linux host with KVM in software, for hosts whose own KVM cannot run sandboxes.
    Machine {
        #[command(subcommand)]
        command: MachineCommand,
    },
    /// Kernels that sandboxes boot.
    ///
    /// This is the daemon's work: that of the one that --address names, else that of this host's own. Without either, one is
    /// started for the command. It uses this host's library, which the next daemon finds; the machine's daemon reads it, too.
    Kernel {
        #[command(subcommand)]
        command: KernelCommand,
    },
    /// Images: the file systems that sandboxes start with.
    ///
    /// This is the daemon's work: that of the one that --address names, else that of this host's own. Without either, one is
    /// started for the command. It uses this host's library, which the next daemon finds; the machine's daemon reads it, too.
    Image {
        #[command(subcommand)]
        command: ImageCommand,
    },
    /// Recipes: images and warm snapshots for common tasks, each with a program that shows its use.
    Recipe {
        #[command(subcommand)]
        command: RecipeCommand,
    },
    /// Print the completions of a shell, such as: forkd completions bash > /etc/bash_completion.d/forkd
    Completions(CompletionsOptions),
    /// Write the manual pages.
    Man(ManOptions),
    /// In the machine: keep one guest of a build, told what to do on stdin.
    #[command(hide = true)]
    BuildGuest(BuildGuestOptions),
}

#[derive(Debug, Subcommand)]
pub enum MachineCommand {
    /// Make a machine; the first one builds the image, which takes a minute or two.
    Init(InitOptions),
    /// Start a machine and wait until it is ready.
    Start(StartOptions),
    /// Start the daemon in a machine that runs, and say how to reach it.
    Serve(MachineServeOptions),
    /// Shut a machine down.
    Stop(StopOptions),
    /// Show what a machine is doing.
    Status(StatusOptions),
    /// Run a command in a machine, as root, with this command's stdin, stdout and stderr.
    ///
    /// Exits with the command's status; 128 + N if a signal ended it.
    Exec(ExecOptions),
    /// Open a shell in a machine.
    Shell(ShellOptions),
    /// Print a machine's console.
    Logs(LogsOptions),
    /// List the machines.
    Ls(LsOptions),
    /// Remove a machine and its disk.
    Rm(RmOptions),
}

#[derive(Debug, Args)]
pub struct DevOptions {
    /// An image, by name or id.
    pub image: String,
    /// vCPUs of the guest; as the image's recipe says, else 1.
    #[arg(long)]
    pub vcpus: Option<u8>,
    /// Memory of the guest, in MiB or with a unit (512, 2G); as the image's recipe says, else 512.
    #[arg(long, value_parser = parse_mib)]
    pub memory: Option<u64>,
    /// The guest's disk; as the image's recipe says, else 4G.
    #[arg(long, value_parser = parse_mib)]
    pub disk: Option<u64>,
    /// The machine to use where this host's own KVM cannot run guests.
    #[arg(long, default_value = "default")]
    pub machine: Name,
    /// The port for envd.
    #[arg(long, default_value_t = ENVD)]
    pub envd_port: u16,
    /// The port for the code interpreter.
    #[arg(long, default_value_t = INTERPRETER)]
    pub interpreter_port: u16,
}

#[derive(Debug, Args)]
pub struct BuildGuestOptions {
    /// A new directory for the guest's socket and what it writes; it is removed at the end.
    pub directory: std::path::PathBuf,
}

#[derive(Debug, Args)]
pub struct DoctorOptions {
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct Which {
    /// The machine's name.
    #[arg(long, default_value = "default")]
    pub name: Name,
}

#[derive(Debug, Args)]
pub struct Output {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct InitOptions {
    #[command(flatten)]
    pub which: Which,
    /// CPUs [default: 1 under emulation, where more are unreliable; else the host's].
    #[arg(long)]
    pub cpus: Option<u32>,
    /// Memory, such as 4G; a bare number is MiB [default: 4G].
    #[arg(long, value_parser = parse_mib)]
    pub memory: Option<u64>,
    /// Size of the disk, such as 20G; it takes space only as it fills [default: 20G].
    #[arg(long, value_parser = parse_mib)]
    pub disk: Option<u64>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct StartOptions {
    #[command(flatten)]
    pub which: Which,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct StopOptions {
    #[command(flatten)]
    pub which: Which,
    /// End the machine without asking it.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct MachineServeOptions {
    #[command(flatten)]
    pub which: Which,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct StatusOptions {
    #[command(flatten)]
    pub which: Which,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct ExecOptions {
    #[command(flatten)]
    pub which: Which,
    /// The command and its arguments.
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

#[derive(Debug, Args)]
pub struct ShellOptions {
    #[command(flatten)]
    pub which: Which,
}

#[derive(Debug, Args)]
pub struct LogsOptions {
    #[command(flatten)]
    pub which: Which,
    /// Go on printing what comes, until interrupted.
    #[arg(long, short)]
    pub follow: bool,
}

#[derive(Debug, Args)]
pub struct LsOptions {
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct RmOptions {
    #[command(flatten)]
    pub which: Which,
    /// Also a machine that is running or whose files are damaged.
    #[arg(long)]
    pub force: bool,
    /// Also remove cached images that no machine uses.
    #[arg(long)]
    pub prune: bool,
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("expected NAME=VALUE".into()),
    }
}

/// Seconds, or a time with units.
fn parse_seconds(text: &str) -> Result<u64, String> {
    let wrong = "expected seconds, or a time such as 90s, 10m or 2h";
    let seconds = match text.parse::<u64>() {
        Ok(seconds) => seconds,
        Err(_) => humantime::parse_duration(text).map_err(|_| wrong)?.as_secs(),
    };
    if seconds == 0 { Err(wrong.into()) } else { Ok(seconds) }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_grammar_is_consistent() {
        super::Arguments::command().debug_assert();
    }

    #[test]
    fn times_have_units_or_are_seconds() {
        use super::parse_seconds;
        for (text, seconds) in [("90", 90), ("10m", 600), ("2h 1s", 7201), ("24h", 86400)] {
            assert_eq!(parse_seconds(text), Ok(seconds));
        }
        for wrong in ["", "0", "1ms", "-1", "x", "1.5"] {
            assert!(parse_seconds(wrong).is_err(), "{wrong}");
        }
    }
}
