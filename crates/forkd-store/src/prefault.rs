//! `prefault.json`: the pages that children of a snapshot use first, as they were found out from one of them.
//!
//! ```text
//! b0a8…
//! {"format":"forkd prefault","version":2,"snapshot":"…","written":[…],"touched":[…],"fresh":[…]}
//! ```
//!
//! `snapshot` is the digest of the manifest beside it. The file comes after the snapshot, and is no part of it: the manifest does not
//! list it, nothing depends on it, and it goes with the directory. One that is damaged, or of another snapshot or version, is the
//! same as none. So it is not synced either.

use std::io;

use forkd_proto::channel::MAX_MESSAGE;
use forkd_proto::control::Prefault;
use forkd_proto::page_runs::PageRuns;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::files;
use crate::layout::Layout;
use crate::side_file;
use crate::snapshot::OpenError;
use crate::snapshot_files::SnapshotDirectory;
use crate::store::{Store, StoreError, Stored};
use crate::tag::Tag;

const FILE: &str = "prefault.json";
const FORMAT: &str = "forkd prefault";
/// Version 1 knew nothing of a first eval.
const VERSION: u32 = 2;
/// What is longer cannot be told to a process anyway.
const MAX_LENGTH: u64 = MAX_MESSAGE as u64;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    format: String,
    version: u32,
    snapshot: Digest,
    written: PageRuns,
    touched: PageRuns,
    fresh: PageRuns,
}

/// What is kept with a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// What the snapshot is known by.
    pub digest: Digest,
    pub layout: Layout,
    /// The list, if there is one that can be used.
    pub list: Option<Prefault>,
}

/// A list was not kept.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    #[error("no snapshot {tag} with the digest {digest}")]
    Gone { tag: Tag, digest: Digest },
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Store {
    /// What is kept with a snapshot; `None` if there is no such snapshot.
    pub fn prefault(&self, tag: &Tag) -> Result<Option<Kept>, OpenError> {
        let Some((directory, Stored { sealed, .. })) = SnapshotDirectory::open(&self.path(tag))? else {
            return Ok(None);
        };
        let read = || -> io::Result<Vec<u8>> {
            let file = directory.open_file(FILE)?;
            files::read(&file, files::length(&file)?.min(MAX_LENGTH + 1))
        };
        let list = read().ok().and_then(|bytes| decode(&bytes, &sealed.digest));
        // Of memory that the snapshot does not have it says nothing.
        let layout = sealed.manifest.layout;
        let fits = |runs: &PageRuns| runs.end() <= layout.pages();
        let list = list.filter(|list| [&list.written, &list.touched, &list.fresh].into_iter().all(fits));
        Ok(Some(Kept { digest: sealed.digest, layout, list }))
    }

    /// Keeps a list with the snapshot that has this digest, in the place of what was there.
    pub fn keep_prefault(&self, tag: &Tag, digest: &Digest, list: &Prefault) -> Result<(), KeepError> {
        let encoded = encode(digest, list).map_err(StoreError::at("write", &self.path(tag).join(FILE)))?;
        self.keep_beside(tag, digest, FILE, &encoded)
    }

    /// Writes a small file beside the manifest of the snapshot that has this digest, in the place of what was there.
    pub(crate) fn keep_beside(
        &self,
        tag: &Tag,
        digest: &Digest,
        name: &str,
        bytes: &[u8],
    ) -> Result<(), KeepError> {
        // Nothing is removed meanwhile.
        let _lock = self.lock()?;
        let directory = self.path(tag);
        match SnapshotDirectory::open(&directory)? {
            Some((_, stored)) if stored.sealed.digest == *digest => {}
            _ => return Err(KeepError::Gone { tag: tag.clone(), digest: *digest }),
        }
        Ok(side_file::replace(&directory, name, bytes)?)
    }
}

fn encode(snapshot: &Digest, list: &Prefault) -> io::Result<Vec<u8>> {
    let Prefault { written, touched, fresh } = list.clone();
    let fields =
        Fields { format: FORMAT.into(), version: VERSION, snapshot: *snapshot, written, touched, fresh };
    side_file::encode(&fields)
}

