//! Verify: every byte of a snapshot, of those it is based on, of its disk layers and of the image below them, read and compared with
//! what the manifests say. A load does not do that: it checks the memory that it uses, and sizes of layers.
//!
//! The work runs at the lowest priority, in threads of its own. It stops when the caller goes away or the daemon stops.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forkd_image::images::ImageError;
use forkd_proto::causes::with_causes;
use forkd_store::{ChainError, IsCancelled, LayerEntry, OpenError, Tag, VerifyError};

use crate::background::behind;
use crate::engine::{Engine, Shared};
use crate::error::EngineError;
use crate::ids::LayerId;

/// What was read, and the first file that is damaged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Snapshots in the chain.
    pub snapshots: usize,
    /// Disk layers, the image included.
    pub layers: usize,
    pub bytes: u64,
    pub damage: Option<Damage>,
}

/// A file that is not what the manifest says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Below the engine's directory. An image of a shared library has its whole path.
    pub file: Option<PathBuf>,
    pub problem: String,
}

/// Work that stops when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Whether it was dropped.
    pub fn watch(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let flag = Arc::clone(&self.0);
        move || flag.load(Ordering::Relaxed)
    }
}

impl Drop for Cancel {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Engine {
    /// Reads and checks all that a snapshot is made of. One that is not on disk is waited for. `held` is kept until the work has stopped,
    /// also when the caller has gone.
    pub async fn verify(&self, tag: &Tag, held: impl Send + 'static) -> Result<Verified, EngineError> {
        self.snapshot(tag.as_str())?.durable().await?;
        let cancel = Cancel::default();
        let (shared, wanted, is_cancelled) = (Arc::clone(&self.shared), tag.clone(), cancel.watch());
        let work = move || {
            let _held = held;
            let is_cancelled = || is_cancelled() || *shared.stopping.borrow();
            verify(&shared, &wanted, &is_cancelled)
        };
        behind(std::future::pending(), work).await?
    }
}

fn verify(shared: &Shared, tag: &Tag, is_cancelled: &IsCancelled<'_>) -> Result<Verified, EngineError> {
    let mut verified = Verified::default();
    match read_all(shared, tag, is_cancelled, &mut verified) {
        Ok(()) => Ok(verified),
        Err(VerifyError::Cancelled) => Err(EngineError::Stopping),
        // Its files may have gone while they were read.
        Err(VerifyError::Damaged(_)) if shared.snapshots.get(tag).is_none() => Err(EngineError::Removed),
        Err(VerifyError::Damaged(error)) => {
            verified.damage = Some(damage(shared.paths.root(), &error));
            Ok(verified)
        }
    }
}

fn read_all(
    shared: &Shared,
    tag: &Tag,
    is_cancelled: &IsCancelled<'_>,
    verified: &mut Verified,
) -> Result<(), VerifyError> {
    let chain = shared.store.ancestry(tag)?;
    verified.snapshots = chain.len();
    // Each once: a snapshot has most layers of its parent.
    let layers: BTreeMap<Tag, LayerEntry> = chain
        .iter()
        .flat_map(|stored| stored.disk_layers().map(|(id, entry)| (id.clone(), entry)).collect::<Vec<_>>())
        .collect();
    verified.bytes += shared.store.verify(tag, is_cancelled)?;
    for (id, entry) in layers {
        let path = path_of(shared, &id)?;
        let file = File::open(&path).map_err(|source| OpenError::Io { path: path.clone(), source })?;
        entry.verify(&path, &file, is_cancelled)?;
        verified.layers += 1;
        verified.bytes += entry.size;
    }
    Ok(())
}

/// The file of a layer. An image is known by its digest, which is too long for the name of a layer.
fn path_of(shared: &Shared, id: &Tag) -> Result<PathBuf, OpenError> {
    if let Ok(id) = LayerId::try_from(id.to_string()) {
        return Ok(shared.paths.layer(&id));
    }
    let failed = |source: ImageError| OpenError::Io {
        path: shared.images.directory().join(id.as_str()),
        source: std::io::Error::other(source),
    };
    let digest = format!("sha256:{id}").parse();
    let digest = digest.map_err(|_| failed(ImageError::Unknown(id.to_string())))?;
    let image = shared.images.get(digest).map_err(failed)?;
    Ok(image.ok_or_else(|| failed(ImageError::Unknown(id.to_string())))?.base())
}

fn damage(root: &Path, error: &ChainError) -> Damage {
    let below = |path: &Path| path.strip_prefix(root).unwrap_or(path).to_path_buf();
    let file = match error {
        ChainError::Snapshot(error) => Some(below(error.path())),
        _ => None,
    };
    // Where the daemon keeps its files is of no use to a caller.
    let problem = with_causes(error).replace(&format!("{}/", root.display()), "");
    Damage { file, problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_told_with_paths_below_the_engine_s_directory() {
        let path = PathBuf::from("/var/lib/forkd/snapshots/base/memory.bin");
        let error = ChainError::Snapshot(OpenError::Truncated { path, found: 1, expected: 2 });
        let damage = damage(Path::new("/var/lib/forkd"), &error);
        assert_eq!(damage.file.as_deref(), Some(Path::new("snapshots/base/memory.bin")));
        assert_eq!(damage.problem, "snapshots/base/memory.bin is truncated: 1 bytes, expected 2");
    }

    #[test]
    fn work_is_cancelled_with_whoever_asked() {
        let cancel = Cancel::default();
        let is_cancelled = cancel.watch();
        assert!(!is_cancelled());
        drop(cancel);
        assert!(is_cancelled());
    }
}
