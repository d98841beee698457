//! `forkd snapshot pull`.

use forkd_api::snapshot::PullSnapshot;
use forkd_hub::trust::PublicKey;

use super::inspect::show;
use super::key::public_key;
use crate::arguments::SnapshotPullOptions;
use crate::commands::image::pull::credentials;
use crate::commands::with_daemon;
use crate::error::CliError;
use crate::exit::Exit;
use crate::progress::Progress;

pub fn run(options: &SnapshotPullOptions) -> Result<Exit, CliError> {
    let key = options.key.as_deref().map(public_key).transpose()?;
    let snapshot = with_daemon(&options.daemon, async |client| {
        let wanted = PullSnapshot {
            reference: options.reference.clone(),
            tag: options.tag.clone(),
            credentials: credentials(&client, &options.reference)?,
            key: key.as_ref().map(PublicKey::to_pem),
        };
        let progress = Progress::new();
        let pulled = client.pull_snapshot(&wanted, |told| progress.told(&told)).await;
        progress.finish();
        Ok(pulled?)
    })?;
    show(&snapshot, &options.output)?;
    Ok(Exit::Success)
}
