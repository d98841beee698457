//! `forkd hold`.

use clap::Args;
use forkd_machine::Name;

use super::DaemonOptions;

#[derive(Debug, Args)]
pub struct HoldOptions {
    #[command(flatten)]
    pub daemon: DaemonOptions,
    /// Keep this machine running as long as it is held; stdin is the keeper's lock.
    #[arg(long, hide = true, value_name = "NAME")]
    pub keep_machine: Option<Name>,
}
