//! `forkd snapshot compact`.

use crate::arguments::SnapshotInspectOptions;
use crate::commands::{print_json, say, with_daemon};
use crate::error::CliError;
use crate::exit::Exit;
use crate::moment::bytes;

pub fn run(options: &SnapshotInspectOptions) -> Result<Exit, CliError> {
    let snapshot =
        with_daemon(&options.daemon, async |client| Ok(client.compact_snapshot(&options.tag).await?))?;
    match options.output.json {
        true => print_json(&snapshot)?,
        false => {
            let size = bytes(snapshot.size.memory_bytes);
            say(&format!("Snapshot {} is full: {size} of memory on disk.", snapshot.tag));
        }
    }
    Ok(Exit::Success)
}
