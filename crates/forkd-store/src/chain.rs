//! A snapshot with everything it stands on: from the full base to the head.

use std::io;
use std::os::unix::fs::FileExt;

use crate::layout::{Layout, PAGE_BYTES, PAGE_SIZE};
use crate::manifest::{Link, Manifest, SealedManifest};
use crate::overlay::{self, Extent, Origin};
use crate::page::PageSource;
use crate::snapshot::{OpenError, Snapshot, read_manifest};
use crate::store::Store;
use crate::tag::Tag;

/// The most snapshots in a chain, base and head included. Each one is an open file while the chain is loaded.
pub const MAX_CHAIN: usize = 64;

/// A chain whose snapshots were all checked, and each of which is the parent that the next one means.
#[derive(Debug)]
pub struct Chain {
    /// From the base to the head, at least one.
    snapshots: Vec<Snapshot>,
    extents: Vec<Extent>,
}

/// A chain cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    #[error(transparent)]
    Snapshot(#[from] OpenError),
    #[error("there is no snapshot {tag} in {store}")]
    Missing { tag: Tag, store: String },
    #[error("snapshot {child} needs its parent {parent}, which is not in {store}")]
    MissingParent { child: Tag, parent: Tag, store: String },
    #[error(
        "snapshot {child} needs another parent than the {parent} that is there: its manifest has the digest {found}, expected {expected}",
        parent = parent.tag, expected = parent.digest
    )]
    WrongParent { child: Tag, parent: Link, found: crate::digest::Digest },
    #[error("snapshot {child} has other memory regions than its parent {parent}")]
    OtherMemory { child: Tag, parent: Tag },
    #[error("the directory of snapshot {expected} has the manifest of {found}")]
    OtherTag { found: Tag, expected: Tag },
    #[error("snapshot {tag} was replaced by another while it was loaded; try again")]
    Changed { tag: Tag },
    #[error("snapshot {tag} is its own ancestor")]
    Loop { tag: Tag },
    #[error("snapshot {tag} stands on {MAX_CHAIN} others or more; write a full snapshot instead")]
    TooDeep { tag: Tag },
}

impl Chain {
    /// Loads the snapshot `tag` and its ancestors. First only the manifests are read, so what cannot be a chain is refused
    /// before gigabytes are hashed; then every byte is checked.
    pub fn load(store: &Store, tag: &Tag) -> Result<Chain, ChainError> {
        let manifests = ancestry(store, tag)?;
        let mut snapshots = Vec::with_capacity(manifests.len());
        for sealed in manifests.iter().rev() {
            let tag = &sealed.manifest.tag;
            let snapshot = Snapshot::open(&store.path(tag))?;
            if snapshot.sealed() != sealed {
                return Err(ChainError::Changed { tag: tag.clone() });
            }
            snapshots.push(snapshot);
        }
        let mut extents = Vec::new();
        for (layer, snapshot) in snapshots.iter().enumerate() {
            extents = match snapshot.map() {
                None => overlay::base(snapshot.manifest().layout.pages()),
                Some(map) => overlay::over(&extents, layer, map.runs()),
            };
        }
        Ok(Chain { snapshots, extents })
    }

    /// From the base to the head.
    pub fn snapshots(&self) -> &[Snapshot] {
        &self.snapshots
    }

    /// The snapshot that was asked for: its state, its requirements, its disk layers.
    pub fn head(&self) -> &Snapshot {
        // `ancestry` returns at least the head, or an error.
        &self.snapshots[self.snapshots.len() - 1]
    }

    pub fn manifest(&self) -> &Manifest {
        self.head().manifest()
    }

    pub(crate) fn extents(&self) -> &[Extent] {
        &self.extents
    }
}

/// The manifests from `tag` down to its base.
pub(crate) fn ancestry(store: &Store, tag: &Tag) -> Result<Vec<SealedManifest>, ChainError> {
    let mut manifests: Vec<SealedManifest> = Vec::new();
    let mut wanted: Option<Tag> = Some(tag.clone());
    while let Some(tag) = wanted {
        if manifests.iter().any(|known| known.manifest.tag == tag) {
            return Err(ChainError::Loop { tag });
        }
        if manifests.len() >= MAX_CHAIN {
            return Err(ChainError::TooDeep { tag: manifests[0].manifest.tag.clone() });
        }
        let sealed = read_named(store, &tag, manifests.last())?;
        if let Some(child) = manifests.last() {
            check_parent(&child.manifest, &sealed)?;
        }
        wanted = sealed.manifest.parent().map(|parent| parent.tag.clone());
        manifests.push(sealed);
    }
    Ok(manifests)
}

