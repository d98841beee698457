//! Steps are removed when they take too much room, those first that were not used for longest.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::fs::FlockOperation;
use serde::Serialize;

use super::{BuildCache, BuildCacheError, KeptStep};
use crate::files::{self, FileError};
use crate::images::ImageStore;

/// What was removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    pub steps: usize,
    /// Bytes that the disk has back.
    pub freed: u64,
}

impl BuildCache {
    /// Removes steps until the others take at most `limit` bytes, and those that are of no use any more in any case. Fails at
    /// once while a build is running.
    pub fn prune(&self, limit: u64, images: &ImageStore) -> Result<Pruned, BuildCacheError> {
        let _alone = match self.lock(FlockOperation::NonBlockingLockExclusive) {
            Ok(lock) => lock,
            Err(FileError::Io { source, .. }) if source.kind() == std::io::ErrorKind::WouldBlock => {
                return Err(BuildCacheError::Busy);
            }
            Err(error) => return Err(error.into()),
        };
        let mut kept: Vec<(KeptStep, u64)> = Vec::new();
        let mut gone: BTreeSet<String> = BTreeSet::new();
        for name in files::names(&self.directory)? {
            match self.load(&name)? {
                Some(step) if self.is_sound(&step, images)? => {
                    let size = fs::metadata(self.layer(&name)).map_or(0, |layer| layer.blocks() * 512);
                    kept.push((step, size));
                }
                _ => drop(gone.insert(name)),
            }
        }
        // A step is never older than those it lies on: finding it touches them all. Of two with one time, the one with
        // less below it goes last.
        kept.sort_by_key(|(step, _)| {
            (std::cmp::Reverse(self.used(&step.name)), step.ground.steps.len(), step.name.clone())
        });
        let mut total = 0_u64;
        for (step, size) in &kept {
            total = total.saturating_add(*size);
            if total > limit || step.ground.steps.iter().any(|below| gone.contains(below)) {
                gone.insert(step.name.clone());
            }
        }
        let mut pruned = Pruned::default();
        for name in gone {
            let path = self.directory.join(&name);
            let layer = fs::metadata(self.layer(&name));
            files::remove_directory(&path)?;
            pruned.steps += 1;
            pruned.freed += layer.map_or(0, |layer| layer.blocks() * 512);
        }
        Ok(pruned)
    }
}
