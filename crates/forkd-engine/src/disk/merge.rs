//! Merge: layers of a disk that was branched again and again become one, while the sandbox runs.
//!
//! Every branch of a sandbox that has written to its disk leaves a frozen layer there. When there are [`RUN`] of a level, one of
//! the next level takes their place. So the disk of any number of branches has few layers, and each block is copied once a level.
//! The old layers stay as long as a branch is made of them; branches that come later are made of the new one.
//!
//! ```text
//!   the VM process completes the files of its frozen layers         SettleDisk
//!   a new file gets their contents, in the background               nothing refers to it yet: `Unrecorded`
//!   the record says that the disk may be made of it
//!   the VM process uses it                                          ReplaceLayers
//!   the record says that it does
//! ```

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forkd_devices::disk::{self, Layer, MergeError};
use forkd_proto::causes::with_causes;
use forkd_proto::channel::MAX_DESCRIPTORS;
use forkd_proto::control::Command;
use forkd_store::MAX_CHAIN;
use tokio::task::JoinHandle;

use crate::blocking::in_place;
use crate::engine::Shared;
use crate::error::EngineError;
use crate::fault;
use crate::ids::LayerId;
use crate::process::descriptors::{create, open};
use crate::record::DiskFiles;
use crate::sandbox::Sandbox;

/// How many layers of a level become one of the next.
const RUN: usize = 16;
/// A sandbox with so many layers is branched only after some of them are merged.
const MANY: usize = 4 * RUN;
/// No branch has more layers: their descriptors go with one message, beside those of the longest chain, an image and a state.
const MAX_LAYERS: usize = 100;
const _: () = assert!(3 * MAX_CHAIN + 2 + MAX_LAYERS <= MAX_DESCRIPTORS);

/// Layers that are being made and that no record names yet. A sweep leaves them alone.
#[derive(Debug, Default)]
pub(crate) struct BeingMerged(Mutex<BTreeSet<LayerId>>);

impl BeingMerged {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<LayerId>> {
        // A panic while holding the lock leaves the set in order.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn all(&self) -> BTreeSet<LayerId> {
        self.lock().clone()
    }
}

/// A new layer that no record names. Dropped, it is gone.
#[derive(Debug)]
struct Unrecorded {
    shared: Arc<Shared>,
    id: LayerId,
    recorded: bool,
}

impl Drop for Unrecorded {
    fn drop(&mut self) {
        if !self.recorded {
            // What cannot be removed now is removed by the next sweep.
            self.shared.remove_layer(&self.id);
        }
        self.shared.being_merged.lock().remove(&self.id);
    }
}

/// A layer that can take the place of others.
#[derive(Debug)]
pub(crate) struct Merged {
    layers: Vec<LayerId>,
    by: Unrecorded,
}

/// What a sandbox does about its layers.
#[derive(Debug, Default)]
pub(crate) struct Merging {
    task: Option<JoinHandle<Result<Merged, EngineError>>>,
    /// Why the last try came to nothing.
    failed: Option<String>,
}

impl Merging {
    /// Waits for what is under way; for ever if nothing is.
    pub async fn done(&mut self) -> Result<Merged, EngineError> {
        let Some(task) = &mut self.task else { return std::future::pending().await };
        let merged = task.await;
        self.task = None;
        merged.unwrap_or_else(|error| Err(EngineError::io("merge layers")(std::io::Error::other(error))))
    }
}

/// The layers that are merged next: the oldest of the newest level that has enough of them. Newer layers are never of a higher
/// level than older ones.
fn next_run(frozen: &[LayerId]) -> Option<Range<usize>> {
    let mut end = frozen.len();
    while let Some(last) = frozen[..end].last() {
        let level = last.level();
        let first = frozen[..end].iter().rposition(|layer| layer.level() != level).map_or(0, |at| at + 1);
        if end - first >= RUN {
            return Some(first..first + RUN);
        }
        end = first;
    }
    None
}

impl Sandbox {
    /// Begins to merge layers, if there are enough and it is not done already.
    pub(crate) async fn begin_merge(&mut self) {
        if self.merging.task.is_some() {
            return;
        }
        let Some(disk) = &self.record.disk else { return };
        let Some(run) = next_run(&disk.files.frozen) else { return };
        let layers = disk.files.frozen[run].to_vec();
        // What is sealed is complete; a branch that came to nothing may have left a layer that is not.
        if let Err(error) = self.process.control.call(Command::SettleDisk, &[]).await {
            self.merging.failed = Some(with_causes(&error));
            return;
        }
        let shared = Arc::clone(&self.shared);
        self.merging.task = Some(tokio::task::spawn_blocking(move || merge(shared, layers)));
    }

    /// The end of a merge, and the beginning of the next if there is one.
    pub(crate) async fn end_merge(&mut self, merged: Result<Merged, EngineError>) {
        let replaced = match merged {
            Ok(merged) => self.replace_layers(merged).await,
            Err(error) => Err(error),
        };
        self.merging.failed = replaced.as_ref().err().map(|error| with_causes(error));
        if replaced.is_ok() {
            self.begin_merge().await;
        }
    }

