//! The command line's grammar. What the words mean is in `commands`.

#[cfg(test)]
mod aliases;
mod daemon;
mod e2b;
mod hold;
mod image;
mod kernel;
mod mcp;
mod recipe;
mod run;
mod running;
mod sandbox;
mod serve;
mod shown;
mod snapshot;
mod token;
mod watch;

pub use daemon::*;
pub use e2b::*;
pub use hold::*;
pub use image::*;
pub use kernel::*;
pub use mcp::*;
pub use recipe::*;
pub use run::*;
pub use running::*;
pub use sandbox::*;
pub use serve::*;
pub use shown::{command, examples};
pub use snapshot::*;
pub use token::*;
pub use watch::*;

use clap::{Args, Parser, Subcommand};
use forkd_envd::port::{ENVD, INTERPRETER};
use forkd_machine::Name;

use crate::size::parse_mib;

/// Sandboxes for AI agents that fork like processes.
#[derive(Debug, Parser)]
#[command(
    name = "forkd",
    version,
    long_version = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILD_COMMIT"), ")"),
    max_term_width = 100
)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command in a new sandbox, and remove the sandbox when the command ends.
    ///
    /// Given an image, makes a snapshot of it the first time and forks that one from then on. Exits with the command's status.
    /// Starts a daemon if none is running.
    Run(RunOptions),
    /// Make snapshots of images and sandboxes, and manage them.
    ///
    /// `forkd snapshot IMAGE` boots the image, warms the guest up, freezes it, and prints the snapshot's tag.
    Snapshot(Box<SnapshotOptions>),
    /// Fork sandboxes from a snapshot or from a running sandbox, and print their ids.
    Fork(ForkOptions),
    /// Make a snapshot of a sandbox while it keeps running, and print the snapshot's tag.
    Branch(BranchOptions),
    /// List sandboxes.
    #[command(visible_alias = "ps")]
    Ls(SandboxLsOptions),
    /// Show the details of a sandbox or a snapshot.
    Inspect(InspectOptions),
    /// Run a command in a sandbox, connected to this terminal.
    ///
    /// Exits with the command's status, or with 128 + N if signal N ended it.
    Exec(ExecIn),
    /// Run code in an interpreter of a sandbox; variables are kept between calls.
    ///
    /// Prints what the code prints, then the value of its last expression. Exits with 1 if the code raises an error.
    Eval(EvalOptions),
    /// Manage the interpreter contexts of a sandbox: list, create, interrupt, restart, remove.
    Context {
        #[command(subcommand)]
        command: ContextCommand,
    },
    /// Manage the processes of a sandbox: list, start, attach, write to stdin, send signals.
    Process {
        #[command(subcommand)]
        command: ProcessCommand,
    },
    /// Open a shell in a sandbox.
    Shell(ShellIn),
    /// Copy files and directories into or out of a sandbox.
    Cp(CpOptions),
    /// Print the console output of a sandbox.
    Logs(ConsoleOptions),
    /// Show the CPU time, memory, disk and network use of sandboxes.
    Stats(StatsOptions),
    /// Print events of sandboxes and snapshots as they happen.
    Events(EventsOptions),
    /// End sandboxes and remove them. Their branches stay.
    #[command(visible_alias = "rm")]
    Kill(KillOptions),
    /// Wait until sandboxes end, and print why each ended.
    Wait(WaitOptions),
    /// Show or change when a sandbox ends.
    Ttl(TtlOptions),
    /// Forward local TCP ports to ports of a sandbox, until Ctrl-C or until the sandbox ends.
    ///
    /// Prints a line for each: the local address, and the port of the sandbox.
    PortForward(PortForwardOptions),
    /// Pause sandboxes: stop their CPUs, keep their memory.
    Pause(SandboxesOptions),
    /// Resume paused sandboxes.
    Resume(SandboxesOptions),
    /// Return a sandbox to the state of one of its branches, in place.
    Rollback(RollbackOptions),
    /// Show or change which addresses a sandbox may connect to.
    Egress(EgressOptions),
    /// Show or change the bandwidth limit of a sandbox.
    Bandwidth(BandwidthOptions),
    /// List images, as `forkd image ls` does. Snapshots are listed by `forkd snapshot ls`.
    Images(ImageLsOptions),
    /// Remove an image, as `forkd image rm` does. Snapshots are removed by `forkd snapshot rm`.
    Rmi(ImageRmOptions),
    /// Check that the daemon, or the agent of a sandbox, responds.
    Ping(PingOptions),
    /// List ended sandboxes and failed snapshots; with --yes, remove them.
    Cleanup(CleanupOptions),
    /// Run benchmarks on this host.
    Bench {
        #[command(subcommand)]
        command: BenchCommand,
    },
    /// Check whether this host can run sandboxes, and how.
    ///
    /// Exits with 1 if sandboxes can run neither natively nor in the machine.
    Doctor(DoctorOptions),
    /// Boot an image and serve its agent on loopback ports until Ctrl-C.
    ///
    /// The official E2B SDKs connect to it in their debug mode.
    Dev(DevOptions),
    /// Run the daemon in the foreground until SIGTERM.
    ///
    /// SIGHUP reopens the audit log and reloads the TLS certificate.
    Serve(ServeOptions),
    /// Find or start a daemon for other programs, and hold it until stdin is closed.
    ///
    /// Prints one line of JSON when the daemon responds: url, token if one is needed, and private. If a daemon was already running,
    /// private is false and the command exits at once. Otherwise a private daemon is started, which ends with all of its sandboxes
    /// when the last process that holds it has closed stdin or has ended. If this host's KVM cannot run guests, the machine is started
    /// and stopped in the same way. Clients run this command if FORKD_AUTOSTART=1.
    Hold(HoldOptions),
    /// Set up this daemon for the official E2B SDKs.
    E2b {
        #[command(subcommand)]
        command: E2bCommand,
    },
    /// Run a Model Context Protocol (MCP) server on stdin and stdout.
    ///
    /// MCP clients start this command; `forkd mcp install` writes their configuration. The daemon serves the same tools over HTTP at /mcp.
    Mcp(Box<McpOptions>),
    /// Manage API tokens.
    ///
    /// Tokens are kept in FORKD_HOME, which must be that of the daemon: /var/lib/forkd for the systemd service.
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// Manage projects. A token belongs to one project and sees only what that project owns.
    ///
    /// Limits are kept with the tokens, in FORKD_HOME, which must be that of the daemon: /var/lib/forkd for the systemd service.
    Project {
        #[command(subcommand)]
        command: ProjectCommand,
    },
    /// Manage machines: emulated Linux hosts with KVM, for hosts that cannot run sandboxes themselves.
    Machine {
        #[command(subcommand)]
        command: MachineCommand,
    },
    /// Manage guest kernels.
    ///
    /// The daemon named by --address does the work, or else this host's daemon. If none is running, one is started for the command.
    /// Kernels are kept in this host's library, which the machine's daemon reads as well.
    Kernel {
        #[command(subcommand)]
        command: KernelCommand,
    },
    /// Manage images: the root file systems that snapshots are made from.
    ///
    /// The daemon named by --address does the work, or else this host's daemon. If none is running, one is started for the command.
    /// Images are kept in this host's library, which the machine's daemon reads as well.
    Image {
        #[command(subcommand)]
        command: ImageCommand,
    },
    /// Manage recipes: images and warm snapshots for common tasks, each with an example program.
    Recipe {
        #[command(subcommand)]
        command: RecipeCommand,
    },
    /// Print a shell completion script, as in: forkd completions bash > /etc/bash_completion.d/forkd
    Completions(CompletionsOptions),
    /// Write the manual pages to a directory.
    Man(ManOptions),
    /// In the machine: keep one guest of a build, told what to do on stdin.
    #[command(hide = true)]
    BuildGuest(BuildGuestOptions),
}

