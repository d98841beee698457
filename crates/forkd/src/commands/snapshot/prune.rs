//! `forkd snapshot prune`.

use forkd_api::snapshot::PruneSnapshots;

use crate::arguments::SnapshotPruneOptions;
use crate::commands::{lines, print_value, say, with_daemon};
use crate::error::CliError;
use crate::exit::Exit;
use crate::moment::bytes;

pub fn run(options: &SnapshotPruneOptions) -> Result<Exit, CliError> {
    let wanted = PruneSnapshots {
        unused_seconds: options.unused_for.unwrap_or(0),
        keep_mib: options.keep,
        named: options.all,
        project: options.project.clone(),
        dry_run: options.dry_run,
    };
    let pruned = with_daemon(&options.daemon, async |client| Ok(client.prune_snapshots(&wanted).await?))?;
    print_value(&options.output, &pruned, || lines(pruned.snapshots.iter().map(|one| &one.tag)))?;
    if !options.output.json {
        let (count, freed) = (pruned.snapshots.len(), bytes(pruned.freed_bytes));
        say(&match options.dry_run {
            true => format!("{count} snapshots would be removed and {freed} freed."),
            false => format!("{count} snapshots removed, {freed} freed."),
        });
    }
    Ok(Exit::Success)
}
