//! `forkd snapshot rm`, `forkd rmi`.

use forkd_api::snapshot::RemovedSnapshots;

use crate::arguments::SnapshotRmOptions;
use crate::commands::{lines, print_value, with_daemon};
use crate::error::{self, CliError};
use crate::exit::Exit;

pub fn run(options: &SnapshotRmOptions) -> Result<Exit, CliError> {
    with_daemon(&options.daemon, async |client| {
        let (mut all, mut exit) = (RemovedSnapshots { removed: Vec::new() }, Exit::Success);
        for tag in &options.tags {
            // One may have gone with the one before.
            if all.removed.contains(tag) {
                continue;
            }
            match client.remove_snapshot(tag, options.cascade).await {
                Ok(removed) => all.removed.extend(removed.removed),
                Err(error) => {
                    error::print(&error.into());
                    exit = Exit::Failure;
                }
            }
        }
        print_value(&options.output, &all, || lines(&all.removed))?;
        Ok(exit)
    })
}
