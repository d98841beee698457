//! `forkd snapshot rm`.

use forkd_api::snapshot::{RemoveSnapshot, RemovedSnapshots};

use crate::arguments::SnapshotRmOptions;
use crate::commands::{lines, print_value, with_daemon};
use crate::error::{self, CliError};
use crate::exit::Exit;

pub fn run(options: &SnapshotRmOptions) -> Result<Exit, CliError> {
    with_daemon(&options.daemon, async |client| {
        let (mut all, mut exit) =
            (RemovedSnapshots { removed: Vec::new(), names: Vec::new() }, Exit::Success);
        let removal = RemoveSnapshot { cascade: options.cascade, all_names: options.all_names };
        for tag in &options.tags {
            // One may have gone with the one before.
            if all.removed.contains(tag) {
                continue;
            }
            match client.remove_snapshot(tag, removal).await {
                Ok(removed) => {
                    all.removed.extend(removed.removed);
                    all.names.extend(removed.names);
                }
                Err(error) => {
                    error::print(&error.into());
                    exit = Exit::Failure;
                }
            }
        }
        print_value(&options.output, &all, || lines(all.removed.iter().chain(&all.names)))?;
        Ok(exit)
    })
}
