//! Prune: removes unused snapshots, the least recently used first.
//!
//! ```text
//!   base ──▶ numpy ──┬──▶ a   used yesterday      goes if it may
//!                    └──▶ b   used last month     goes first, if it may
//!
//!   numpy goes only after a and b, base only after numpy.
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forkd_store::Tag;

use crate::engine::{Engine, Shared};
use crate::error::EngineError;
use crate::ids::LayerId;
use crate::limits::usage::{allocated, blocking, files_of};
use crate::sandbox::{SandboxState, SandboxView};
use crate::snapshot::remove::Removal;
use crate::snapshot::{SnapshotHandle, SnapshotStatus, SnapshotView};

/// Which of the snapshots that may go do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Prune {
    /// Those that were not used for so long.
    pub unused_for: Duration,
    /// No more than needed for the rest to take at most this on disk.
    pub keep_bytes: u64,
}

/// A snapshot that goes, or would.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prunable {
    pub tag: Tag,
    pub used_unix_ms: u64,
    /// What the disk has back. Layers of disks that sandboxes use stay until these end.
    pub freed_bytes: u64,
}

/// What is looked at of a snapshot.
#[derive(Debug, Clone)]
struct Candidate {
    tag: Tag,
    parent: Option<Tag>,
    used_unix_ms: u64,
    /// What its files take, without layers of disks.
    bytes: u64,
    layers: BTreeSet<LayerId>,
    fate: Fate,
}

impl Candidate {
    /// What it is a change of. A record may say anything, also that it is its own parent.
    fn base(&self) -> Option<&Tag> {
        self.parent.as_ref().filter(|parent| **parent != self.tag)
    }
}

/// What may become of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is not the caller's: it stays, and what it takes does not count.
    OfOthers,
    Stays,
    MayGo,
}

impl Engine {
    /// Those that would go, in this order. Those that are being made, that running sandboxes were forked from or can be rolled back to, and
    /// that others are based on, stay whatever `fate` says.
    pub async fn prunable(
        &self,
        wanted: Prune,
        fate: impl Fn(&SnapshotView) -> Fate,
    ) -> Result<Vec<Prunable>, EngineError> {
        let sandboxes = self.sandboxes();
        let needed = needed(&sandboxes);
        let judged = |view: SnapshotView| {
            let stays = view.status != SnapshotStatus::Ready || needed.contains(&view.record.tag);
            let fate = match fate(&view) {
                Fate::MayGo if stays => Fate::Stays,
                fate => fate,
            };
            (view, fate)
        };
        let all = self.shared.snapshots.all();
        let all: Vec<_> = all.iter().map(SnapshotHandle::view).map(judged).collect();
        let in_use = layers_in_use(&sandboxes);
        let shared = Arc::clone(&self.shared);
        let planned = blocking(move || {
            let all: Vec<_> = all.iter().map(|(view, fate)| candidate(&shared, view, *fate)).collect();
            let layers: BTreeSet<&LayerId> = all.iter().flat_map(|one| &one.layers).collect();
            let layers = layers
                .difference(&in_use.iter().collect())
                .copied()
                .map(|layer| (layer.clone(), allocated(&shared.paths.layer(layer))))
                .collect();
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            Ok(plan(&all, &layers, wanted, now))
        });
        planned.await.map_err(EngineError::io("look at files"))
    }

