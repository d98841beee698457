//! Removing a snapshot that nothing depends on.

use std::fs;

use crate::files::sync_directory;
use crate::snapshot::OpenError;
use crate::store::{Store, StoreError};
use crate::tag::Tag;
use crate::temporary::TemporaryDirectory;

/// A snapshot was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    #[error("there is no snapshot {tag} in {store}")]
    Missing { tag: Tag, store: String },
    #[error("snapshot {tag} is the parent of {}; remove them first", names(dependents))]
    Needed { tag: Tag, dependents: Vec<Tag> },
    #[error("snapshot {unreadable} may depend on {tag}, but it cannot be read; remove it first")]
    Unknown { tag: Tag, unreadable: Tag, source: Box<OpenError> },
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn names(tags: &[Tag]) -> String {
    tags.iter().map(Tag::as_str).collect::<Vec<_>>().join(", ")
}

impl Store {
    /// Removes a snapshot, whole or damaged. Refused while a diff depends on it. Processes that have it open can still read it.
    pub fn remove(&self, tag: &Tag) -> Result<(), RemoveError> {
        let lock = self.lock()?;
        let path = self.path(tag);
        if !path.is_dir() {
            return Err(RemoveError::Missing {
                tag: tag.clone(),
                store: self.directory().display().to_string(),
            });
        }
        self.check_dependents(tag)?;
        // First the name goes, at once; a kill after that leaves a directory for the sweep.
        let aside = TemporaryDirectory::new(self)?;
        fs::rename(&path, aside.path().join(tag)).map_err(StoreError::at("remove", &path))?;
        sync_directory(self.directory()).map_err(StoreError::at("sync", self.directory()))?;
        drop(lock);
        aside.remove().map_err(RemoveError::Store)
    }

    pub(crate) fn check_dependents(&self, tag: &Tag) -> Result<(), RemoveError> {
        let mut dependents = Vec::new();
        let digest = match self.get(tag) {
            Ok(stored) => stored.map(|stored| stored.sealed.digest),
            // What is damaged can be removed; who depends on it says so by its name.
            Err(_) => None,
        };
        let mut has_twin = false;
        for listed in self.list()? {
            match listed.stored {
                Ok(stored) if listed.tag != *tag => {
                    let parent = stored.manifest().parent;
                    let is_parent = match digest {
                        Some(digest) => parent == Some(digest),
                        None => parent.is_some() && stored.local.parent.as_ref() == Some(tag),
                    };
                    if is_parent {
                        dependents.push(listed.tag);
                    }
                    has_twin |= digest == Some(stored.sealed.digest);
                }
                Ok(_) => {}
                Err(_) if listed.tag == *tag => {}
                // It may be of a newer version, and whole.
                Err(source) => {
                    return Err(RemoveError::Unknown {
                        tag: tag.clone(),
                        unreadable: listed.tag,
                        source: Box::new(source),
                    });
                }
            }
        }
        // The same snapshot under another name is the parent just as well.
        if dependents.is_empty() || has_twin {
            return Ok(());
        }
        Err(RemoveError::Needed { tag: tag.clone(), dependents })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::Chain;
    use crate::page::PageSource;
    use crate::testing::{TestStore, memory, tag};

    fn left(store: &TestStore) -> Vec<String> {
        let entries = fs::read_dir(store.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_a_diff_needs_stays_until_the_diff_is_gone() {
        let store = TestStore::new();
        let base = store.full("base", &memory(&[1, 2]));
        let middle = store.diff("middle", &base, &memory(&[1, 3]));
        store.diff("other", &base, &memory(&[5, 2]));
        store.diff("head", &middle, &memory(&[4, 3]));
        assert_eq!(
            store.remove(&tag("base")).unwrap_err().to_string(),
            "snapshot base is the parent of middle, other; remove them first"
        );
        assert!(matches!(store.remove(&tag("middle")), Err(RemoveError::Needed { .. })));
        for name in ["head", "middle", "other", "base"] {
            store.remove(&tag(name)).unwrap();
        }
        assert!(left(&store).is_empty());
        assert!(matches!(store.remove(&tag("base")), Err(RemoveError::Missing { .. })));
    }

    #[test]
    fn a_snapshot_that_is_there_twice_can_be_removed_once() {
        let store = TestStore::new();
        let base = store.full("base", &memory(&[1, 2]));
        store.diff("head", &base, &memory(&[1, 3]));
        let copy = |from: &str, to: &str| {
            let (from, to) = (store.path().join(from), store.path().join(to));
            fs::create_dir(&to).unwrap();
            for entry in fs::read_dir(from).unwrap() {
                let entry = entry.unwrap();
                fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
            }
        };
        copy("base", "twin");
        store.remove(&tag("base")).unwrap();
        // The parent has another name now.
        let mut page = [0; 4096];
        Chain::load(&store, &tag("head")).unwrap().read(0, &mut page).unwrap();
        assert_eq!(page, [1; 4096]);
        assert!(matches!(store.remove(&tag("twin")), Err(RemoveError::Needed { .. })));
    }

    #[test]
    fn a_damaged_snapshot_can_go_and_until_then_keeps_the_others() {
        let store = TestStore::new();
        store.full("base", &memory(&[1]));
        store.full("damaged", &memory(&[1]));
        fs::write(store.path().join("damaged/manifest.json"), "{").unwrap();
        assert!(matches!(
            store.remove(&tag("base")),
            Err(RemoveError::Unknown { unreadable, .. }) if unreadable == tag("damaged")
        ));
        store.remove(&tag("damaged")).unwrap();
        store.remove(&tag("base")).unwrap();
        assert!(left(&store).is_empty());
    }

    #[test]
    fn whoever_has_it_open_goes_on_reading() {
        let store = TestStore::new();
        store.full("base", &memory(&[1, 2]));
        let chain = Chain::load(&store, &tag("base")).unwrap();
        store.remove(&tag("base")).unwrap();
        let mut page = [0; 4096];
        chain.read(1, &mut page).unwrap();
        assert_eq!(page, [2; 4096]);
    }
}
