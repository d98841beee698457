//! Compact: a snapshot becomes one that needs no other.
//!
//! The store writes all of its memory into new files and exchanges them for the old ones (`forkd-store`'s `compact.rs`). A fork
//! meanwhile uses the process, or loads the one or the other: their memory is the same. The owner of the snapshot is told when it is done.
//! Branches that are written meanwhile as diffs of what it was are written again (`persist.rs`).

use std::sync::Arc;

use forkd_store::{About, ChainError, CompactError, Content, RemoveError, Stored, Tag, WriteError};

use crate::background::behind;
use crate::blocking::in_place;
use crate::engine::{Engine, Shared};
use crate::error::EngineError;
use crate::record::{self, PortableRecord, ZygoteRecord};
use crate::snapshot::SnapshotHandle;
use crate::snapshot::verify::Cancel;

impl Engine {
    /// Makes a snapshot one that needs no other. One that is not on disk is waited for. Refused while others are based on it. `held` is kept
    /// until the work has stopped, also when the caller has gone.
    pub async fn compact(&self, tag: &Tag, held: impl Send + 'static) -> Result<(), EngineError> {
        let handle = self.snapshot(tag.as_str())?;
        let tag = handle.durable().await?.record.tag;
        self.shared.refuse_dependents(&tag)?;
        let most = in_place(|| self.shared.memory_of_chain(&tag))?;
        self.admit_bytes(&self.shared.paths.snapshots(), most)?;
        let cancel = Cancel::default();
        let (shared, is_cancelled) = (Arc::clone(&self.shared), cancel.watch());
        let work = move || {
            let _held = held;
            compact(&shared, &tag, &|| is_cancelled() || *shared.stopping.borrow())
        };
        // What is done is told to its owner, also when the caller goes away.
        let done = tokio::spawn(async move {
            behind(std::future::pending(), work).await??;
            handle.compacted().await
        });
        let done = done.await.map_err(|_| EngineError::Stopping)?;
        drop(cancel);
        done
    }
}

impl Shared {
    /// Refuses a snapshot that others are based on, also those that are not on disk yet.
    fn refuse_dependents(&self, tag: &Tag) -> Result<(), EngineError> {
        let records = self.snapshots.all().into_iter().map(|handle| handle.view().record);
        let dependents: Vec<String> = records
            .filter(|record| record.parent.as_ref() == Some(tag))
            .map(|record| record.tag.to_string())
            .collect();
        match dependents.is_empty() {
            true => Ok(()),
            false => Err(EngineError::IsParent { tag: tag.clone(), dependents }),
        }
    }

    /// What the memory of a snapshot takes at most when it needs no other.
    fn memory_of_chain(&self, tag: &Tag) -> Result<u64, ChainError> {
        let chain = self.store.ancestry(tag)?;
        let most = chain.first().map_or(0, |head| head.manifest().layout.size());
        Ok(chain.iter().map(|stored| stored.manifest().memory.size).sum::<u64>().min(most))
    }
}

fn compact(shared: &Shared, tag: &Tag, is_cancelled: &(dyn Fn() -> bool + Sync)) -> Result<(), EngineError> {
    let stored = shared.store.get(tag).map_err(ChainError::from)?.ok_or(EngineError::Removed)?;
    // Again: it is the last moment before the work.
    shared.refuse_dependents(tag)?;
    let (about, local) = notes(&stored).map_err(|reason| EngineError::Failed { tag: tag.clone(), reason })?;
    match shared.store.compact(tag, about, local, is_cancelled) {
        Ok(_) => Ok(()),
        Err(CompactError::Cancelled) => Err(EngineError::Stopping),
        Err(CompactError::Write(WriteError::Replaced { .. })) => Err(EngineError::Removed),
        Err(CompactError::Write(WriteError::Dependents(error))) => Err(match *error {
            RemoveError::Needed { tag, dependents } => {
                let dependents = dependents.iter().map(ToString::to_string).collect();
                EngineError::IsParent { tag, dependents }
            }
            error => error.into(),
        }),
        Err(CompactError::Write(error)) => Err(error.into()),
        Err(CompactError::Chain(error)) => Err(error.into()),
        Err(CompactError::Memory(error)) => Err(EngineError::Damaged(error)),
    }
}

/// What is in its manifest and what is beside that, for one without a parent.
fn notes(stored: &Stored) -> Result<(About, About), String> {
    let record: ZygoteRecord = record::from_object(stored.local.about.clone())?;
    // Of a manifest of version 1, its writer says what its layers are; that must not be believed because it is sealed again.
    let is_sealed = matches!(stored.manifest().content, Content::Framed { .. });
    let layers_unsealed = record.layers_unsealed || !is_sealed;
    let written = |error: serde_json::Error| error.to_string();
    // Version 1 has none.
    let about = record::to_object(&PortableRecord::of(&record)).map_err(written)?;
    let local =
        record::to_object(&ZygoteRecord { parent: None, layers_unsealed, ..record }).map_err(written)?;
    Ok((about, local))
}

impl SnapshotHandle {
    /// Its files need no other snapshot any more.
    async fn compacted(&self) -> Result<(), EngineError> {
        self.ask(super::Request::Compacted).await
    }
}
