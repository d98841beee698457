//! `forkd snapshot share`.

use crate::arguments::SnapshotShareOptions;
use crate::commands::{print_json, say, with_daemon};
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &SnapshotShareOptions) -> Result<Exit, CliError> {
    let snapshot = with_daemon(&options.daemon, async |client| {
        Ok(client.publish_snapshot(&options.tag, !options.off).await?)
    })?;
    if options.output.json {
        print_json(&snapshot)?;
    } else if snapshot.public {
        say(&format!("Every project can fork from {}.", snapshot.tag));
    } else {
        say(&format!("Only project {} can fork from {}.", snapshot.project, snapshot.tag));
    }
    Ok(Exit::Success)
}
