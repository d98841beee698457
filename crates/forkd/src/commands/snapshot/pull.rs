//! `forkd snapshot pull`.

use forkd_api::snapshot::PullSnapshot;

use super::inspect::show;
use crate::arguments::SnapshotPullOptions;
use crate::commands::image::pull::credentials;
use crate::commands::with_daemon;
use crate::error::CliError;
use crate::exit::Exit;
use crate::progress::Progress;

pub fn run(options: &SnapshotPullOptions) -> Result<Exit, CliError> {
    let snapshot = with_daemon(&options.daemon, async |client| {
        let wanted = PullSnapshot {
            reference: options.reference.clone(),
            tag: options.tag.clone(),
            credentials: credentials(&client, &options.reference)?,
        };
        let progress = Progress::new();
        let pulled = client.pull_snapshot(&wanted, |told| progress.told(&told)).await;
        progress.finish();
        Ok(pulled?)
    })?;
    show(&snapshot, &options.output)?;
    Ok(Exit::Success)
}
