//! Verbs for sandboxes, from their beginning to their end.

use clap::{Args, ValueEnum};
use forkd_api::sandbox::{Egress, EgressMode, SandboxState};

use super::{DaemonOptions, Output, parse_pair, parse_seconds};
use crate::size::parse_mib;

#[derive(Debug, Args)]
pub struct ForkOptions {
    /// A snapshot, or a sandbox, which is branched first and goes on.
    #[arg(value_name = "SNAPSHOT|SANDBOX")]
    pub source: String,
    /// How many.
    #[arg(short, long = "n", value_name = "COUNT", default_value_t = 1)]
    pub n: u32,
    /// Keep those that came up when others did not.
    #[arg(long)]
    pub partial: bool,
    #[command(flatten)]
    pub given: Given,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

/// What a new sandbox is given.
#[derive(Debug, Args)]
pub struct Given {
    /// End them by themselves after this time, such as 90, 10m or 2h.
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub ttl: Option<u64>,
    /// Add this to the environment of everything that is started in them.
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub env: Vec<(String, String)>,
    /// Words of your own, by which lists can be filtered.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub metadata: Vec<(String, String)>,
    #[command(flatten)]
    pub egress: EgressArguments,
    /// The most bytes a second that each may send, and may receive, such as 10M.
    #[arg(long, value_name = "SIZE", value_parser = parse_mib)]
    pub bandwidth: Option<u64>,
}

/// What a sandbox may reach.
#[derive(Debug, Args)]
pub struct EgressArguments {
    /// Whether packets go out: to the internet, or nowhere.
    #[arg(long, value_enum, value_name = "MODE", conflicts_with = "allow")]
    pub egress: Option<EgressArgument>,
    /// Reach only this, and whatever else is allowed so: 10.1.0.0/16, example.com, *.example.com, each with ports if only
    /// those are meant (example.com:443).
    #[arg(long, value_name = "TARGET")]
    pub allow: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EgressArgument {
    /// To the internet, and not to private networks.
    Allow,
    /// Nowhere.
    Deny,
}

impl EgressArguments {
    /// What is asked for, if anything is.
    pub fn wanted(&self) -> Option<Egress> {
        if !self.allow.is_empty() {
            return Some(Egress { mode: EgressMode::List, allow: self.allow.clone() });
        }
        let mode = match self.egress? {
            EgressArgument::Allow => EgressMode::Allow,
            EgressArgument::Deny => EgressMode::Deny,
        };
        Some(Egress { mode, allow: Vec::new() })
    }
}

#[derive(Debug, Args)]
pub struct EgressOptions {
    /// The sandbox.
    pub sandbox: String,
    #[command(flatten)]
    pub egress: EgressArguments,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct BranchOptions {
    /// The sandbox.
    pub sandbox: String,
    /// The snapshot's name [default: one that is free].
    #[arg(long)]
    pub tag: Option<String>,
    /// Wait until the snapshot is on disk. It can be forked from before that.
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct SandboxLsOptions {
    /// Also those that have ended.
    #[arg(long, short)]
    pub all: bool,
    /// Only those in this state.
    #[arg(long, value_enum)]
    pub state: Option<StateArgument>,
    /// Only those that were forked from this snapshot.
    #[arg(long, value_name = "TAG")]
    pub snapshot: Option<String>,
    /// Only those with this metadata.
    #[arg(long, value_name = "KEY=VALUE")]
    pub metadata: Option<String>,
    /// Print ids only.
    #[arg(long, short, conflicts_with = "json")]
    pub quiet: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StateArgument {
    Starting,
    Running,
    Paused,
    Ended,
}

impl From<StateArgument> for SandboxState {
    fn from(argument: StateArgument) -> SandboxState {
        match argument {
            StateArgument::Starting => SandboxState::Starting,
            StateArgument::Running => SandboxState::Running,
            StateArgument::Paused => SandboxState::Paused,
            StateArgument::Ended => SandboxState::Ended,
        }
    }
}

#[derive(Debug, Args)]
pub struct InspectOptions {
    /// A sandbox's id, or a snapshot's tag.
    #[arg(value_name = "SANDBOX|SNAPSHOT")]
    pub id: String,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct KillOptions {
    /// Sandboxes.
    #[arg(value_name = "SANDBOX", required_unless_present_any = ["all", "snapshot"])]
    pub sandboxes: Vec<String>,
    /// Every sandbox.
    #[arg(long, conflicts_with = "sandboxes")]
    pub all: bool,
    /// Every sandbox that was forked from this snapshot.
    #[arg(long, alias = "tag", value_name = "TAG", conflicts_with_all = ["sandboxes", "all"])]
    pub snapshot: Option<String>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

/// Verbs that do the same to each of some sandboxes.
#[derive(Debug, Args)]
pub struct SandboxesOptions {
    /// Sandboxes.
    #[arg(value_name = "SANDBOX", required = true)]
    pub sandboxes: Vec<String>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct RollbackOptions {
    /// The sandbox.
    pub sandbox: String,
    /// One of its own branches.
    pub tag: String,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct PingOptions {
    /// A sandbox, whose agent shall answer, too.
    pub sandbox: Option<String>,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct CleanupOptions {
    /// Remove them, instead of only saying what would be removed.
    #[arg(long, short)]
    pub yes: bool,
    /// Also snapshots that `forkd run` made and that no sandbox or snapshot comes from.
    #[arg(long)]
    pub runs: bool,
    #[command(flatten)]
    pub daemon: DaemonOptions,
    #[command(flatten)]
    pub output: Output,
}
