//! `forkd token …`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use forkd_api::token::{Scope, TokenLimits};
use forkd_daemon::auth::Project;

use super::{LsOptions, Output};
use crate::size::parse_mib;

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a token and print its secret, which is not stored anywhere.
    ///
    /// FORKD_HOME must be that of the daemon: for the systemd service, run FORKD_HOME=/var/lib/forkd forkd token create NAME as root.
    Create(TokenCreateOptions),
    /// List tokens.
    Ls(LsOptions),
    /// Revoke a token, effective immediately.
    Rm(TokenRmOptions),
}

#[derive(Debug, Args)]
pub struct TokenCreateOptions {
    /// The token's name, which the audit log shows.
    pub name: String,
    /// Permissions; each scope includes those before it.
    #[arg(long, value_enum, default_value = "run")]
    pub scope: ScopeArgument,
    /// The project that the token belongs to. Only admin tokens see other projects.
    #[arg(long, value_name = "PROJECT", default_value_t)]
    pub project: Project,
    /// Use the secret in this file (e2b_ and 40 hexadecimal digits) instead of generating one, and print none. Replaces the token
    /// of this name if there is one.
    #[arg(long, value_name = "PATH")]
    pub secret_file: Option<PathBuf>,
    #[command(flatten)]
    pub limits: AllowanceOptions,
    #[command(flatten)]
    pub output: Output,
}

/// What there may be at once.
#[derive(Debug, Args)]
pub struct AllowanceOptions {
    /// Maximum number of sandboxes, including guests that make snapshots and images.
    #[arg(long, value_name = "COUNT")]
    pub max_sandboxes: Option<u64>,
    /// Maximum total guest memory, in MiB or with a unit (512, 2G), including memory that branches hold.
    #[arg(long, value_name = "SIZE", value_parser = parse_mib)]
    pub max_memory: Option<u64>,
    /// Maximum total number of vCPUs.
    #[arg(long, value_name = "COUNT")]
    pub max_vcpus: Option<u64>,
    /// Maximum number of snapshots, including branches.
    #[arg(long, value_name = "COUNT")]
    pub max_snapshots: Option<u64>,
    /// Maximum disk space of snapshots, in MiB or with a unit, including branches. `forkd snapshot prune` makes room.
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
    /// List projects that have tokens or limits.
    Ls(LsOptions),
    /// Set the limits of a project, shared by all its tokens. Replaces all previous limits.
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
    /// Look at everything in its project.
    Read,
    /// Also create, use and remove sandboxes and snapshots.
    Run,
    /// Everything, in every project.
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