/// Reads the manifest of a tag; `child` is who needs it.
fn read_named(
    store: &Store,
    tag: &Tag,
    child: Option<&SealedManifest>,
) -> Result<SealedManifest, ChainError> {
    let path = store.path(tag);
    if let Err(error) = std::fs::symlink_metadata(&path)
        && error.kind() == io::ErrorKind::NotFound
    {
        let (tag, store) = (tag.clone(), store.directory().display().to_string());
        return Err(match child {
            None => ChainError::Missing { tag, store },
            Some(child) => {
                ChainError::MissingParent { child: child.manifest.tag.clone(), parent: tag, store }
            }
        });
    }
    let sealed = read_manifest(&path)?;
    if sealed.manifest.tag != *tag {
        return Err(ChainError::OtherTag { found: sealed.manifest.tag, expected: tag.clone() });
    }
    Ok(sealed)
}

fn check_parent(child: &Manifest, parent: &SealedManifest) -> Result<(), ChainError> {
    if let Some(link) = child.parent()
        && link.digest != parent.digest
    {
        return Err(ChainError::WrongParent {
            child: child.tag.clone(),
            parent: link.clone(),
            found: parent.digest,
        });
    }
    if child.layout != parent.manifest.layout {
        return Err(ChainError::OtherMemory {
            child: child.tag.clone(),
            parent: parent.manifest.tag.clone(),
        });
    }
    Ok(())
}

/// The chain's memory, read from its files: what a new diff can be compared with.
impl PageSource for Chain {
    fn layout(&self) -> &Layout {
        &self.manifest().layout
    }

