//! History: a snapshot with its chain and its dependents, and what each of them takes on disk.
//!
//! ```text
//!   base ──▶ numpy ──▶ T ──┬──▶ a ──▶ b
//!                          └──▶ c               told as: base, numpy, T, a, b, c
//! ```
//!
//! Siblings of T and of its ancestors are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use forkd_store::Tag;

use crate::engine::{Engine, Shared};
use crate::error::EngineError;
use crate::ids::LayerId;
use crate::limits::usage::{allocated, blocking, files_of};
use crate::snapshot::{SnapshotHandle, SnapshotView};

/// Whether a snapshot has all of its memory, or only what differs from its parent's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotKind {
    Full,
    Diff,
}

/// A snapshot in a history.
#[derive(Debug, Clone)]
pub struct HistoryEntry {
    pub view: SnapshotView,
    /// Its other names.
    pub names: Vec<Tag>,
    pub kind: SnapshotKind,
    /// How many snapshots it is based on.
    pub depth: u32,
    /// Bytes on disk that only it and its dependents use.
    pub own_bytes: u64,
    /// Bytes on disk that it uses of others.
    pub shared_bytes: u64,
}

impl Engine {
    /// The chain of a snapshot from the base up, itself, and its dependents, parents before children.
    pub async fn history(&self, tag: &Tag) -> Result<Vec<HistoryEntry>, EngineError> {
        let shared = Arc::clone(&self.shared);
        let all: Vec<SnapshotView> = shared.snapshots.all().iter().map(SnapshotHandle::view).collect();
        let tag = tag.clone();
        let measured = blocking(move || {
            let family = Family::new(&all);
            let around = family.around(&tag);
            // Each once: they are looked up again for all that are based on them.
            let stored: BTreeMap<&Tag, Stored> =
                around.iter().map(|one| (&one.record.tag, Stored::of(&shared, one))).collect();
            Ok(around.iter().map(|one| measure(&shared, &family, &stored, one)).collect::<Vec<_>>())
        });
        let entries = measured.await.map_err(EngineError::io("look at files"))?;
        if entries.is_empty() {
            return Err(EngineError::Removed);
        }
        Ok(entries)
    }
}

/// All snapshots, as parents and children.
struct Family<'a> {
    by_tag: BTreeMap<&'a Tag, &'a SnapshotView>,
    users: BTreeMap<&'a LayerId, Vec<&'a Tag>>,
}

impl<'a> Family<'a> {
    fn new(all: &'a [SnapshotView]) -> Family<'a> {
        let by_tag = all.iter().map(|view| (&view.record.tag, view)).collect();
        let mut users: BTreeMap<&LayerId, Vec<&Tag>> = BTreeMap::new();
        for view in all {
            for layer in view.record.disks.iter().flatten() {
                users.entry(layer).or_default().push(&view.record.tag);
            }
        }
        Family { by_tag, users }
    }

    /// A snapshot and those it is based on, itself first. A record may say anything, also that it is its own parent.
    fn chain(&self, tag: &Tag) -> Vec<&'a SnapshotView> {
        let mut known = BTreeSet::new();
        let mut chain = Vec::new();
        let mut next = self.by_tag.get(tag).copied();
        while let Some(view) = next.filter(|view| known.insert(&view.record.tag)) {
            chain.push(view);
            next = view.record.parent.as_ref().and_then(|parent| self.by_tag.get(parent).copied());
        }
        chain
    }

    /// The chain of a snapshot from the base up, and its dependents. None if there is no such snapshot.
    fn around(&self, tag: &Tag) -> Vec<&'a SnapshotView> {
        let mut found = self.chain(tag);
        found.reverse();
        let mut known: BTreeSet<&Tag> = found.iter().map(|view| &view.record.tag).collect();
        let mut next: Vec<&SnapshotView> = match found.last() {
            Some(it) => self.children(&it.record.tag),
            None => return Vec::new(),
        };
        while let Some(view) = next.pop() {
            if known.insert(&view.record.tag) {
                found.push(view);
                next.extend(self.children(&view.record.tag));
            }
        }
        found
    }

    /// In the reverse order of their tags.
    fn children(&self, tag: &Tag) -> Vec<&'a SnapshotView> {
        let is_child = |view: &&SnapshotView| view.record.parent.as_ref() == Some(tag);
        self.by_tag.values().rev().copied().filter(is_child).collect()
    }

    /// Whether only a snapshot and its dependents use a layer.
    fn is_own(&self, tag: &Tag, layer: &LayerId) -> bool {
        let mut users = self.users.get(layer).into_iter().flatten();
        users.all(|user| self.chain(user).iter().any(|view| view.record.tag == *tag))
    }
}

/// What the files of a snapshot are, and what they take.
#[derive(Clone, Copy)]
struct Stored {
    kind: SnapshotKind,
    bytes: u64,
}

impl Stored {
    fn of(shared: &Shared, view: &SnapshotView) -> Stored {
        Stored { kind: kind(shared, view), bytes: files_of(shared, &view.record.tag) }
    }
}

