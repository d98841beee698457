//! `forkd token …`.

use clap::{Args, Subcommand, ValueEnum};
use forkd_api::token::Scope;

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
    /// The most sandboxes that it may have at once.
    #[arg(long, value_name = "COUNT")]
    pub max_sandboxes: Option<u64>,
    /// The most memory of their guests and of what their branches keep in memory, together.
    #[arg(long, value_name = "SIZE", value_parser = parse_mib)]
    pub max_memory: Option<u64>,
    /// The most vCPUs of theirs, together.
    #[arg(long, value_name = "COUNT")]
    pub max_vcpus: Option<u64>,
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
    /// To look at everything.
    Read,
    /// To make, use and remove sandboxes and snapshots.
    Run,
    /// Everything.
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
