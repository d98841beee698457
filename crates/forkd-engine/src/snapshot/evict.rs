//! Evict: snapshots that are on disk give up their processes when memory is wanted for something else.
//!
//! What goes is decided by `retention.rs`, of what is seen here; whether it can go, by its owner, at the moment it is asked.

use std::fs;

use forkd_store::Tag;

use crate::engine::{Engine, Shared};
use crate::limits::owner::Account;
use crate::snapshot::retention::{self, Kept};
use crate::snapshot::{SnapshotHandle, SnapshotStatus, SnapshotView};

/// What was given up, and what is held by those that stay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trimmed {
    pub evicted: Vec<Tag>,
    pub held_bytes: u64,
}

impl Engine {
    /// Ends the processes of snapshots, those that were not used for the longest time first, until the rest is within the
    /// budget. Those that are being forked, and those that are not on disk, stay.
    pub async fn trim(&self) -> Trimmed {
        let kept = self.shared.kept(None).await;
        let held = |kept: &[Kept<SnapshotHandle>]| kept.iter().map(|one| one.bytes).sum::<u64>();
        let all = held(&kept);
        let evicted = evict(retention::beyond(kept, self.shared.limits.zygote_bytes)).await;
        Trimmed {
            held_bytes: all.saturating_sub(held(&evicted)),
            evicted: evicted.iter().map(|one| one.name.tag()).collect(),
        }
    }
}

impl Shared {
    /// Ends processes of snapshots so that this much memory is free, except the one of `spared`. Says whether any has ended.
    pub(crate) async fn make_room(&self, bytes: u64, spared: Option<&Tag>) -> bool {
        let kept = self.kept(spared).await;
        // Those that are not on disk cannot give theirs up until they are.
        let unwritten = kept.iter().filter(|one| one.name.view().status == SnapshotStatus::Persisting);
        unwritten.for_each(|one| one.name.hurry());
        !evict(retention::making_room(kept, bytes)).await.is_empty()
    }

    /// Ends the processes of an account's branches that are on disk and not being forked. Says whether any has ended.
    pub(crate) async fn evict_branches_of(&self, account: &Account<'_>) -> bool {
        let mut kept = self.kept(None).await;
        kept.retain(|one| !one.needed && is_branch_of(&one.name.view(), account));
        !evict(kept).await.is_empty()
    }

    /// What an account's branches have kept of the memory of sandboxes: at least what they may come to hold alone, when the sandbox
    /// has written to all of its memory; more, if a branch before them is gone whose memory they shared.
    pub(crate) async fn frozen_memory_of(&self, account: &Account<'_>) -> u64 {
        let handles = self.snapshots.all().into_iter().map(|handle| (handle.view(), handle));
        let branches = handles.filter(|(view, _)| is_branch_of(view, account));
        let branches: Vec<_> = branches
            .filter_map(|(view, handle)| Some((view.record.frozen_bytes, handle.resident()?.pid)))
            .collect();
        let measured = tokio::task::spawn_blocking(move || {
            branches.into_iter().map(|(frozen, pid)| frozen.max(held(pid).unwrap_or(0))).sum()
        });
        measured.await.unwrap_or(0)
    }

    /// The snapshots that have processes.
    async fn kept(&self, spared: Option<&Tag>) -> Vec<Kept<SnapshotHandle>> {
        let handles = self.snapshots.all();
        let loaded = handles.into_iter().filter_map(|handle| Some((handle.resident()?, handle)));
        let loaded: Vec<_> = loaded.collect();
        let pids: Vec<i32> = loaded.iter().map(|(resident, _)| resident.pid).collect();
        let sizes = tokio::task::spawn_blocking(move || pids.into_iter().map(held).collect::<Vec<_>>());
        let sizes = sizes.await.unwrap_or_default().into_iter().chain(std::iter::repeat(None));
        let kept = loaded.into_iter().zip(sizes).map(|((resident, name), size)| {
            let view = name.view();
            let spared = spared.is_some_and(|tag| *tag == view.record.tag);
            Kept {
                // What cannot be measured may be all of it.
                bytes: size.unwrap_or(view.record.shape.memory_bytes),
                used: resident.used,
                needed: spared || resident.leased || view.status != SnapshotStatus::Ready,
                name,
            }
        });
        kept.collect()
    }
}

fn is_branch_of(view: &SnapshotView, account: &Account<'_>) -> bool {
    view.loaded && account.keeps(&view.record)
}

async fn evict(chosen: Vec<Kept<SnapshotHandle>>) -> Vec<Kept<SnapshotHandle>> {
    let mut evicted = Vec::new();
    for one in chosen {
        // It may have been taken meanwhile.
        if one.name.evict().await {
            evicted.push(one);
        }
    }
    evicted
}

/// What a process holds of the host's memory. Pages that it shares with its children are theirs, too: its share is counted,
/// since they stay when it goes.
fn held(pid: i32) -> Option<u64> {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    proportional(&smaps)
}

fn proportional(smaps: &str) -> Option<u64> {
    let line = smaps.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_read() {
        assert_eq!(
            proportional("55-66 ---p 0 [rollup]\nRss: 9 kB\nPss:    7 kB\nPss_Dirty: 3 kB\n"),
            Some(7 << 10)
        );
        assert_eq!(proportional("Pss_Dirty: 3 kB\n"), None);
        assert_eq!(held(0), None);
        assert!(held(i32::try_from(std::process::id()).unwrap()).is_some_and(|bytes| bytes > 0));
    }
}
