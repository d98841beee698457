//! `forkd snapshot pull`.

use forkd_api::snapshot::{PullSnapshot, Snapshot};
use forkd_client::Client;
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
        pull(&client, &options.reference, options.tag.clone(), key.as_ref(), false).await
    })?;
    show(&snapshot, &options.output)?;
    Ok(Exit::Success)
}

/// Pulls a snapshot and shows how far it is. With `reuse`, one that is there already is not pulled.
pub async fn pull(
    client: &Client,
    reference: &str,
    tag: Option<String>,
    key: Option<&PublicKey>,
    reuse: bool,
) -> Result<Snapshot, CliError> {
    let credentials = credentials(client, reference)?;
    let key = key.map(PublicKey::to_pem);
    let wanted = PullSnapshot { reference: reference.to_owned(), tag, credentials, key, reuse };
    let progress = Progress::new();
    let pulled = client.pull_snapshot(&wanted, |told| progress.told(&told)).await;
    progress.finish();
    Ok(pulled?)
}

/// Whether this names a snapshot in a registry: it begins with the name of a registry, which has a dot or a port or is `localhost`, and
/// a slash. Tags of snapshots, their names and ids of sandboxes never have a slash.
pub fn is_reference(source: &str) -> bool {
    let registry = source.split_once('/').map(|(registry, _)| registry);
    registry.is_some_and(|registry| registry.contains(['.', ':']) || registry == "localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_and_names_are_told_apart() {
        for reference in
            ["registry.example/app", "localhost/a:b", "127.0.0.1:5000/team/app:tag", "a:1/x@sha256:00"]
        {
            assert!(is_reference(reference), "{reference}");
        }
        for name in ["warm", "app-tag-0123456789ab", "a.b", "team/app", "localhost", "i0123", "a:b", ""] {
            assert!(!is_reference(name), "{name}");
        }
    }
}
