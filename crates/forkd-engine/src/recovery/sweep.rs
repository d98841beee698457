//! Sweep: removes unused files; and what could not be adopted when the daemon started is adopted when it answers.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forkd_store::Tag;

use crate::blocking::in_place;
use crate::engine::{Engine, Shared};
use crate::error::EngineError;
use crate::ids::{LayerId, SandboxId};
use crate::record::Unreadable;
use crate::recovery::recover::{Settled, is_old, promised_groups, settle_all, settle_sandbox, settle_zygote};
use crate::recovery::written::list;
use crate::snapshot;
use crate::snapshot::travel::partial::KEPT;

/// What is younger may be of a VM that is not written down yet.
const MAKING: Duration = Duration::from_secs(60);

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// Those that have answered at last.
    pub sandboxes: Vec<SandboxId>,
    pub zygotes: Vec<Tag>,
    /// Snapshots on disk that could not be read before.
    pub stored: Vec<Tag>,
    /// Records, manifests and directories that cannot be read. While there are any, nothing is removed that they might need.
    pub unreadable: Vec<Unreadable>,
    /// Unused directories, files and processes.
    pub removed: usize,
}

/// What became of layers.
pub(crate) struct SweptLayers {
    pub removed: usize,
    pub unreadable: Vec<Unreadable>,
}

impl Engine {
    /// Looks for what is unused: processes and their directories, and layers of disks.
    pub async fn sweep(&self) -> Result<Swept, EngineError> {
        let mut swept = self.shared.sweep_directories().await;
        self.shared.sweep_networks();
        swept.removed += in_place(|| self.shared.sweep_cgroups());
        let shared = Arc::clone(&self.shared);
        let layers = tokio::task::spawn_blocking(move || shared.sweep_layers(MAKING)).await;
        let layers = layers.map_err(|error| EngineError::io("sweep")(std::io::Error::other(error)))?;
        swept.removed += layers.removed;
        swept.removed += in_place(|| self.shared.partials.sweep(KEPT));
        swept.unreadable.extend(layers.unreadable);
        swept.unreadable = self.shared.note_unreadable(swept.unreadable);
        Ok(swept)
    }
}

impl Shared {
    /// A directory is made after its name is taken, and removed before that is given back. So one without a name is of a process
    /// that did not answer when the daemon started, or could not be removed when it should have been.
    async fn sweep_directories(self: &Arc<Self>) -> Swept {
        let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
        let is_sandbox = |name: &str| name.parse().is_ok_and(|id| self.has_name(&id));
        let is_snapshot = |name: &str| name.parse().is_ok_and(|tag| self.snapshots.has(&tag));
        let mut swept = Swept::default();
        let stored = self.stored(&mut swept.unreadable);
        let mut zygotes = list(&self.paths.zygotes(), &mut swept.unreadable);
        zygotes.retain(|path| is_old(path, MAKING) && !name(path).is_some_and(|name| is_snapshot(&name)));
        let stored: Arc<[_]> = stored.into();
        let settled = settle_all(zygotes, |directory| {
            let (shared, stored) = (Arc::clone(self), Arc::clone(&stored));
            async move { settle_zygote(&shared, &directory, &stored).await }
        });
        for (_, settled) in settled.await {
            match settled {
                Settled::Adopted(record) => swept.zygotes.push(record.tag),
                Settled::Removed => swept.removed += 1,
                Settled::Mute(_) => {}
                Settled::Unreadable(error) => swept.unreadable.push(error),
            }
        }
        for record in stored.iter().cloned() {
            // A removal frees the name only after the files are gone. With the name reserved here, a directory that exists stays.
            if let Some(name) = self.snapshots.reserve(&record.tag)
                && self.store.path(&record.tag).is_dir()
            {
                swept.stored.push(record.tag.clone());
                name.fill(snapshot::own_stored(self, record));
            }
        }
        if !swept.zygotes.is_empty() || !swept.stored.is_empty() {
            self.names.load(&self.snapshots, false);
        }
        let sandboxes = list(&self.paths.sandboxes(), &mut swept.unreadable);
        let nobody_s =
            |path: &&PathBuf| is_old(path, MAKING) && !name(path).is_some_and(|name| is_sandbox(&name));
        let unowned: Vec<PathBuf> = sandboxes.iter().filter(nobody_s).cloned().collect();
        if unowned.is_empty() {
            return swept;
        }
        let groups = Arc::new(promised_groups(&self.paths, &sandboxes));
        let settled = settle_all(unowned, |directory| {
            let (shared, groups) = (Arc::clone(self), Arc::clone(&groups));
            async move { settle_sandbox(&shared, &directory, &groups).await }
        });
        for (_, settled) in settled.await {
            match settled {
                Settled::Adopted(record) => {
                    self.adopt_network(&record).await;
                    swept.sandboxes.push(record.id);
                }
                Settled::Removed => swept.removed += 1,
                Settled::Mute(_) => {}
                Settled::Unreadable(error) => swept.unreadable.push(error),
            }
        }
        swept
    }

    /// Removes layers that no disk is made of and that are not too young.
    pub(crate) fn sweep_layers(&self, age: Duration) -> SweptLayers {
        let mut unreadable = Vec::new();
        let layers = list(&self.paths.layers(), &mut unreadable);
        // Before what is written down is read: they are written down before they are no longer among these.
        let being_merged = self.being_merged.all();
        // What is written down, not what is known here: a sandbox that is being made is written down first.
        let written = self.written();
        if !written.unreadable.is_empty() {
            unreadable.extend(written.unreadable);
            return SweptLayers { removed: 0, unreadable };
        }
        let used = written.layers();
        let is_used = |path: &Path| {
            let name = path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
            name.and_then(|name| LayerId::try_from(name).ok())
                .is_some_and(|id| used.contains(&id) || being_merged.contains(&id))
        };
        let unused = layers.iter().filter(|path| is_old(path, age) && !is_used(path));
        // What cannot be removed is tried again by the next sweep.
        let removed = unused.filter(|path| fs::remove_file(path).is_ok()).count();
        self.known_layers.forget(|id| used.contains(id) || being_merged.contains(id));
        SweptLayers { removed, unreadable }
    }
}
