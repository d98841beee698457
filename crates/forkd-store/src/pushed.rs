//! `pushed.json`: how the parts of a snapshot were compressed when they were pushed or pulled. Another version of the compressor makes
//! other bytes of the same contents, and with this none of them has to be sent again.
//!
//! The file comes after the snapshot, and is no part of it, as `prefault.json` is. What is in it is the owner's.

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::digest::Digest;
use crate::files;
use crate::prefault::KeepError;
use crate::side_file;
use crate::snapshot::OpenError;
use crate::snapshot_files::SnapshotDirectory;
use crate::store::{Store, StoreError};
use crate::tag::Tag;

const FILE: &str = "pushed.json";
/// As much as the tables of the largest artifact.
const MAX_LENGTH: u64 = 32 << 20;

impl Store {
    /// What was kept with a snapshot. What cannot be read is the same as nothing.
    pub fn pushed<T: DeserializeOwned>(&self, tag: &Tag) -> Result<Option<T>, OpenError> {
        let Some((directory, _)) = SnapshotDirectory::open(&self.path(tag))? else { return Ok(None) };
        let read = || -> io::Result<Vec<u8>> {
            let file = directory.open_file(FILE)?;
            files::read(&file, files::length(&file)?.min(MAX_LENGTH + 1))
        };
        let bytes = read().ok().filter(|bytes| bytes.len() as u64 <= MAX_LENGTH);
        Ok(bytes.and_then(|bytes| serde_json::from_slice(side_file::decode(&bytes)?).ok()))
    }

    /// Keeps it with the snapshot that has this digest, in the place of what was there.
    pub fn keep_pushed(&self, tag: &Tag, digest: &Digest, what: &impl Serialize) -> Result<(), KeepError> {
        let encoded = side_file::encode(what).map_err(StoreError::at("write", &self.path(tag).join(FILE)))?;
        self.keep_beside(tag, digest, FILE, &encoded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestStore, memory, tag};
    use std::fs;

    #[test]
    fn it_is_kept_with_its_snapshot_and_damage_is_nothing() {
        let store = TestStore::new();
        let base = store.full("base", &memory(&[1]));
        let kept = || store.pushed::<Vec<u32>>(&tag("base")).unwrap();
        assert_eq!(kept(), None);
        store.keep_pushed(&tag("base"), &base.digest, &[1, 2]).unwrap();
        assert_eq!(kept(), Some(vec![1, 2]));
        assert_eq!(store.pushed::<String>(&tag("base")).unwrap(), None, "something else");
        let path = store.path().join("base").join(FILE);
        let mut bytes = fs::read(&path).unwrap();
        bytes[3] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_eq!(kept(), None);
        let other = Digest::of(b"other");
        assert!(matches!(store.keep_pushed(&tag("base"), &other, &[1]), Err(KeepError::Gone { .. })));
        assert_eq!(store.pushed::<Vec<u32>>(&tag("none")).unwrap(), None);
    }
}