/// `stored` has all of the chain.
fn measure(
    shared: &Shared,
    family: &Family<'_>,
    stored: &BTreeMap<&Tag, Stored>,
    view: &SnapshotView,
) -> HistoryEntry {
    let tag = &view.record.tag;
    let chain = family.chain(tag);
    let of = |view: &SnapshotView| {
        stored.get(&view.record.tag).copied().unwrap_or_else(|| Stored::of(shared, view))
    };
    let Stored { kind, bytes: own_files } = of(view);
    let layers: BTreeSet<&LayerId> = view.record.disks.iter().flatten().collect();
    let (own, others): (Vec<&LayerId>, Vec<_>) =
        layers.into_iter().partition(|layer| family.is_own(tag, layer));
    let bytes = |layers: &[&LayerId]| -> u64 {
        layers.iter().map(|layer| allocated(&shared.paths.layer(layer))).sum()
    };
    let mut shared_bytes = bytes(&others);
    let mut below = kind;
    for ancestor in &chain[1..] {
        if below == SnapshotKind::Full {
            break;
        }
        let ancestor = of(ancestor);
        shared_bytes += ancestor.bytes;
        below = ancestor.kind;
    }
    if let Some(image) = &view.record.shape.image
        && let Ok(Some(image)) = shared.images.get(*image)
    {
        shared_bytes += allocated(&image.base());
    }
    HistoryEntry {
        view: view.clone(),
        names: shared.names.of(tag),
        kind,
        depth: u32::try_from(chain.len() - 1).unwrap_or(u32::MAX),
        own_bytes: own_files + bytes(&own),
        shared_bytes,
    }
}

/// What it is on disk. One that is not there yet is written as a diff if it has a parent.
fn kind(shared: &Shared, view: &SnapshotView) -> SnapshotKind {
    let is_diff = match shared.store.get(&view.record.tag) {
        Ok(Some(stored)) => stored.manifest().parent.is_some(),
        Ok(None) | Err(_) => view.record.parent.is_some(),
    };
    if is_diff { SnapshotKind::Diff } else { SnapshotKind::Full }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::SnapshotStatus;

    fn view(tag: &str, parent: Option<&str>, layers: &[&str]) -> SnapshotView {
        let text = serde_json::json!({
            "tag": tag, "parent": parent, "branched_from": null, "created_unix_ms": 1, "pause_us": null,
            "shape": {"vcpus": 1, "memory_bytes": 1 << 26, "image": null, "devices": {
                "console": true, "console_input": false, "disk": null, "disk_layers": 0, "net": null,
                "vsock": null, "entropy": false, "mailbox": false}},
            "layers": layers, "generation": 1, "promised": true,
        });
        let record = serde_json::from_value(text).unwrap();
        SnapshotView { record, status: SnapshotStatus::Ready, loaded: false, error: None }
    }

    fn tags(views: &[&SnapshotView]) -> Vec<String> {
        views.iter().map(|view| view.record.tag.to_string()).collect()
    }

    fn tag(name: &str) -> Tag {
        name.parse().unwrap()
    }

    #[test]
    fn a_history_has_the_chain_and_the_dependents_and_no_siblings() {
        let all = [
            view("a", Some("t"), &[]),
            view("b", Some("a"), &[]),
            view("base", None, &[]),
            view("c", Some("t"), &[]),
            view("other", None, &[]),
            view("sibling", Some("base"), &[]),
            view("t", Some("base"), &[]),
        ];
        let family = Family::new(&all);
        assert_eq!(tags(&family.around(&tag("t"))), ["base", "t", "a", "b", "c"]);
        assert_eq!(tags(&family.around(&tag("base"))), ["base", "sibling", "t", "a", "b", "c"]);
        assert_eq!(tags(&family.around(&tag("b"))), ["base", "t", "a", "b"]);
        assert!(family.around(&tag("none")).is_empty());
    }

    #[test]
    fn a_chain_with_a_loop_has_an_end() {
        let all = [view("a", Some("b"), &[]), view("b", Some("a"), &[]), view("c", Some("c"), &[])];
        let family = Family::new(&all);
        assert_eq!(tags(&family.around(&tag("a"))), ["b", "a"]);
        assert_eq!(tags(&family.around(&tag("c"))), ["c"]);
    }

    #[test]
    fn a_layer_is_the_snapshot_s_that_it_came_with_unless_others_use_it() {
        let layer = |name: &str| LayerId::try_from(name.to_owned()).unwrap();
        let (one, two, both) = ("l0000000001", "l0000000002", "l0000000003");
        let all = [
            view("base", None, &[one]),
            view("child", Some("base"), &[one, two]),
            view("full", None, &[both]),
            view("twin", None, &[both]),
        ];
        let family = Family::new(&all);
        assert!(family.is_own(&tag("base"), &layer(one)) && !family.is_own(&tag("child"), &layer(one)));
        assert!(family.is_own(&tag("child"), &layer(two)));
        assert!(!family.is_own(&tag("full"), &layer(both)) && !family.is_own(&tag("twin"), &layer(both)));
    }
}
