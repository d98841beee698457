//! What is being published below a snapshot that arrives. Its chain becomes snapshots one by one, from the base up; a daemon that is
//! killed in between leaves some that were not requested. The next daemon removes them: what they were made of is still among the
//! files of `partial.rs`, so the next try has it.
//!
//! ```text
//!   arriving/TAG   digests of the snapshots below TAG that were not here   written and synced ─▶ chain published ─▶ removed
//! ```

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use forkd_api::snapshot::BASE_PREFIX;
use forkd_store::{Digest, MAX_CHAIN, Tag};

use crate::engine::Shared;
use crate::paths::PathError;

/// The longest list: a digest and the end of its line for each snapshot of a chain.
const MAX_LENGTH: usize = MAX_CHAIN * (2 * Digest::LENGTH + 1);

/// The list of one arrival. Dropped, it goes: what was published has a snapshot above it, or was removed.
#[derive(Debug)]
pub(crate) struct Arriving(PathBuf);

impl Arriving {
    /// Writes it down, before any of these snapshots is published.
    pub fn begin(directory: &Path, tag: &Tag, below: &[Digest]) -> Result<Arriving, PathError> {
        let path = directory.join(tag);
        let text: String = below.iter().map(|digest| format!("{digest}\n")).collect();
        let write = || -> io::Result<()> {
            let mut file = File::create(&path)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            File::open(directory)?.sync_all()
        };
        write().map_err(PathError::at("write", &path))?;
        Ok(Arriving(path))
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        // One that stays names snapshots which others are based on by now, or none.
        let _ = fs::remove_file(&self.0);
    }
}

impl Shared {
    /// Removes what arrivals have published that a daemon before this one was killed in. Returns how many snapshots that were. What
    /// others are based on stays, and so does everything while a manifest cannot be read.
    pub(crate) fn remove_unfinished_arrivals(&self) -> usize {
        let files = fs::read_dir(self.paths.arriving()).into_iter().flatten().flatten();
        let mut removed = 0;
        for file in files {
            for digest in read(&file.path()).iter().rev() {
                let found = self.store.find(digest).ok().flatten();
                let its = found.filter(|stored| stored.tag.as_str().starts_with(BASE_PREFIX));
                removed += usize::from(its.is_some_and(|stored| self.store.remove(&stored.tag).is_ok()));
            }
            let _ = fs::remove_file(file.path());
        }
        removed
    }
}

/// The digests in a list. One that was being written says less, and nothing was published for it.
fn read(path: &Path) -> Vec<Digest> {
    let mut text = String::new();
    let file = File::open(path).map(|file| file.take(MAX_LENGTH as u64));
    match file.and_then(|mut file| file.read_to_string(&mut text)) {
        Ok(_) => text.lines().map_while(|line| line.parse().ok()).collect(),
        Err(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_there_until_its_arrival_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let digests = [Digest::of(b"base"), Digest::of(b"diff")];
        let arriving = Arriving::begin(directory.path(), &"head".parse().unwrap(), &digests).unwrap();
        let path = directory.path().join("head");
        assert_eq!(read(&path), digests);
        drop(arriving);
        assert!(!path.exists() && read(&path).is_empty());
        fs::write(&path, format!("{}\n../../etc\n{}\n", digests[0], digests[1])).unwrap();
        assert_eq!(read(&path), digests[..1]);
        fs::write(&path, [0xff; 10]).unwrap();
        assert_eq!(read(&path), []);
        fs::write(&path, "a".repeat(1 << 20)).unwrap();
        assert_eq!(read(&path), []);
    }
}
