//! `forkd snapshot tag`.

use crate::arguments::SnapshotTagOptions;
use crate::commands::{print_json, say, with_daemon};
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &SnapshotTagOptions) -> Result<Exit, CliError> {
    let SnapshotTagOptions { tag, name, force, .. } = options;
    let snapshot =
        with_daemon(&options.daemon, async |client| Ok(client.add_snapshot_name(tag, name, *force).await?))?;
    match options.output.json {
        true => print_json(&snapshot)?,
        false => say(&format!("{name} is a name of snapshot {}.", snapshot.tag)),
    }
    Ok(Exit::Success)
}
