//! The command line's grammar. What the words mean is in `commands`.

mod image;
mod kernel;
mod serve;
mod token;

pub use image::*;
pub use kernel::*;
pub use serve::*;
pub use token::*;

use clap::{Args, Parser, Subcommand};
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
    /// Tokens: who may do what over TCP.
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// A Linux host with KVM in software, for hosts whose own KVM cannot run sandboxes.
    Machine {
        #[command(subcommand)]
        command: MachineCommand,
    },
    /// Kernels that sandboxes boot.
    Kernel {
        #[command(subcommand)]
        command: KernelCommand,
    },
    /// Images: the file systems that sandboxes start with.
    Image {
        #[command(subcommand)]
        command: ImageCommand,
    },
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
    #[arg(long, default_value_t = 49983)]
    pub envd_port: u16,
    /// The port for the code interpreter.
    #[arg(long, default_value_t = 49999)]
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_grammar_is_consistent() {
        super::Arguments::command().debug_assert();
    }
}