    /// Removes them with their names. Those that were used, or that others were based on, since [`Engine::prunable`] has named them, stay.
    pub async fn prune(&self, prunable: Vec<Prunable>) -> Result<Vec<Prunable>, EngineError> {
        let mut pruned = Vec::new();
        for one in prunable {
            if needed(&self.sandboxes()).contains(&one.tag) || self.used_since(&one) {
                continue;
            }
            let removal = Removal { cascade: false, all_names: true };
            match self.remove_snapshot_of(None, one.tag.as_str(), removal).await {
                Ok(_) => pruned.push(one),
                Err(EngineError::HasDependents { .. } | EngineError::NoSnapshot(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(pruned)
    }

    fn used_since(&self, one: &Prunable) -> bool {
        self.shared.used_unix_ms(&one.tag).is_some_and(|used| used > one.used_unix_ms)
    }
}

impl Shared {
    /// A snapshot on disk is in use now. Its directory has the time of its last use.
    pub(crate) fn note_use(&self, tag: &Tag) {
        // One that is not on disk yet is as old as its files will be. Where the time cannot be set, it seems unused since it was written.
        let _ =
            File::open(self.store.path(tag)).and_then(|directory| directory.set_modified(SystemTime::now()));
    }

    /// When a snapshot on disk was used last.
    pub(crate) fn used_unix_ms(&self, tag: &Tag) -> Option<u64> {
        let modified = self.store.path(tag).metadata().ok()?.modified().ok()?;
        let since = modified.duration_since(UNIX_EPOCH).ok()?;
        Some(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

/// The snapshots that sandboxes were forked from, or can be rolled back to.
fn needed(sandboxes: &[SandboxView]) -> BTreeSet<Tag> {
    let alive = sandboxes.iter().filter(|view| view.state != SandboxState::Ended);
    alive.flat_map(|view| view.record.branches.iter().chain([&view.record.snapshot])).cloned().collect()
}

fn layers_in_use(sandboxes: &[SandboxView]) -> BTreeSet<LayerId> {
    let alive = sandboxes.iter().filter(|view| view.state != SandboxState::Ended);
    alive.flat_map(|view| &view.record.disks).flat_map(|disk| &disk.files.frozen).cloned().collect()
}

fn candidate(shared: &Shared, view: &SnapshotView, fate: Fate) -> Candidate {
    let record = &view.record;
    Candidate {
        tag: record.tag.clone(),
        parent: record.parent.clone(),
        used_unix_ms: shared.used_unix_ms(&record.tag).unwrap_or(record.created_unix_ms),
        bytes: files_of(shared, &record.tag),
        layers: record.disks.iter().flatten().cloned().collect(),
        fate,
    }
}

/// Which go, a child before its parent. `layers` has what each layer takes that goes with its last snapshot.
fn plan(all: &[Candidate], layers: &BTreeMap<LayerId, u64>, wanted: Prune, now: Duration) -> Vec<Prunable> {
    let latest = now.saturating_sub(wanted.unused_for).as_millis();
    let by_tag: BTreeMap<&Tag, &Candidate> = all.iter().map(|one| (&one.tag, one)).collect();
    let mut children: BTreeMap<&Tag, usize> = BTreeMap::new();
    let mut users: BTreeMap<&LayerId, usize> = BTreeMap::new();
    for one in all {
        if let Some(parent) = one.base() {
            *children.entry(parent).or_default() += 1;
        }
        for layer in &one.layers {
            *users.entry(layer).or_default() += 1;
        }
    }
    let goes = |one: &Candidate| one.fate == Fate::MayGo && u128::from(one.used_unix_ms) <= latest;
    let is_leaf =
        |children: &BTreeMap<&Tag, usize>, tag: &Tag| children.get(tag).is_none_or(|&count| count == 0);
    let leaves = all.iter().filter(|one| goes(one) && is_leaf(&children, &one.tag));
    let mut next: BTreeSet<(u64, &Tag)> = leaves.map(|one| (one.used_unix_ms, &one.tag)).collect();
    let mut held = held(all, layers);
    let mut gone = Vec::new();
    while held > wanted.keep_bytes
        && let Some((used_unix_ms, tag)) = next.pop_first()
    {
        let one = by_tag[tag];
        let mut freed_bytes = one.bytes;
        for layer in &one.layers {
            let left = users.entry(layer).or_default();
            *left = left.saturating_sub(1);
            if *left == 0 {
                freed_bytes += layers.get(layer).copied().unwrap_or(0);
            }
        }
        if let Some(parent) = one.base().and_then(|base| by_tag.get(base)) {
            let left = children.entry(&parent.tag).or_default();
            *left = left.saturating_sub(1);
            if *left == 0 && goes(parent) {
                next.insert((parent.used_unix_ms, &parent.tag));
            }
        }
        held = held.saturating_sub(freed_bytes);
        gone.push(Prunable { tag: tag.clone(), used_unix_ms, freed_bytes });
    }
    gone
}

/// What the snapshots take that the caller disposes of.
fn held(all: &[Candidate], layers: &BTreeMap<LayerId, u64>) -> u64 {
    let own = || all.iter().filter(|one| one.fate != Fate::OfOthers);
    let used: BTreeSet<&LayerId> = own().flat_map(|one| &one.layers).collect();
    let of_layers: u64 = used.into_iter().filter_map(|layer| layers.get(layer)).sum();
    own().map(|one| one.bytes).sum::<u64>() + of_layers
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: u64 = 24 * 60 * 60;
    const NOW: Duration = Duration::from_secs(1000 * DAY);

    fn tag(name: impl ToString) -> Tag {
        name.to_string().parse().unwrap()
    }

    fn layer(number: u64) -> LayerId {
        LayerId::try_from(format!("l{number:010}")).unwrap()
    }

    /// Used so many days ago.
    fn one(name: &str, parent: Option<&str>, days: u64, bytes: u64, layers: &[u64]) -> Candidate {
        Candidate {
            tag: tag(name),
            parent: parent.map(tag),
            used_unix_ms: (1000 - days) * DAY * 1000,
            bytes,
            layers: layers.iter().map(|&number| layer(number)).collect(),
            fate: Fate::MayGo,
        }
    }

    fn goes(all: &[Candidate], unused_days: u64, keep_bytes: u64) -> Vec<(String, u64)> {
        let wanted = Prune { unused_for: Duration::from_secs(unused_days * DAY), keep_bytes };
        let layers = (1..=9).map(|number| (layer(number), 100)).collect();
        let gone = plan(all, &layers, wanted, NOW);
        gone.into_iter().map(|one| (one.tag.to_string(), one.freed_bytes)).collect()
    }

    fn freed(all: &[(&str, u64)]) -> Vec<(String, u64)> {
        all.iter().map(|&(tag, bytes)| (tag.into(), bytes)).collect()
    }

    #[test]
    fn a_parent_goes_after_its_children_and_only_if_all_of_them_do() {
        let all = [
            one("base", None, 90, 50, &[1]),
            one("a", Some("base"), 1, 5, &[1, 2]),
            one("b", Some("base"), 30, 6, &[1, 3]),
            one("c", Some("b"), 20, 7, &[1, 3]),
        ];
        assert_eq!(goes(&all, 0, 0), freed(&[("c", 7), ("b", 106), ("a", 105), ("base", 150)]));
        assert_eq!(goes(&all, 7, 0), freed(&[("c", 7), ("b", 106)]));
        assert_eq!(goes(&all, 25, 0), []);
    }

    #[test]
    fn no_more_goes_than_has_to() {
        let all = [one("a", None, 3, 10, &[]), one("b", None, 9, 10, &[]), one("c", None, 6, 10, &[])];
        assert_eq!(goes(&all, 0, 30), []);
        assert_eq!(goes(&all, 0, 29), freed(&[("b", 10)]));
        assert_eq!(goes(&all, 0, 10), freed(&[("b", 10), ("c", 10)]));
        assert_eq!(goes(&all, 5, 0), freed(&[("b", 10), ("c", 10)]));
        assert_eq!(goes(&all, 0, 0).len(), 3);
    }

    #[test]
    fn what_others_have_neither_goes_nor_counts() {
        let mut all = [one("a", None, 3, 10, &[]), one("b", None, 9, 10, &[1]), one("c", None, 6, 10, &[1])];
        all[1].fate = Fate::OfOthers;
        assert_eq!(goes(&all, 0, 120), []);
        // The layer is b's, too.
        assert_eq!(goes(&all, 0, 109), freed(&[("c", 10), ("a", 10)]));
        all[1].fate = Fate::Stays;
        assert_eq!(goes(&all, 0, 129), freed(&[("c", 10)]));
    }

    #[test]
    fn its_own_parent_and_loops_do_no_harm() {
        let all = [
            one("a", Some("a"), 3, 10, &[]),
            one("b", Some("c"), 9, 10, &[]),
            one("c", Some("b"), 6, 10, &[]),
        ];
        assert_eq!(goes(&all, 0, 0), freed(&[("a", 10)]));
    }

    fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
        let fate = prop_oneof![Just(Fate::MayGo), Just(Fate::MayGo), Just(Fate::Stays), Just(Fate::OfOthers)];
        let any_one = (
            any::<prop::sample::Index>(),
            0u64..20,
            0u64..50,
            prop::collection::btree_set(1u64..10, 0..3),
            fate,
        );
        prop::collection::vec(any_one, 0..14).prop_map(|all| {
            let named = |(number, (parent, days, bytes, layers, fate)): (
                usize,
                (prop::sample::Index, _, _, BTreeSet<u64>, _),
            )| {
                // Of those before it, or of none.
                let parent = parent.index(number + 1);
                let parent = (parent < number).then(|| format!("t{parent}"));
                let layers: Vec<u64> = layers.into_iter().collect();
                Candidate { fate, ..one(&format!("t{number}"), parent.as_deref(), days, bytes, &layers) }
            };
            all.into_iter().enumerate().map(named).collect()
        })
    }

    proptest! {
        #[test]
        fn nothing_goes_that_must_not(all in candidates(), unused_days in 0u64..20, keep in 0u64..400) {
            let gone = goes(&all, unused_days, keep);
            let mut left: Vec<&Candidate> = all.iter().collect();
            for (name, _) in &gone {
                let one = all.iter().find(|one| one.tag == tag(name)).unwrap();
                prop_assert_eq!(one.fate, Fate::MayGo);
                prop_assert!(one.used_unix_ms <= (1000 - unused_days) * DAY * 1000);
                prop_assert!(!left.iter().any(|other| other.parent.as_ref() == Some(&one.tag)));
                left.retain(|other| other.tag != one.tag);
            }
            // Everything that may go and does not, stays because enough has gone.
            let layers = (1..=9).map(|number| (layer(number), 100)).collect();
            let left: Vec<Candidate> = left.into_iter().cloned().collect();
            let stuck = goes(&left, unused_days, 0).is_empty();
            prop_assert!(stuck || held(&left, &layers) <= keep);
            // What is said to be freed is what the rest lacks.
            let freed: u64 = gone.iter().map(|(_, bytes)| bytes).sum();
            let own_left = held(&left, &layers);
            prop_assert!(held(&all, &layers) <= own_left + freed + 900);
            prop_assert!(own_left + freed <= held(&all, &layers));
        }
    }
}
