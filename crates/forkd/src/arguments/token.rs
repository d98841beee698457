//! `forkd token …`.

use clap::{Args, Subcommand, ValueEnum};
use forkd_api::token::{Scope, TokenLimits};
use forkd_daemon::auth::Project;

use super::{LsOptions, Output};
use crate::size::parse_mib;

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token and print its secret, which is kept nowhere else. It is good at once.
    Create(TokenCreateOptions),
    /// List the tokens.
    Ls(LsOptions),
    /// Remove a token. It is refused at once.
    Rm(TokenRmOptions),
}

#[derive(Debug, Args)]
pub struct TokenCreateOptions {
    /// The token's name, which the audit log will have.
    pub name: String,
    /// What it allows; each has all of those before it.
    #[arg(long, value_enum, default_value = "run")]
    pub scope: ScopeArgument,
    /// The project whose sandboxes, snapshots and images it is for. It sees no other's, unless its scope is admin.
    #[arg(long, value_name = "PROJECT", default_value_t)]
    pub project: Project,
    #[command(flatten)]
    pub limits: AllowanceOptions,
    #[command(flatten)]
    pub output: Output,
}

/// What there may be at once.
#[derive(Debug, Args)]
pub struct AllowanceOptions {
    /// The most sandboxes at once. Guests that make snapshots and images count as well.
    #[arg(long, value_name = "COUNT")]
    pub max_sandboxes: Option<u64>,
    /// The most memory of their guests and of what their branches keep in memory, together.
    #[arg(long, value_name = "SIZE", value_parser = parse_mib)]
    pub max_memory: Option<u64>,
    /// The most vCPUs of theirs, together.
    #[arg(long, value_name = "COUNT")]
    pub max_vcpus: Option<u64>,
    /// The most snapshots, branches too.
    #[arg(long, value_name = "COUNT")]
    pub max_snapshots: Option<u64>,
    /// The most that snapshots may take on disk, branches too. `forkd snapshot prune` makes room.
    #[arg(long, value_name = "SIZE", value_parser = parse_mib)]
    pub max_snapshot_disk: Option<u64>,
}

impl From<&AllowanceOptions> for TokenLimits {
    fn from(options: &AllowanceOptions) -> TokenLimits {
        TokenLimits {
            sandboxes: options.max_sandboxes,
            memory_mib: options.max_memory,
            vcpus: options.max_vcpus,
            snapshots: options.max_snapshots,
            snapshot_mib: options.max_snapshot_disk,
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum ProjectCommand {
    /// List the projects that tokens belong to or that have limits.
    Ls(LsOptions),
    /// Set what all tokens of a project may have together, in the place of what was set before.
    Limit(ProjectLimitOptions),
}

#[derive(Debug, Args)]
pub struct ProjectLimitOptions {
    /// The project's name.
    pub project: Project,
    #[command(flatten)]
    pub limits: AllowanceOptions,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct TokenRmOptions {
    /// The token's name.
    pub name: String,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum ScopeArgument {
    /// To look at all of its project.
    Read,
    /// To make, use and remove sandboxes and snapshots.
    Run,
    /// Everything, of every project.
    Admin,
}

impl From<ScopeArgument> for Scope {
    fn from(argument: ScopeArgument) -> Scope {
        match argument {
            ScopeArgument::Read => Scope::Read,
            ScopeArgument::Run => Scope::Run,
            ScopeArgument::Admin => Scope::Admin,
        }
    }
}
