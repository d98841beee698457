//! The owner's half of loading: which snapshots a tag stands on, and their files opened.

use crate::chain::{ChainError, MAX_CHAIN, check_parent};
use crate::digest::Digest;
use crate::snapshot::OpenError;
use crate::snapshot_files::{SnapshotDirectory, SnapshotFiles};
use crate::store::{Store, Stored};
use crate::tag::Tag;

/// A snapshot in a chain: its manifest was read, its other files not yet.
#[derive(Debug)]
pub(crate) struct Ancestor {
    pub stored: Stored,
    directory: SnapshotDirectory,
}

impl Store {
    /// Opens the files of the snapshot `tag` and of its ancestors: the base first, the head last. Only manifests are read,
    /// so this is quick; [`Chain::open`](crate::Chain::open) checks everything, in a process that needs no paths.
    pub fn open_chain(&self, tag: &Tag) -> Result<Vec<SnapshotFiles>, ChainError> {
        self.open_chain_with(tag, false)
    }

    /// The same with the states of the ancestors, if they are wanted.
    pub(crate) fn open_chain_with(
        &self,
        tag: &Tag,
        all_states: bool,
    ) -> Result<Vec<SnapshotFiles>, ChainError> {
        Ok(self.open_ancestry_with(tag, all_states)?.into_iter().map(|(_, files)| files).collect())
    }

    /// The snapshots that `tag` stands on, the base first and itself last, each with its files. What happens to the names later does not
    /// matter to them.
    pub fn open_ancestry(&self, tag: &Tag) -> Result<Vec<(Stored, SnapshotFiles)>, ChainError> {
        self.open_ancestry_with(tag, true)
    }

    fn open_ancestry_with(
        &self,
        tag: &Tag,
        all_states: bool,
    ) -> Result<Vec<(Stored, SnapshotFiles)>, ChainError> {
        let mut opened = Vec::new();
        for Ancestor { stored, directory } in ancestry(self, tag)? {
            // The head comes first here.
            let with_state = all_states || opened.is_empty();
            let files = directory.files(stored.manifest(), with_state)?;
            opened.push((stored, files));
        }
        opened.reverse();
        Ok(opened)
    }

    /// The snapshots that `tag` stands on, itself first and the base last.
    pub fn ancestry(&self, tag: &Tag) -> Result<Vec<Stored>, ChainError> {
        Ok(ancestry(self, tag)?.into_iter().map(|ancestor| ancestor.stored).collect())
    }
}

/// The snapshots from `tag` down to its base, at least one. No chain has a loop: a manifest would have to have its own digest in it.
pub(crate) fn ancestry(store: &Store, tag: &Tag) -> Result<Vec<Ancestor>, ChainError> {
    let missing = || ChainError::Missing { tag: tag.clone(), store: store.directory().display().to_string() };
    let mut ancestors = vec![open(store, tag)?.ok_or_else(missing)?];
    while let Some(digest) = ancestors[ancestors.len() - 1].stored.manifest().parent {
        if ancestors.len() >= MAX_CHAIN {
            return Err(ChainError::TooDeep { tag: tag.clone() });
        }
        let child = &ancestors[ancestors.len() - 1].stored;
        let parent = open_parent(store, child, digest)?;
        check_parent(
            child.tag.as_str(),
            child.manifest(),
            parent.stored.tag.as_str(),
            &parent.stored.sealed,
        )?;
        ancestors.push(parent);
    }
    Ok(ancestors)
}

fn open(store: &Store, tag: &Tag) -> Result<Option<Ancestor>, OpenError> {
    let opened = SnapshotDirectory::open(&store.path(tag))?;
    Ok(opened.map(|(directory, stored)| Ancestor { stored, directory }))
}

/// The parent of a snapshot: by the name that it had here, or, where that is another's now, by its digest.
fn open_parent(store: &Store, child: &Stored, digest: Digest) -> Result<Ancestor, ChainError> {
    let named = match &child.local.parent {
        Some(tag) => open(store, tag)?,
        None => None,
    };
    if named.as_ref().is_some_and(|named| named.stored.sealed.digest == digest) {
        // Just looked at.
        return named.ok_or_else(|| missing_parent(store, child, digest));
    }
    match store.find(&digest).map_err(ChainError::Store)? {
        Some(found) => open(store, &found.tag)?.ok_or_else(|| missing_parent(store, child, digest)),
        // The caller says what is wrong with the one of that name.
        None => named.ok_or_else(|| missing_parent(store, child, digest)),
    }
}

fn missing_parent(store: &Store, child: &Stored, digest: Digest) -> ChainError {
    let store = store.directory().display().to_string();
    ChainError::MissingParent { child: child.tag.clone(), parent: child.local.parent.clone(), digest, store }
}
