//! `forkd branch`.

use forkd_api::sandbox::BranchSandbox;
use forkd_api::snapshot::Snapshot;

use super::{print, print_json, say, with_daemon};
use crate::arguments::{BranchOptions, Output};
use crate::error::CliError;
use crate::exit::Exit;
use crate::moment::microseconds;

pub fn run(options: &BranchOptions) -> Result<Exit, CliError> {
    forkd_proto::passes!();
    let wanted = BranchSandbox { tag: options.tag.clone(), wait: options.wait };
    let snapshot =
        with_daemon(&options.daemon, async |client| Ok(client.branch(&options.sandbox, &wanted).await?))?;
    show(&snapshot, &options.output)?;
    Ok(Exit::Success)
}

/// Prints the tag of a new snapshot, or everything as JSON.
pub(super) fn show(snapshot: &Snapshot, output: &Output) -> Result<(), CliError> {
    if output.json {
        return print_json(snapshot);
    }
    print(&format!("{}\n", snapshot.tag))?;
    if let Some(pause) = snapshot.pause_us {
        say(&format!("Paused for {}.", microseconds(pause)));
    }
    Ok(())
}
