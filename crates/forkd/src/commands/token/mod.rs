//! `forkd token …`: the file of tokens, which a daemon notices the changes of.

pub mod create;
pub mod ls;
pub mod rm;

use forkd_api::token::TokenLimits;
use forkd_daemon::auth::{TokenError, TokenFile};
use forkd_host::home;

use crate::error::CliError;

pub fn tokens() -> Result<TokenFile, CliError> {
    Ok(TokenFile::new(&home::directory()?))
}

impl From<TokenError> for CliError {
    fn from(error: TokenError) -> CliError {
        CliError::of_verb(error)
    }
}

/// Limits as words.
pub fn limits(limits: &TokenLimits) -> String {
    let sandboxes = limits.sandboxes.map(|count| format!("{count} sandboxes"));
    let memory = limits.memory_mib.map(|mib| format!("{mib} MiB"));
    let vcpus = limits.vcpus.map(|count| format!("{count} vCPUs"));
    let snapshots = limits.snapshots.map(|count| format!("{count} snapshots"));
    let snapshot_disk = limits.snapshot_mib.map(|mib| format!("{mib} MiB of snapshots"));
    let all: Vec<String> =
        [sandboxes, memory, vcpus, snapshots, snapshot_disk].into_iter().flatten().collect();
    if all.is_empty() { "none".into() } else { all.join(", ") }
}
