//! Verify: every byte of a snapshot and of those it is based on, read and compared with the manifests.
//!
//! A load checks only what it uses: of the memory, the frames that no newer snapshot hides; of ancestors, no state. Layers of disks are in
//! files that the store does not know, so their owner checks them one by one ([`LayerEntry::verify`]).

use std::fs::File;
use std::io;
use std::path::Path;

use crate::chain::{Chain, ChainError};
use crate::checked::check_digest;
use crate::frame::{self, FRAME};
use crate::image_digest;
use crate::manifest::{Content, LayerEntry};
use crate::parallel;
use crate::snapshot::{OpenError, read_manifest, read_state};
use crate::store::Store;
use crate::tag::Tag;

/// Asked often, from several threads.
pub type IsCancelled<'a> = dyn Fn() -> bool + Sync + 'a;

/// A snapshot was not found to be whole.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error(transparent)]
    Damaged(#[from] ChainError),
    #[error("stopped on request")]
    Cancelled,
}

impl From<OpenError> for VerifyError {
    fn from(error: OpenError) -> VerifyError {
        VerifyError::Damaged(error.into())
    }
}

impl Store {
    /// Reads and checks every file of the snapshot `tag` and of those it is based on. Returns how many bytes were read.
    pub fn verify(&self, tag: &Tag, is_cancelled: &IsCancelled<'_>) -> Result<u64, VerifyError> {
        let mut files = self.open_chain_with(tag, true)?;
        let mut bytes = 0;
        // The head's is read when the chain is opened.
        let ancestors = files.len().saturating_sub(1);
        for snapshot in files.iter_mut().take(ancestors) {
            let sealed = read_manifest(&snapshot.name, &snapshot.manifest)?.sealed;
            read_state(&snapshot.name, snapshot.state.take(), &sealed.manifest.state)?;
        }
        let chain = Chain::open(files)?;
        for snapshot in chain.snapshots() {
            let manifest = snapshot.manifest();
            bytes += manifest.state.size + manifest.content.map().map_or(0, |map| map.size);
        }
        Ok(bytes + chain.verify(is_cancelled)?)
    }
}

impl Chain {
    /// Reads and checks every frame of every snapshot's memory, on all cores. Frames that newer snapshots hide are checked, too: others
    /// may be based on this one's ancestors. Returns how many bytes of memory there are.
    pub fn verify(&self, is_cancelled: &IsCancelled<'_>) -> Result<u64, VerifyError> {
        let mut jobs = Vec::new();
        for snapshot in self.snapshots() {
            // Memory of version 1 was checked when the chain was opened.
            if let Content::Framed { .. } = snapshot.manifest().content {
                let frames = frame::count(snapshot.manifest().memory.size);
                jobs.extend((0..frames).map(|index| (snapshot, index)));
            }
        }
        parallel::for_each(
            jobs.len(),
            || vec![0; FRAME],
            |buffer, job| {
                if is_cancelled() {
                    return Err(VerifyError::Cancelled);
                }
                let (snapshot, index) = jobs[job];
                snapshot.read_frame(index, buffer)?;
                Ok(())
            },
        )?;
        Ok(self.snapshots().iter().map(|snapshot| snapshot.manifest().memory.size).sum())
    }
}

impl LayerEntry {
    /// Reads and checks every byte of a layer's file. `name` is for messages.
    pub fn verify(
        &self,
        name: &Path,
        file: &File,
        is_cancelled: &IsCancelled<'_>,
    ) -> Result<(), VerifyError> {
        self.check_length(name, file)?;
        match image_digest::of_file_unless(file, self.size, is_cancelled) {
            Ok(found) => Ok(check_digest(name, found, self.digest)?),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(VerifyError::Cancelled),
            Err(source) => Err(OpenError::Io { path: name.into(), source }.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files;
    use crate::layout::PAGE_SIZE;
    use crate::testing::{Memory, TestStore, tag};
    use std::fs;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A base of three frames, and a diff of it that hides the first wholly.
    fn chain() -> TestStore {
        let store = TestStore::new();
        let mut content = Memory::of_regions(&[1200]);
        (0..1200).for_each(|page| content.set(page, u8::try_from(page % 251 + 1).unwrap()));
        let base = store.full("base", &content);
        (0..512).for_each(|page| content.set(page, 255));
        store.diff("head", &base, &content);
        store
    }

    #[test]
    fn every_file_is_checked_also_what_a_load_does_not_read() {
        let store = chain();
        let verify = || store.verify(&tag("head"), &|| false);
        assert!(verify().unwrap() > (1200 + 512) * PAGE_SIZE as u64);
        let names = [files::MANIFEST, files::STATE, files::MEMORY, files::MAP, files::LOCAL];
        for (snapshot, name) in ["base", "head"].into_iter().flat_map(|tag| names.map(|name| (tag, name))) {
            let path = store.path().join(snapshot).join(name);
            let good = fs::read(&path).unwrap();
            let mut bad = good.clone();
            // In the first frame of the memory, which the diff hides.
            bad[70] ^= 1;
            fs::write(&path, &bad).unwrap();
            let error = verify().unwrap_err().to_string();
            assert!(error.contains(&format!("{snapshot}/{name}")), "{error}");
            fs::write(&path, &good).unwrap();
        }
        verify().unwrap();
    }

    #[test]
    fn memory_of_version_1_is_checked_too() {
        let (store, _) = TestStore::of_version_1();
        store.verify(&tag("head"), &|| false).unwrap();
        let path = store.path().join("base/memory.bin");
        let mut bytes = fs::read(&path).unwrap();
        bytes[5000] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let error = store.verify(&tag("head"), &|| false).unwrap_err();
        assert!(error.to_string().contains("base/memory.bin is damaged"), "{error}");
    }

    #[test]
    fn it_stops_on_request() {
        let store = chain();
        let asked = AtomicUsize::new(0);
        let after_one = || asked.fetch_add(1, Ordering::Relaxed) > 0;
        assert!(matches!(store.verify(&tag("head"), &after_one), Err(VerifyError::Cancelled)));
        let file = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![1; 4 << 20], 0).unwrap();
        let (size, digest) = crate::Digest::of_image(&file).unwrap();
        let layer = LayerEntry { digest, size };
        layer.verify(Path::new("l"), &file, &|| false).unwrap();
        assert!(matches!(layer.verify(Path::new("l"), &file, &|| true), Err(VerifyError::Cancelled)));
    }
}
