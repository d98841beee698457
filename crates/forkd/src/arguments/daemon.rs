//! Which daemon is asked.

use std::path::PathBuf;

use clap::Args;
use forkd_client::Address;
use forkd_machine::Name;

/// These options stand apart in the help of every verb.
const HEADING: &str = "Daemon";

#[derive(Debug, Clone, Args)]
pub struct DaemonOptions {
    /// Address of the daemon: unix:///path, http://host:port or https://host:port [default: this host's, else the machine's].
    #[arg(long, help_heading = HEADING, alias = "daemon-url", env = "FORKD_ADDRESS", hide_env_values = true)]
    pub address: Option<Address>,
    /// File with the API token. FORKD_TOKEN holds the token itself.
    #[arg(long, help_heading = HEADING, value_name = "PATH", env = "FORKD_TOKEN_FILE", hide_env_values = true)]
    pub token_file: Option<PathBuf>,
    /// The machine whose daemon is used if this host has none.
    #[arg(
        long,
        help_heading = HEADING,
        value_name = "NAME",
        env = "FORKD_MACHINE",
        default_value = "default",
        hide_env_values = true
    )]
    pub machine: Name,
}
