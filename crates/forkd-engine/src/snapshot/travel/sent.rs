//! How a snapshot was sent, or came: kept beside it, so that it is the same the next time. See `pushed.json` of `forkd-store`.

use forkd_hub::Stream;
use forkd_proto::control::Prefault;
use forkd_store::{ChainError, Link, Stored, Tag};
use serde::{Deserialize, Serialize};

use crate::engine::Shared;
use crate::error::EngineError;

/// Repositories that are remembered, and that blobs are taken from.
const MAX_REPOSITORIES: usize = 4;

/// What is known of a snapshot that was pushed or pulled.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sent {
    /// How it and its disk layers were compressed.
    pub streams: Vec<Stream>,
    /// What children use first, as it went along. It is learned after a while, and anew now and then; a push with another list would have
    /// another digest, and signatures of the first would not be its own.
    pub prefetch: Option<Prefault>,
    /// The repositories that it was pushed to or pulled from, the latest first: `registry.example/team/app`.
    pub repositories: Vec<String>,
}

impl Sent {
    /// What is known of a snapshot. Of one that was never sent, what will go along.
    pub fn of(shared: &Shared, tag: &Tag) -> Result<Sent, EngineError> {
        if let Some(sent) = shared.store.pushed::<Sent>(tag).map_err(ChainError::from)? {
            return Ok(sent);
        }
        // Older versions kept nothing else.
        let streams = shared.store.pushed::<Vec<Stream>>(tag).map_err(ChainError::from)?.unwrap_or_default();
        // Without the list its children begin slower, and it is learned again.
        let known = shared.store.prefault(tag).ok().flatten();
        Ok(Sent { streams, prefetch: known.and_then(|kept| kept.list), repositories: Vec::new() })
    }

    /// Keeps it with the snapshot. Without it everything is compressed and sent again, and nothing worse.
    pub fn keep(&self, shared: &Shared, link: &Link) {
        let _ = shared.store.keep_pushed(&link.tag, &link.digest, self);
    }

    /// Takes down that a repository has the snapshot.
    pub fn add_repository(&mut self, name: &str) {
        self.repositories.retain(|known| known != name);
        self.repositories.insert(0, name.to_owned());
        self.repositories.truncate(MAX_REPOSITORIES);
    }
}

/// Those of the streams that are a snapshot's own, or of one of its layers: those that are named by these digests.
pub(crate) fn own_streams(stored: &Stored, streams: &[Stream]) -> Vec<Stream> {
    let digest = stored.sealed.digest.to_string();
    let layers: Vec<String> =
        stored.manifest().disk_layers.iter().map(|entry| entry.digest.to_string()).collect();
    let is_own = |stream: &&Stream| stream.name == digest || layers.contains(&stream.name);
    streams.iter().filter(is_own).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_latest_repositories_are_remembered() {
        let mut sent = Sent::default();
        for name in ["r/a", "r/b", "r/a", "r/c", "r/d", "r/e"] {
            sent.add_repository(name);
        }
        assert_eq!(sent.repositories, ["r/e", "r/d", "r/c", "r/a"]);
        let text = serde_json::to_string(&sent).unwrap();
        assert_eq!(serde_json::from_str::<Sent>(&text).unwrap(), sent);
        // What older versions kept is something else.
        assert!(serde_json::from_str::<Sent>("[]").is_err());
    }

    proptest! {
        #[test]
        fn any_file_is_read_or_is_nothing(text in r#"[\[\]{}",:a-z0-9]{0,60}"#) {
            if let Ok(sent) = serde_json::from_str::<Sent>(&text) {
                prop_assert_eq!(serde_json::from_str::<Sent>(&serde_json::to_string(&sent).unwrap()).unwrap(), sent);
            }
        }
    }
}
