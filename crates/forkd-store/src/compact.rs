//! Compact: a diff becomes a full snapshot, in the place of the one it was.
//!
//! ```text
//!   TAG/         diff of base                    TAG/         full
//!   .tmp-…/      full, being written  ──exchange──▶  .tmp-…/      the diff, being removed
//!
//!   killed before the exchange: the diff is there; after it: the full one. The sweep removes the other.
//! ```
//!
//! The contents stay the same, so the disk layers, the time and everything else that the manifest says do, too. Its digest does not: it no
//! longer has a parent. So nothing may be based on it. A full snapshot of version 1 becomes one of today's format.

use std::io;
use std::ops::ControlFlow;

use crate::assemble::AssembleError;
use crate::chain::{Chain, ChainError};
use crate::contents::{NewContents, failed, write_contents};
use crate::draft::{Description, DiskLayer};
use crate::files;
use crate::manifest::{About, Content};
use crate::page::PageSink;
use crate::snapshot::OpenError;
use crate::store::{Store, Stored};
use crate::tag::Tag;
use crate::verify::IsCancelled;
use crate::write::{Observer, WriteError};

/// A snapshot was not compacted, and is what it was.
#[derive(Debug, thiserror::Error)]
pub enum CompactError {
    #[error(transparent)]
    Chain(#[from] ChainError),
    #[error(transparent)]
    Memory(AssembleError),
    #[error(transparent)]
    Write(WriteError),
    #[error("stopped on request")]
    Cancelled,
}

impl From<OpenError> for CompactError {
    fn from(error: OpenError) -> CompactError {
        CompactError::Chain(error.into())
    }
}

impl From<WriteError> for CompactError {
    fn from(error: WriteError) -> CompactError {
        match error {
            WriteError::Stopped => CompactError::Cancelled,
            error => CompactError::Write(error),
        }
    }
}

/// Takes pages and keeps none: they are delivered after they were checked.
struct Check<'a>(&'a IsCancelled<'a>);

impl PageSink for Check<'_> {
    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        if (self.0)() { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
    }

    fn zero(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
}

impl Store {
    /// Makes the snapshot `tag` one that needs no other, with `about` in its manifest and `local` beside it instead of what is there. Returns
    /// it, or `None` if it is full already, and of today's format. Refused if another snapshot is based on it.
    pub fn compact(
        &self,
        tag: &Tag,
        about: About,
        local: About,
        is_cancelled: &IsCancelled<'_>,
    ) -> Result<Option<Stored>, CompactError> {
        let observe = |_| if is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        self.compact_in_steps(tag, about, local, is_cancelled, &mut { observe })
    }

