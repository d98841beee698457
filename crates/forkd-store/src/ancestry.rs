//! The owner's half of loading: which snapshots a tag stands on, and their files opened.

use std::path::Path;

use crate::chain::{ChainError, MAX_CHAIN, check_parent};
use crate::manifest::SealedManifest;
use crate::snapshot_files::{SnapshotDirectory, SnapshotFiles};
use crate::store::Store;
use crate::tag::Tag;

/// A snapshot in a chain: its manifest was read, its other files not yet.
#[derive(Debug)]
pub(crate) struct Ancestor {
    pub sealed: SealedManifest,
    directory: SnapshotDirectory,
}

impl Store {
    /// Opens the files of the snapshot `tag` and of its ancestors: the base first, the head last. Only manifests are read,
    /// so this is quick; [`Chain::open`](crate::Chain::open) checks everything, in a process that needs no paths.
    pub fn open_chain(&self, tag: &Tag) -> Result<Vec<SnapshotFiles>, ChainError> {
        let mut files = Vec::new();
        for ancestor in ancestry(self, tag)? {
            // The head comes first here.
            let with_state = files.is_empty();
            files.push(ancestor.directory.files(&ancestor.sealed.manifest, with_state)?);
        }
        files.reverse();
        Ok(files)
    }
}

/// The snapshots from `tag` down to its base, at least one.
pub(crate) fn ancestry(store: &Store, tag: &Tag) -> Result<Vec<Ancestor>, ChainError> {
    let mut ancestors: Vec<Ancestor> = Vec::new();
    let mut wanted = Some(tag.clone());
    while let Some(tag) = wanted {
        if ancestors.iter().any(|known| known.sealed.manifest.tag == tag) {
            return Err(ChainError::Loop { tag });
        }
        if ancestors.len() >= MAX_CHAIN {
            return Err(ChainError::TooDeep { tag: ancestors[0].sealed.manifest.tag.clone() });
        }
        let child = ancestors.last().map(|child| &child.sealed);
        let ancestor = read_named(store, &tag, child)?;
        if let Some(child) = child {
            check_parent(&child.manifest, &ancestor.sealed)?;
        }
        wanted = ancestor.sealed.manifest.parent().map(|parent| parent.tag.clone());
        ancestors.push(ancestor);
    }
    Ok(ancestors)
}

/// Reads the manifest of a tag; `child` is who needs it.
fn read_named(store: &Store, tag: &Tag, child: Option<&SealedManifest>) -> Result<Ancestor, ChainError> {
    let Some((directory, sealed)) = SnapshotDirectory::open(&store.path(tag))? else {
        return Err(missing(store.directory(), tag.clone(), child));
    };
    if sealed.manifest.tag != *tag {
        return Err(ChainError::OtherTag { found: sealed.manifest.tag, expected: tag.clone() });
    }
    Ok(Ancestor { sealed, directory })
}

fn missing(store: &Path, tag: Tag, child: Option<&SealedManifest>) -> ChainError {
    let store = store.display().to_string();
    match child {
        None => ChainError::Missing { tag, store },
        Some(child) => ChainError::MissingParent { child: child.manifest.tag.clone(), parent: tag, store },
    }
}
