//! Memory images that are known to be what their manifests say. A diff is made against its parent's memory, which must be that for
//! sure; but to hash it for every branch would take longer than all else.
//!
//! An image that nobody can write to is hashed once, by this process or by one that has loaded it and has run no guest. As long as the
//! kernel says that the file has not been written to since, that holds.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forkd_store::{OpenError, SnapshotFiles, Stamp};

use crate::disk::writers::{Writers, writers};

/// More are not kept: what is not known is found out again.
const MOST: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct CheckedImages(Mutex<HashSet<Seen>>);

/// A manifest and a memory image as they were when somebody looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Seen([Stamp; 2]);

impl Seen {
    /// `None` if somebody can write to them, or nobody knows.
    pub fn of(files: &SnapshotFiles) -> Option<Seen> {
        let both = [&files.manifest, &files.memory];
        let sealed = both.iter().all(|file| writers(file).is_ok_and(|writers| writers == Writers::None));
        let [manifest, memory] = both.map(|file| file.metadata().map(|metadata| Stamp::of(&metadata)));
        sealed.then_some(Seen([manifest.ok()?, memory.ok()?]))
    }
}

impl CheckedImages {
    fn lock(&self) -> MutexGuard<'_, HashSet<Seen>> {
        // A panic while holding the lock leaves the set in order.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all of a chain is known.
    pub fn has(&self, chain: &[SnapshotFiles]) -> bool {
        let known = |files| Seen::of(files).is_some_and(|seen| self.lock().contains(&seen));
        chain.iter().all(known)
    }

    /// Checks what is not known of a chain, which takes long. Returns whether all of it is known then: what somebody could change
    /// at any time is not, and is to be checked by whoever uses it.
    pub fn check(&self, chain: &[SnapshotFiles]) -> Result<bool, OpenError> {
        let mut all = true;
        for files in chain {
            let Some(seen) = Seen::of(files) else {
                all = false;
                continue;
            };
            if !self.lock().contains(&seen) {
                files.check_memory()?;
                all &= self.add(files, seen);
            }
        }
        Ok(all)
    }

    /// Remembers what was checked since it was `seen`, unless it was changed meanwhile.
    pub fn add(&self, files: &SnapshotFiles, seen: Seen) -> bool {
        let same = Seen::of(files) == Some(seen);
        if same {
            let mut known = self.lock();
            if known.len() >= MOST {
                known.clear();
            }
            known.insert(seen);
        }
        same
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::fs;
    use std::io;
    use std::ops::ControlFlow;
    use std::os::unix::fs::FileExt;

    use forkd_store::{Layout, NewSnapshot, PAGE_SIZE, PageSource, Region, Store, Tag};

    struct Ones(Layout);

    impl PageSource for Ones {
        fn layout(&self) -> &Layout {
            &self.0
        }

        fn read(&self, _first: u64, buffer: &mut [u8]) -> io::Result<()> {
            buffer.fill(1);
            Ok(())
        }
    }

    #[test]
    fn an_image_is_read_once_until_it_is_written_to() {
        // A file system that has leases.
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let (store, tag) = (Store::new(directory.path()), "base".parse::<Tag>().unwrap());
        let layout = Layout::new(vec![Region { address: 0, length: 4 * PAGE_SIZE as u64 }]).unwrap();
        let new = NewSnapshot {
            tag: tag.clone(),
            created_unix_ms: 0,
            cpu_features: Vec::new(),
            disk_layers: Vec::new(),
            state_version: 1,
            state: b"state",
            memory: &Ones(layout),
            base: None,
        };
        store.write(new, &mut std::iter::once(0..4), &mut |_| ControlFlow::Continue(())).unwrap();
        let open = || store.open_chain(&tag).unwrap();
        let checked = CheckedImages::default();
        assert!(!checked.has(&open()));
        assert!(checked.check(&open()).unwrap() && checked.has(&open()));
        assert!(checked.check(&open()).unwrap(), "also when it is asked again");

        let path = store.path(&tag).join("memory.bin");
        let writer = fs::OpenOptions::new().write(true).open(&path).unwrap();
        assert!(!checked.has(&open()), "somebody could change it");
        assert!(!checked.check(&open()).unwrap());
        // A clock of the kernel's that ticks every few milliseconds says when.
        std::thread::sleep(std::time::Duration::from_millis(20));
        writer.write_all_at(b"2", 5000).unwrap();
        drop(writer);
        assert!(!checked.has(&open()));
        assert!(matches!(checked.check(&open()), Err(OpenError::Digest { .. })));
    }
}
