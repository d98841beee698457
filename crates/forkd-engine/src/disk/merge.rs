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
use forkd_proto::control::{Command, MAX_DISKS};
use forkd_store::MAX_CHAIN;

use crate::background::Background;
use crate::blocking::in_place;
use crate::engine::Shared;
use crate::error::EngineError;
use crate::fault;
use crate::ids::LayerId;
use crate::process::descriptors::{create, open};
use crate::record::{DiskFiles, DiskRecord};
use crate::sandbox::Sandbox;

/// How many layers of a level become one of the next, of a sandbox with one disk. Several disks share the room for layers, and it
/// is fewer of each.
const RUN: usize = 16;
/// A sandbox with so many layers is branched only after some of them are merged.
const MANY: usize = 4 * RUN;
/// No branch has more layers: their descriptors go with one message, beside those of the longest chain, a state and an image below
/// each disk.
const MAX_LAYERS: usize = 100;
const _: () = assert!(3 * MAX_CHAIN + 1 + MAX_DISKS + MAX_LAYERS <= MAX_DESCRIPTORS);

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
pub(crate) struct Unrecorded {
    shared: Arc<Shared>,
    pub id: LayerId,
    /// Whether a record names it now.
    pub recorded: bool,
}

impl Unrecorded {
    /// From now on no sweep removes a layer of this name.
    pub fn new(shared: &Arc<Shared>, id: LayerId) -> Unrecorded {
        shared.being_merged.lock().insert(id.clone());
        Unrecorded { shared: Arc::clone(shared), id, recorded: false }
    }
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
    /// The disk's number.
    disk: usize,
    layers: Vec<LayerId>,
    by: Unrecorded,
}

/// What a sandbox does about its layers.
#[derive(Debug, Default)]
pub(crate) struct Merging {
    task: Option<Background<Result<Merged, EngineError>>>,
    /// Why the last try came to nothing.
    failed: Option<String>,
}

impl Merging {
    /// Waits for what is under way; for ever if nothing is.
    pub async fn done(&mut self) -> Result<Merged, EngineError> {
        let Some(task) = &mut self.task else { return std::future::pending().await };
        let merged = task.done().await;
        self.task = None;
        merged.unwrap_or_else(|error| Err(EngineError::io("merge layers")(std::io::Error::other(error))))
    }
}

/// The layers of a disk that are merged next: the oldest of the newest level that has enough of them, `count`. Newer layers are never
/// of a higher level than older ones.
fn next_run(frozen: &[LayerId], count: usize) -> Option<Range<usize>> {
    let mut end = frozen.len();
    while let Some(last) = frozen[..end].last() {
        let level = last.level();
        let first = frozen[..end].iter().rposition(|layer| layer.level() != level).map_or(0, |at| at + 1);
        if end - first >= count {
            return Some(first..first + count);
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
        let disks = &self.record.disks;
        let run = |disk: &DiskRecord| next_run(&disk.files.frozen, RUN / disks.len());
        let next = disks.iter().enumerate().find_map(|(number, disk)| {
            let frozen = disk.files.frozen.get(run(disk)?)?;
            Some((number, frozen.to_vec()))
        });
        let Some((disk, layers)) = next else { return };
        // What is sealed is complete; a branch that came to nothing may have left a layer that is not.
        if let Err(error) = self.process.control.call(Command::SettleDisk, &[]).await {
            self.merging.failed = Some(with_causes(&error));
            return;
        }
        let shared = Arc::clone(&self.shared);
        match Background::begin(move || merge(shared, disk, layers)) {
            Ok(task) => self.merging.task = Some(task),
            Err(error) => self.merging.failed = Some(with_causes(&error)),
        }
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

    /// Disks that have grown so deep that they must not get any deeper wait until they are not, if that can be.
    pub(crate) async fn check_depth(&mut self) -> Result<(), EngineError> {
        let depth = |sandbox: &Sandbox| -> usize {
            sandbox.record.disks.iter().map(|disk| disk.files.frozen.len()).sum()
        };
        while depth(self) >= MANY {
            self.begin_merge().await;
            let Some(task) = &self.merging.task else { break };
            task.hurry();
            let merged = self.merging.done().await;
            self.end_merge(merged).await;
            if self.merging.failed.is_some() {
                break;
            }
        }
        match depth(self) {
            layers if layers + self.record.disks.len() <= MAX_LAYERS => Ok(()),
            layers => {
                let reason = self.merging.failed.clone().unwrap_or_else(|| "nothing was tried".into());
                Err(EngineError::TooManyLayers { layers, reason })
            }
        }
    }

    /// The record is right whatever happens: before, it says what may be; after, what is.
    async fn replace_layers(&mut self, merged: Merged) -> Result<(), EngineError> {
        let Merged { disk: number, layers, mut by } = merged;
        let Some(disk) = self.record.disks.get_mut(number) else { return Ok(()) };
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
            if let Some(disk) = self.record.disks.get_mut(number) {
                disk.instead.clear();
            }
            return Err(error);
        }
        fault::place("merge.written");
        let file = in_place(|| open(&self.shared.paths.layer(&by.id)))?;
        let place = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
        let disk = u8::try_from(number).unwrap_or(u8::MAX);
        let command = Command::ReplaceLayers { disk, first: place(first), count: place(layers.len()) };
        let replaced = self.process.control.call(command, &[file.into()]).await;
        fault::place("merge.replaced");
        if let Some(disk) = self.record.disks.get_mut(number) {
            let next = disk.instead.pop().filter(|_| replaced.is_ok());
            disk.instead.clear();
            disk.files = next.unwrap_or_else(|| disk.files.clone());
        }
        self.save()?;
        by.recorded = replaced.is_ok();
        replaced.map(drop).map_err(EngineError::from)
    }
}

fn merge(shared: Arc<Shared>, disk: usize, layers: Vec<LayerId>) -> Result<Merged, EngineError> {
    let level = layers.iter().map(LayerId::level).max().unwrap_or(0) + 1;
    let id = LayerId::merged(level).map_err(EngineError::io("get random numbers"))?;
    let by = Unrecorded::new(&shared, id);
    let file = create(&shared.paths.layer(&by.id))?;
    let opened = layers.iter().map(|id| {
        let file = open(&shared.paths.layer(id))?;
        Ok(Layer::open(file).map_err(MergeError::from)?)
    });
    let opened = opened.collect::<Result<Vec<_>, EngineError>>()?;
    fault::place("merge.created");
    disk::merge(&opened, file)?;
    shared.sync_layers()?;
    fault::place("merge.merged");
    Ok(Merged { disk, layers, by })
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
        let next_run = |frozen: &[LayerId]| next_run(frozen, RUN);
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
    fn disks_stay_shallow() {
        for disks in 1..=MAX_DISKS {
            let mut frozen: Vec<u32> = Vec::new();
            let mut deepest = 0;
            for _ in 0..5000 {
                frozen.push(0);
                deepest = deepest.max(frozen.len());
                while let Some(run) = next_run(&layers(&frozen), RUN / disks) {
                    let level = frozen[run.start] + 1;
                    frozen.splice(run, [level]);
                }
            }
            assert!(disks * (deepest + 1) <= MAX_LAYERS, "{disks} disks with {deepest} layers each");
        }
    }
}