    /// A disk that has grown so deep that it must not get any deeper waits until it is not, if that can be.
    pub(crate) async fn check_depth(&mut self) -> Result<(), EngineError> {
        let depth =
            |sandbox: &Sandbox| sandbox.record.disk.as_ref().map_or(0, |disk| disk.files.frozen.len());
        while depth(self) >= MANY {
            self.begin_merge().await;
            if self.merging.task.is_none() {
                break;
            }
            let merged = self.merging.done().await;
            self.end_merge(merged).await;
            if self.merging.failed.is_some() {
                break;
            }
        }
        match depth(self) {
            layers if layers < MAX_LAYERS => Ok(()),
            layers => {
                let reason = self.merging.failed.clone().unwrap_or_else(|| "nothing was tried".into());
                Err(EngineError::TooManyLayers { layers, reason })
            }
        }
    }

    /// The record is right whatever happens: before, it says what may be; after, what is.
    async fn replace_layers(&mut self, merged: Merged) -> Result<(), EngineError> {
        let Merged { layers, mut by } = merged;
        let Some(disk) = &mut self.record.disk else { return Ok(()) };
        let DiskFiles { mut frozen, top } = disk.files.clone();
        // A rollback may have put another disk in the place of the one that it was made for.
        let Some(first) = frozen.windows(layers.len()).position(|window| window == layers) else {
            return Ok(());
        };
        frozen.splice(first..first + layers.len(), [by.id.clone()]);
        disk.instead = vec![DiskFiles { frozen, top }];
        // From here on a record may have it.
        by.recorded = true;
        if let Err(error) = self.save() {
            if let Some(disk) = &mut self.record.disk {
                disk.instead.clear();
            }
            return Err(error);
        }
        fault::place("merge.written");
        let file = in_place(|| open(&self.shared.places.layer(&by.id)))?;
        let place = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
        let command = Command::ReplaceLayers { first: place(first), count: place(layers.len()) };
        let replaced = self.process.control.call(command, &[file.into()]).await;
        fault::place("merge.replaced");
        if let Some(disk) = &mut self.record.disk {
            let next = disk.instead.pop().filter(|_| replaced.is_ok());
            disk.instead.clear();
            disk.files = next.unwrap_or_else(|| disk.files.clone());
        }
        self.save()?;
        by.recorded = replaced.is_ok();
        replaced.map(drop).map_err(EngineError::from)
    }
}

fn merge(shared: Arc<Shared>, layers: Vec<LayerId>) -> Result<Merged, EngineError> {
    let level = layers.iter().map(LayerId::level).max().unwrap_or(0) + 1;
    let id = LayerId::merged(level).map_err(EngineError::io("get random numbers"))?;
    shared.being_merged.lock().insert(id.clone());
    let by = Unrecorded { shared: Arc::clone(&shared), id, recorded: false };
    let file = create(&shared.places.layer(&by.id))?;
    let opened = layers.iter().map(|id| {
        let file = open(&shared.places.layer(id))?;
        Ok(Layer::open(file).map_err(MergeError::from)?)
    });
    let opened = opened.collect::<Result<Vec<_>, EngineError>>()?;
    fault::place("merge.created");
    disk::merge(&opened, file)?;
    shared.sync_layers()?;
    fault::place("merge.merged");
    Ok(Merged { layers, by })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(levels: &[u32]) -> Vec<LayerId> {
        let id = |level: &u32| match level {
            0 => LayerId::random().unwrap(),
            level => LayerId::merged(*level).unwrap(),
        };
        levels.iter().map(id).collect()
    }

    #[test]
    fn the_newest_level_with_enough_layers_comes_first() {
        assert_eq!(next_run(&[]), None);
        assert_eq!(next_run(&layers(&[0; 15])), None);
        assert_eq!(next_run(&layers(&[0; 40])), Some(0..16));
        let levels = |counts: &[(u32, usize)]| {
            layers(&counts.iter().flat_map(|&(level, count)| vec![level; count]).collect::<Vec<_>>())
        };
        assert_eq!(next_run(&levels(&[(2, 3), (1, 15), (0, 15)])), None);
        assert_eq!(next_run(&levels(&[(2, 3), (1, 16), (0, 15)])), Some(3..19));
        assert_eq!(next_run(&levels(&[(1, 16), (0, 17)])), Some(16..32));
    }

    #[test]
    fn a_disk_stays_shallow() {
        let mut frozen: Vec<u32> = Vec::new();
        let mut deepest = 0;
        for _ in 0..5000 {
            frozen.push(0);
            deepest = deepest.max(frozen.len());
            while let Some(run) = next_run(&layers(&frozen)) {
                let level = frozen[run.start] + 1;
                frozen.splice(run, [level]);
            }
        }
        assert!(deepest <= 4 * (RUN - 1) + 1, "{deepest}");
    }
}
