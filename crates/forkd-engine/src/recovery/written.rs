//! Everything that is written down of snapshots and sandboxes, as far as it can be read.
//!
//! Sweeps remove only what no record or manifest refers to. While any of these files is unreadable, that is unknown, and
//! nothing is removed.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use forkd_proto::causes::with_causes;
use serde::de::DeserializeOwned;

use crate::engine::{Engine, Shared};
use crate::fault;
use crate::ids::LayerId;
use crate::record::{self, SandboxRecord, Unreadable, ZygoteRecord};

/// What is written down.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// Of snapshots on disk.
    pub stored: Vec<ZygoteRecord>,
    /// Of processes of snapshots.
    pub zygotes: Vec<ZygoteRecord>,
    pub sandboxes: Vec<SandboxRecord>,
    pub unreadable: Vec<Unreadable>,
}

impl Written {
    /// Every layer that a disk is, or may be, made of.
    pub fn layers(&self) -> BTreeSet<LayerId> {
        let frozen = self.stored.iter().chain(&self.zygotes).flat_map(|record| record.disks.iter().flatten());
        let disks = self.sandboxes.iter().flat_map(|record| &record.disks);
        frozen.chain(disks.flat_map(|disk| disk.all())).cloned().collect()
    }
}

impl Shared {
    pub(crate) fn written(&self) -> Written {
        let mut unreadable = Vec::new();
        let stored = self.stored(&mut unreadable);
        let zygotes = records(&self.paths.zygotes(), &mut unreadable);
        let sandboxes = records(&self.paths.sandboxes(), &mut unreadable);
        Written { stored, zygotes, sandboxes, unreadable }
    }

    /// The snapshots on disk that were written by an engine.
    pub(crate) fn stored(&self, unreadable: &mut Vec<Unreadable>) -> Vec<ZygoteRecord> {
        let directory = self.store.directory();
        let listed = fault::read(directory)
            .map_err(|error| error.to_string())
            .and_then(|()| self.store.list().map_err(|error| with_causes(&error)));
        let listed = match listed {
            Ok(listed) => listed,
            Err(reason) => {
                unreadable.push(Unreadable::new(directory, reason));
                return Vec::new();
            }
        };
        let mut records = Vec::new();
        for listed in listed {
            let path = self.store.path(&listed.tag);
            let record = match (fault::read(&path), listed.stored) {
                (Err(error), _) => Err(error.to_string()),
                (Ok(()), Err(error)) => Err(with_causes(&error)),
                // Another program's, with no files of an engine.
                (Ok(()), Ok(stored)) if stored.local.about.is_empty() => continue,
                (Ok(()), Ok(stored)) => {
                    self.known_layers.add(stored.disk_layers().map(|(id, entry)| (id.clone(), entry)));
                    record::from_object::<ZygoteRecord>(stored.local.about)
                }
            };
            match record {
                // What a file says of a process is not true of one that is here.
                Ok(record) => records.push(record.without_process()),
                Err(reason) => unreadable.push(Unreadable::new(path, reason)),
            }
        }
        records
    }

    /// Stores the list of unreadable files for [`Engine::unreadable`], sorted and without duplicates.
    pub(crate) fn note_unreadable(&self, mut unreadable: Vec<Unreadable>) -> Vec<Unreadable> {
        unreadable.extend(self.names.unreadable());
        unreadable.sort_by(|one, other| one.path.cmp(&other.path));
        unreadable.dedup_by(|one, other| one.path == other.path);
        *self.unreadable.lock().unwrap_or_else(PoisonError::into_inner) = unreadable.clone();
        unreadable
    }
}

impl Engine {
    /// What could not be read when the engine last looked: when it started, or at the last sweep.
    pub fn unreadable(&self) -> Vec<Unreadable> {
        self.shared.unreadable.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn records<T: DeserializeOwned>(parent: &Path, unreadable: &mut Vec<Unreadable>) -> Vec<T> {
    let mut records = Vec::new();
    for directory in list(parent, unreadable) {
        match record::read(&directory) {
            Ok(record) => records.extend(record),
            Err(error) => unreadable.push(error),
        }
    }
    records
}

/// What is in a directory, in order. One that cannot be listed is noted.
pub(crate) fn list(parent: &Path, unreadable: &mut Vec<Unreadable>) -> Vec<PathBuf> {
    let listed = || {
        fault::read(parent)?;
        let entries = fs::read_dir(parent)?;
        let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
        paths.sort();
        Ok::<_, io::Error>(paths)
    };
    listed().unwrap_or_else(|error| {
        unreadable.push(Unreadable::new(parent, error));
        Vec::new()
    })
}