fn decode(file: &[u8], snapshot: &Digest) -> Option<Prefault> {
    if file.len() as u64 > MAX_LENGTH {
        return None;
    }
    let fields: Fields = serde_json::from_slice(side_file::decode(file)?).ok()?;
    let is_meant = fields.format == FORMAT && fields.version == VERSION && fields.snapshot == *snapshot;
    is_meant.then_some(Prefault { written: fields.written, touched: fields.touched, fresh: fields.fresh })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestStore, memory, tag};
    use std::fs;

    fn list(end: u64) -> Prefault {
        let [written, touched, fresh] = [[0..1, 2..end], [1..2, 3..4], [0..0, 1..2]].map(PageRuns::first_of);
        Prefault { written, touched, fresh }
    }

    fn kept(store: &TestStore) -> Option<Prefault> {
        store.prefault(&tag("base")).unwrap().unwrap().list
    }

    #[test]
    fn a_list_is_kept_with_its_snapshot_and_goes_with_it() {
        let store = TestStore::new();
        assert!(store.prefault(&tag("base")).unwrap().is_none());
        let base = store.full("base", &memory(&[1, 2, 3, 4]));
        let Kept { digest, list: none, .. } = store.prefault(&tag("base")).unwrap().unwrap();
        assert_eq!((digest, none), (base.digest, None));
        for end in [3, 4] {
            store.keep_prefault(&tag("base"), &digest, &list(end)).unwrap();
            assert_eq!(kept(&store), Some(list(end)));
        }
        fs::write(store.path().join("base/prefault.json.new"), "left").unwrap();
        store.keep_prefault(&tag("base"), &digest, &list(3)).unwrap();
        assert_eq!(kept(&store), Some(list(3)));
        // It is no part of the snapshot.
        let diff = store.diff("diff", &base, &memory(&[1, 2, 3, 5]));
        let kept = store.prefault(&tag("diff")).unwrap().unwrap();
        assert_eq!((kept.digest, kept.list), (diff.digest, None));
        store.remove(&tag("diff")).unwrap();
        store.remove(&tag("base")).unwrap();
        assert_eq!(fs::read_dir(store.path()).unwrap().count(), 0);
        let error = store.keep_prefault(&tag("base"), &digest, &list(3)).unwrap_err();
        assert!(matches!(error, KeepError::Gone { .. }), "{error}");
    }

    #[test]
    fn one_of_another_snapshot_is_none() {
        let store = TestStore::new();
        let base = store.full("base", &memory(&[1, 2, 3, 4]));
        store.keep_prefault(&tag("base"), &base.digest, &list(4)).unwrap();
        let path = store.path().join("base").join(FILE);
        let file = fs::read(&path).unwrap();
        store.remove(&tag("base")).unwrap();
        store.full("base", &memory(&[9, 2, 3, 4]));
        fs::write(&path, file).unwrap();
        assert_eq!(kept(&store), None);
        assert!(matches!(
            store.keep_prefault(&tag("base"), &base.digest, &list(4)),
            Err(KeepError::Gone { .. })
        ));
    }

    #[test]
    fn a_damaged_one_is_none() {
        let store = TestStore::new();
        let base = store.full("base", &memory(&[1, 2, 3, 4]));
        let path = store.path().join("base").join(FILE);
        store.keep_prefault(&tag("base"), &base.digest, &list(4)).unwrap();
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut damaged = good.clone();
            damaged[at] ^= 1;
            assert_eq!(decode(&damaged, &base.digest), None, "byte {at}");
            assert_eq!(decode(&good[..at], &base.digest), None, "{at} bytes");
        }
        assert_eq!(decode(&good, &base.digest), Some(list(4)));
        let sealed = |text: String| [format!("{}\n", Digest::of(text.as_bytes())), text].concat();
        let text = |version: u32, written: &str| {
            let digest = base.digest;
            sealed(format!(
                r#"{{"format":"forkd prefault","version":{version},"snapshot":"{digest}","written":{written},"touched":[],"fresh":[]}}"#
            ))
        };
        // The first is good; then another version, no list, pages that the memory does not have, and too much of it.
        for (bytes, is_good) in [
            (text(2, "[3,1]"), true),
            (text(1, "[3,1]"), false),
            (text(2, "[3,0]"), false),
            (text(2, "[4,1]"), false),
            (text(2, &format!("[3,1{}]", " ".repeat(1 << 16))), false),
        ] {
            fs::write(&path, bytes).unwrap();
            assert_eq!(kept(&store).is_some(), is_good);
        }
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("manifest.json", &path).unwrap();
        assert_eq!(kept(&store), None);
    }
}