    pub(crate) fn compact_in_steps(
        &self,
        tag: &Tag,
        about: About,
        local: About,
        is_cancelled: &IsCancelled<'_>,
        observe: &mut Observer<'_>,
    ) -> Result<Option<Stored>, CompactError> {
        let missing =
            || ChainError::Missing { tag: tag.clone(), store: self.directory().display().to_string() };
        let stored = self.get(tag)?.ok_or_else(missing)?;
        if stored.manifest().parent.is_none() && matches!(stored.manifest().content, Content::Framed { .. }) {
            return Ok(None);
        }
        // Refused again at the end, with the store locked; here it saves the work.
        let draft = self.draft_instead(&stored)?;
        let chain = Chain::load(self, tag)?;
        // The name may be another's by now.
        if chain.head().sealed().digest != stored.sealed.digest {
            return Err(missing().into());
        }
        // What is damaged must not be sealed again as if it were not.
        chain.assemble(&Check(is_cancelled)).map_err(|error| match error {
            AssembleError::Sink { .. } => CompactError::Cancelled,
            error => CompactError::Memory(error),
        })?;
        let description = describe(&stored, about, local);
        let contents = NewContents {
            state_version: chain.state().version(),
            state: chain.state().payload(),
            memory: &chain,
            base: None,
        };
        let new_files = draft.new_files().map_err(failed(files::MEMORY))?;
        write_contents(new_files, &contents, &mut chain.data_ranges(), observe)?;
        let draft = draft.settle()?;
        let hashed = draft.unhashed()?.hash()?;
        Ok(Some(draft.publish_in_steps(description, hashed, observe)?))
    }
}

fn describe(stored: &Stored, about: About, local: About) -> Description {
    let manifest = stored.manifest();
    let layers = stored.disk_layers().map(|(id, entry)| DiskLayer { id: id.clone(), entry });
    Description {
        created_unix_ms: manifest.created_unix_ms,
        cpu: manifest.cpu.clone(),
        layout: manifest.layout.clone(),
        about,
        local,
        disk_layers: layers.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Memory, TestStore, memory, tag};
    use crate::write::Step;
    use std::fs;
    use std::os::unix::fs::FileExt;

    fn content(store: &TestStore, name: &str, pages: u64) -> Memory {
        let found = Memory::of_regions(&[pages]);
        Chain::load(store, &tag(name)).unwrap().assemble(&found).unwrap();
        found.received()
    }

    fn compact(store: &TestStore, name: &str) -> Result<Option<Stored>, CompactError> {
        store.compact(&tag(name), About::new(), About::new(), &|| false)
    }

    fn chain() -> (TestStore, Memory) {
        let store = TestStore::new();
        let base = store.full("base", &memory(&[1, 2, 0, 4, 5]));
        let middle = store.diff("middle", &base, &memory(&[1, 0, 3, 4, 5]));
        let content = memory(&[1, 0, 3, 0, 6]);
        store.diff("head", &middle, &content);
        (store, content)
    }

    #[test]
    fn snapshots_of_version_1_become_ones_of_today() {
        let (store, [base, head]) = TestStore::of_version_1();
        let about = About::from_iter([("vcpus".to_owned(), 1.into())]);
        let compact = |name: &str| store.compact(&tag(name), about.clone(), About::new(), &|| false);
        assert!(compact("base").is_err(), "something is based on it");
        for (name, expected) in [("head", head), ("base", base)] {
            let stored = compact(name).unwrap().unwrap();
            assert!(matches!(stored.manifest().content, Content::Framed { .. }), "{name}");
            assert_eq!(stored.manifest().about, about);
            let found = Memory::of_regions(&[3, 2]);
            Chain::load(&store, &tag(name)).unwrap().assemble(&found).unwrap();
            assert_eq!(found.received(), expected, "{name}");
            assert!(compact(name).unwrap().is_none(), "{name}");
        }
    }

    #[test]
    fn a_diff_becomes_full_and_needs_nobody() {
        let (store, expected) = chain();
        let before = store.get(&tag("head")).unwrap().unwrap();
        let after = compact(&store, "head").unwrap().unwrap();
        assert_eq!(store.get(&tag("head")).unwrap().unwrap(), after);
        assert_eq!((after.manifest().parent, &after.local.parent), (None, &None));
        assert_ne!(after.sealed.digest, before.sealed.digest);
        assert_eq!(after.local.layers, before.local.layers);
        let (old, new) = (before.manifest(), after.manifest());
        assert_eq!((&new.cpu, &new.disk_layers, &new.about), (&old.cpu, &old.disk_layers, &old.about));
        assert_eq!(new.created_unix_ms, old.created_unix_ms);
        assert_eq!(content(&store, "head", 5), expected);
        let state = |name: &str| Chain::load(&store, &tag(name)).unwrap().state().payload().to_vec();
        let payload = state("head");
        for name in ["middle", "base"] {
            store.remove(&tag(name)).unwrap();
        }
        assert_eq!((content(&store, "head", 5), state("head")), (expected, payload));
        assert!(compact(&store, "head").unwrap().is_none(), "it is full");
        assert_eq!(fs::read_dir(store.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_others_are_based_on_stays_as_it_is() {
        let (store, expected) = chain();
        let error = compact(&store, "middle").unwrap_err();
        assert_eq!(error.to_string(), "snapshot middle is the parent of head; remove them first");
        assert_eq!(content(&store, "head", 5), expected);
        assert!(matches!(compact(&store, "none"), Err(CompactError::Chain(ChainError::Missing { .. }))));
    }

    #[test]
    fn damaged_memory_is_not_sealed_again() {
        let (store, _) = chain();
        let file = fs::File::options().write(true).open(store.path().join("base/memory.bin")).unwrap();
        file.write_all_at(&[99], 10).unwrap();
        let error = compact(&store, "head").unwrap_err();
        assert!(error.to_string().contains("base/memory.bin is damaged"), "{error}");
        assert!(store.get(&tag("head")).unwrap().unwrap().manifest().parent.is_some());
    }

    /// Whenever it is stopped, the snapshot is there with the same memory, and a sweep leaves nothing else.
    #[test]
    fn stopped_at_any_step_it_is_the_old_or_the_new() {
        let (store, expected) = chain();
        for stop in 0.. {
            let mut steps = 0;
            let observe = &mut |_: Step| {
                steps += 1;
                if steps > stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let done = store.compact_in_steps(&tag("head"), About::new(), About::new(), &|| false, observe);
            assert_eq!(content(&store, "head", 5), expected, "step {stop}");
            store.sweep().unwrap();
            assert_eq!(fs::read_dir(store.path()).unwrap().count(), 3);
            match done {
                Ok(compacted) => return assert!(compacted.is_some() && stop > 5),
                Err(error) => assert!(matches!(error, CompactError::Cancelled), "{error}"),
            }
        }
    }

    /// A snapshot that appears meanwhile keeps its parent.
    #[test]
    fn a_diff_that_appears_meanwhile_is_noticed() {
        let (store, expected) = chain();
        let head = store.link("head");
        let mut appeared = false;
        let observe = &mut |step: Step| {
            if step == Step::DirectorySynced && !appeared {
                appeared = true;
                store.diff("late", &head, &memory(&[7, 0, 3, 0, 6]));
            }
            ControlFlow::Continue(())
        };
        let refused = store.compact_in_steps(&tag("head"), About::new(), About::new(), &|| false, observe);
        assert_eq!(
            refused.unwrap_err().to_string(),
            "snapshot head is the parent of late; remove them first"
        );
        assert_eq!(content(&store, "late", 5), memory(&[7, 0, 3, 0, 6]));
        assert_eq!(content(&store, "head", 5), expected);
    }
}