    fn read(&self, first: u64, buffer: &mut [u8]) -> io::Result<()> {
        let (mut first, mut buffer) = (first, buffer);
        while !buffer.is_empty() {
            let index = self.extents.partition_point(|extent| extent.end() <= first);
            let Some(extent) = self.extents.get(index) else {
                return Err(io::Error::other("a page behind the last"));
            };
            let extent = extent.skip(first - extent.first);
            let wanted = (buffer.len().div_ceil(PAGE_SIZE)) as u64;
            let count = extent.count.min(wanted);
            let bytes = usize::try_from(count * PAGE_BYTES).map_err(io::Error::other)?;
            let length = bytes.min(buffer.len());
            let (now, later) = buffer.split_at_mut(length);
            match extent.origin {
                Origin::Zero => now.fill(0),
                Origin::Layer { layer, page } => {
                    self.snapshots[layer].memory_file().read_exact_at(now, page * PAGE_BYTES)?
                }
            }
            buffer = later;
            first += count;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;
    use crate::files;
    use crate::manifest::Content;
    use crate::testing::{TestStore, memory, tag};
    use std::fs;

    fn refused(store: &TestStore, name: &str) -> ChainError {
        Chain::load(store, &tag(name)).unwrap_err()
    }

    fn three() -> TestStore {
        let store = TestStore::new();
        let base = store.full("base", &memory(&[1, 2]));
        let middle = store.diff("middle", &base, &memory(&[1, 3]));
        store.diff("head", &middle, &memory(&[4, 3]));
        store
    }

    /// Seals the manifest of `name` again, changed; returns its new link.
    fn forge(store: &TestStore, name: &str, change: impl FnOnce(&mut Manifest)) -> Link {
        let directory = store.path().join(name);
        let mut manifest = read_manifest(&directory).unwrap().manifest;
        change(&mut manifest);
        let (sealed, bytes) = manifest.seal().unwrap();
        fs::write(directory.join(files::MANIFEST), bytes).unwrap();
        sealed.link()
    }

    fn set_parent(manifest: &mut Manifest, link: Link) {
        match &mut manifest.content {
            Content::Diff { parent, .. } => *parent = link,
            Content::Full => panic!("not a diff"),
        }
    }

    #[test]
    fn a_chain_goes_from_the_base_to_the_head() {
        let chain = Chain::load(&three(), &tag("head")).unwrap();
        let tags: Vec<_> = chain.snapshots().iter().map(|s| s.manifest().tag.as_str()).collect();
        assert_eq!(tags, ["base", "middle", "head"]);
        let mut pages = vec![0; 2 * PAGE_SIZE];
        chain.read(0, &mut pages).unwrap();
        assert_eq!((pages[0], pages[PAGE_SIZE]), (4, 3));
        assert!(chain.read(1, &mut pages).is_err());
    }

    #[test]
    fn a_missing_snapshot_and_a_missing_parent_are_told_apart() {
        let store = three();
        let path = store.path().display().to_string();
        assert_eq!(refused(&store, "nobody").to_string(), format!("there is no snapshot nobody in {path}"));
        fs::remove_dir_all(store.path().join("base")).unwrap();
        assert_eq!(
            refused(&store, "head").to_string(),
            format!("snapshot middle needs its parent base, which is not in {path}")
        );
    }

    #[test]
    fn another_snapshot_of_the_same_tag_is_the_wrong_parent() {
        let store = three();
        fs::remove_dir_all(store.path().join("base")).unwrap();
        let other = store.full("base", &memory(&[1, 9]));
        let error = refused(&store, "head");
        assert!(
            matches!(&error, ChainError::WrongParent { child, found, .. }
                if *child == tag("middle") && *found == other.digest),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains("expected") && text.contains(&other.digest.to_string()), "{text}");
    }

    #[test]
    fn damage_anywhere_in_the_chain_is_found() {
        for name in ["base", "middle", "head"] {
            let store = three();
            let file = store.path().join(name).join(files::MEMORY);
            let mut bytes = fs::read(&file).unwrap();
            bytes[100] ^= 1;
            fs::write(&file, bytes).unwrap();
            assert!(
                matches!(refused(&store, "head"), ChainError::Snapshot(OpenError::Digest { path, .. }) if path == file)
            );
        }
    }

    #[test]
    fn a_snapshot_that_is_its_own_ancestor_is_refused() {
        let store = three();
        let nobody = |name| Link { tag: tag(name), digest: Digest::of(b"") };
        forge(&store, "middle", |manifest| set_parent(manifest, nobody("middle")));
        assert!(matches!(refused(&store, "middle"), ChainError::Loop { .. }));
        let middle = forge(&store, "middle", |manifest| set_parent(manifest, nobody("head")));
        forge(&store, "head", |manifest| set_parent(manifest, middle));
        assert!(matches!(refused(&store, "head"), ChainError::Loop { .. }));
    }

    #[test]
    fn a_renamed_directory_is_refused() {
        let store = three();
        fs::rename(store.path().join("base"), store.path().join("stolen")).unwrap();
        assert_eq!(
            refused(&store, "stolen").to_string(),
            "the directory of snapshot stolen has the manifest of base"
        );
    }

    #[test]
    fn other_memory_regions_are_refused() {
        let store = three();
        let larger = store.full("larger", &memory(&[1, 2, 3]));
        forge(&store, "middle", |manifest| set_parent(manifest, larger));
        assert!(matches!(refused(&store, "middle"), ChainError::OtherMemory { .. }));
    }

    #[test]
    fn a_chain_that_is_too_deep_is_refused() {
        let store = TestStore::new();
        let mut link = store.full("s0", &memory(&[1, 2]));
        link = store.diff("s1", &link, &memory(&[1, 3]));
        for depth in 2..=MAX_CHAIN {
            // The next one is a copy of the last with another tag and parent.
            let (from, to) = (store.path().join("s1"), store.path().join(format!("s{depth}")));
            fs::create_dir(&to).unwrap();
            for name in [files::MANIFEST, files::STATE, files::MEMORY, files::MAP] {
                fs::copy(from.join(name), to.join(name)).unwrap();
            }
            let name = format!("s{depth}");
            link = forge(&store, &name, |manifest| {
                manifest.tag = tag(&name);
                set_parent(manifest, link.clone());
            });
        }
        assert_eq!(link.tag, tag("s64"));
        assert!(matches!(refused(&store, "s64"), ChainError::TooDeep { tag: head } if head == tag("s64")));
        let chain = Chain::load(&store, &tag("s63")).unwrap();
        assert_eq!(chain.snapshots().len(), MAX_CHAIN);
    }
}
