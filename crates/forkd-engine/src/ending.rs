//! The end of everything that runs, for a daemon that is to leave nothing but files.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::snapshot::SnapshotHandle;

/// Between two tries to take the process of a snapshot from the forks that use it.
const BETWEEN: Duration = Duration::from_millis(5);

impl Engine {
    /// Removes all sandboxes that there are.
    pub async fn end_sandboxes(&self) {
        let mut removals = JoinSet::new();
        for sandbox in self.shared.sandboxes.all() {
            // One that another caller removes has ended, too, when this returns.
            removals.spawn(async move { drop(sandbox.remove().await) });
        }
        while removals.join_next().await.is_some() {}
    }

    /// Ends all sandboxes and the processes of all snapshots. Snapshots are written first, for so long; one that cannot be written is
    /// removed. Nothing new may be made meanwhile. Returns the names of those that did not end.
    pub async fn end_everything(&self, limit: Duration) -> Vec<String> {
        self.end_sandboxes().await;
        self.cleared().await;
        let mut ends = JoinSet::new();
        for snapshot in self.shared.snapshots.all() {
            let engine = self.clone();
            ends.spawn(async move { engine.end_snapshot(&snapshot, limit).await });
        }
        let mut left: Vec<String> = Vec::new();
        while let Some(ended) = ends.join_next().await {
            left.extend(ended.ok().flatten());
        }
        left.extend(
            self.shared.sandboxes.all().iter().map(|sandbox| sandbox.view().id().as_str().to_owned()),
        );
        left
    }

    async fn end_snapshot(&self, snapshot: &SnapshotHandle, limit: Duration) -> Option<String> {
        let begun = Instant::now();
        let is_on_disk = matches!(timeout(limit, snapshot.durable()).await, Ok(Ok(_)));
        while is_on_disk && snapshot.resident().is_some() && begun.elapsed() < limit {
            if !snapshot.evict().await {
                tokio::time::sleep(BETWEEN).await;
            }
        }
        snapshot.resident()?;
        let tag = snapshot.tag();
        if !is_on_disk {
            match self.remove_snapshot(tag.as_str(), true).await {
                // One may have gone with its parent.
                Ok(_) | Err(EngineError::NoSnapshot(_)) => return None,
                Err(_) => {}
            }
        }
        Some(tag.to_string())
    }
}
