//! Sweep: what is nobody's goes, and what could not be adopted when the daemon started is adopted when it answers.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forkd_store::Tag;

use super::recover::{Settled, directories, is_old, remove_unused, settle_sandbox, settle_zygote, stored};
use super::{Engine, EngineError, Shared};
use crate::ids::{LayerId, SandboxId};
use crate::record::{self, SandboxRecord, ZygoteRecord};

/// What is younger may be of a VM that is not written down yet.
const MAKING: Duration = Duration::from_secs(60);

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// Those that have answered at last.
    pub sandboxes: Vec<SandboxId>,
    pub zygotes: Vec<Tag>,
    /// Directories, files and processes that were nobody's.
    pub removed: usize,
}

impl Engine {
    /// Looks for what nobody has: processes and their directories, and layers of disks.
    pub async fn sweep(&self) -> Result<Swept, EngineError> {
        let mut swept = self.shared.sweep_directories().await?;
        self.shared.sweep_networks();
        swept.removed += self.shared.sweep_cgroups();
        let shared = Arc::clone(&self.shared);
        let layers = tokio::task::spawn_blocking(move || shared.sweep_layers()).await;
        swept.removed += layers.map_err(|error| EngineError::io("sweep")(std::io::Error::other(error)))??;
        Ok(swept)
    }
}

impl Shared {
    /// A directory is made after its name is taken, and removed before that is given back. So one without a name is of a process
    /// that did not answer when the daemon started, or could not be removed when it should have been.
    async fn sweep_directories(self: &Arc<Self>) -> Result<Swept, EngineError> {
        let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
        let is_sandbox = |name: &str| name.parse().is_ok_and(|id| self.sandboxes.has(&id));
        let is_snapshot = |name: &str| name.parse().is_ok_and(|tag| self.snapshots.has(&tag));
        let mut swept = Swept::default();
        for directory in directories(&self.places.zygotes())? {
            if !is_old(&directory, MAKING) || name(&directory).is_some_and(|name| is_snapshot(&name)) {
                continue;
            }
            match settle_zygote(self, &directory, &stored(self)?).await? {
                Settled::Adopted(record) => swept.zygotes.push(record.tag),
                Settled::Removed => swept.removed += 1,
                Settled::Mute(_) => {}
            }
        }
        for directory in directories(&self.places.sandboxes())? {
            if !is_old(&directory, MAKING) || name(&directory).is_some_and(|name| is_sandbox(&name)) {
                continue;
            }
            match settle_sandbox(self, &directory).await? {
                Settled::Adopted(record) => swept.sandboxes.push(record.id),
                Settled::Removed => swept.removed += 1,
                Settled::Mute(_) => {}
            }
        }
        Ok(swept)
    }

    fn sweep_layers(&self) -> Result<usize, EngineError> {
        let mut used: BTreeSet<LayerId> =
            stored(self)?.into_iter().flat_map(|record| record.layers).collect();
        // What is written down, not what is known here: a sandbox that is being made is written down first.
        for directory in directories(&self.places.zygotes())? {
            used.extend(
                record::read::<ZygoteRecord>(&directory).into_iter().flat_map(|record| record.layers),
            );
        }
        for directory in directories(&self.places.sandboxes())? {
            let disk = record::read::<SandboxRecord>(&directory).and_then(|record| record.disk);
            used.extend(disk.iter().flat_map(|disk| disk.all()).cloned());
        }
        Ok(remove_unused(&self.places.layers(), &used, MAKING)?)
    }
}
