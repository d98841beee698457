//! What manifests say of frozen layers and of images. Neither is ever written again, so each is read and hashed once: for its first
//! snapshot. A later one says the same.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forkd_store::{LayerEntry, Tag};

use crate::ids::LayerId;

#[derive(Debug, Default)]
pub(crate) struct KnownLayers(Mutex<HashMap<Tag, LayerEntry>>);

impl KnownLayers {
    fn lock(&self) -> MutexGuard<'_, HashMap<Tag, LayerEntry>> {
        // A panic while holding the lock leaves the map in order.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn get(&self, id: &Tag) -> Option<LayerEntry> {
        self.lock().get(id).copied()
    }

    /// The layers and images that have these contents.
    pub fn find(&self, entry: LayerEntry) -> Vec<Tag> {
        let same = |(id, known): (&Tag, &LayerEntry)| (*known == entry).then(|| id.clone());
        self.lock().iter().filter_map(same).collect()
    }

    pub fn add(&self, layers: impl IntoIterator<Item = (Tag, LayerEntry)>) {
        self.lock().extend(layers);
    }

    /// Forgets layers that are no more.
    pub fn forget(&self, is_there: impl Fn(&LayerId) -> bool) {
        // Images are few, and have longer names.
        let is_there = |id: &Tag| LayerId::try_from(id.to_string()).map_or(true, |id| is_there(&id));
        self.lock().retain(|id, _| is_there(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkd_store::Digest;

    #[test]
    fn layers_are_known_until_they_are_gone() {
        let known = KnownLayers::default();
        let entry = |id: &str| LayerEntry { digest: Digest::of(id.as_bytes()), size: 1 };
        let layer = |id: &str| (id.parse().unwrap(), entry(id));
        let (image, old, new) = ("a0".repeat(32), "l1", "l2");
        known.add([layer(&image), layer(old), layer(new)]);
        assert_eq!(known.get(&old.parse().unwrap()), Some(entry(old)));
        assert_eq!(known.find(entry(new)), [new.parse().unwrap()]);
        known.forget(|id| id.as_str() == new);
        let left = [&image, old, new].map(|id| known.get(&id.parse().unwrap()).is_some());
        assert_eq!(left, [true, false, true]);
    }
}