#[derive(Debug, Subcommand)]
pub enum MachineCommand {
    /// Create a machine. The first one builds the disk image, which takes one to two minutes.
    Init(InitOptions),
    /// Start a machine, and wait until it is ready.
    Start(StartOptions),
    /// Start the daemon in a running machine, and print how to reach it.
    Serve(MachineServeOptions),
    /// Stop a machine.
    Stop(StopOptions),
    /// Show the state of a machine.
    Status(StatusOptions),
    /// Run a command in a machine as root, connected to this terminal.
    ///
    /// Exits with the command's status, or with 128 + N if signal N ended it.
    Exec(ExecOptions),
    /// Open a shell in a machine.
    Shell(ShellOptions),
    /// Print the console output of a machine.
    Logs(LogsOptions),
    /// List machines.
    Ls(LsOptions),
    /// Remove a machine and its disk.
    Rm(RmOptions),
}

#[derive(Debug, Args)]
pub struct DevOptions {
    /// An image, by name or id.
    pub image: String,
    /// Number of vCPUs [default: the image's recipe, else 1].
    #[arg(long)]
    pub vcpus: Option<u8>,
    /// Guest memory, in MiB or with a unit (512, 2G) [default: the image's recipe, else 512].
    #[arg(long, value_parser = parse_mib)]
    pub memory: Option<u64>,
    /// Size of the guest's disk, in MiB or with a unit [default: the image's recipe, else 4G].
    #[arg(long, value_parser = parse_mib)]
    pub disk: Option<u64>,
    /// The machine to use if this host's KVM cannot run guests.
    #[arg(long, default_value = "default")]
    pub machine: Name,
    /// Local port of envd.
    #[arg(long, default_value_t = ENVD)]
    pub envd_port: u16,
    /// Local port of the code interpreter.
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
    #[arg(long, alias = "machine", default_value = "default")]
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
    /// Number of CPUs [default: 1 if emulated, where more are unreliable; else the host's].
    #[arg(long)]
    pub cpus: Option<u32>,
    /// Memory, in MiB or with a unit [default: 4G].
    #[arg(long, value_parser = parse_mib)]
    pub memory: Option<u64>,
    /// Size of the disk, in MiB or with a unit; the file is sparse [default: 20G].
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
    /// Kill the machine instead of shutting it down.
    #[arg(long, short)]
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
    /// Keep printing new output until interrupted.
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
    /// Remove it even if it is running or its files are damaged.
    #[arg(long, short)]
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
