//! Once: a snapshot of an image, made once however many ask for it.
//!
//! ```text
//!   there is one ────────────▶ that one          (one that failed is removed first)
//!   it is being made ────────▶ wait for it
//!   else ────────────────────▶ prepare, make
//! ```
//!
//! Making it runs to its end even if the first caller goes away: others may be waiting for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forkd_image::Progress;
use forkd_image::digest::Digest;
use forkd_store::Tag;
use tokio::sync::watch;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::library::{Library, Prepared, Recipe};
use crate::limits::owner::Owner;
use crate::project::Project;
use crate::snapshot::make::{Step, Steps};
use crate::snapshot::{SnapshotHandle, SnapshotStatus};

/// What became of a snapshot, for all who wait for it.
type Outcome = Result<SnapshotHandle, Arc<EngineError>>;
type Waiting = HashMap<Awaited, watch::Receiver<Option<Outcome>>>;

/// What those who wait for the same snapshot have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Awaited {
    Tag(Tag),
    /// The key of a build.
    Key(Digest),
}

/// Snapshots that are being made once.
#[derive(Debug, Default)]
pub(crate) struct BeingMade(Mutex<Waiting>);

impl BeingMade {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // A panic while holding the lock leaves the map in order.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Makes the snapshot that a recipe describes. It is cancelled if all callers disconnect.
    pub async fn make_of(
        &self,
        library: &Library,
        recipe: Recipe,
        owner: &Owner,
        steps: &Steps,
    ) -> Result<SnapshotHandle, EngineError> {
        let preparing = Preparing { steps: steps.clone(), ends_with_caller: true };
        self.prepare_and_make(library, recipe, owner, preparing).await
    }

    /// The snapshot of the recipe's tag: the one that is there, or is being made, or else the one that the recipe describes.
    pub async fn make_once(
        &self,
        library: &Library,
        recipe: Recipe,
        owner: &Owner,
        steps: &Steps,
    ) -> Result<SnapshotHandle, Arc<EngineError>> {
        let preparing = Preparing { steps: steps.clone(), ends_with_caller: false };
        let (engine, library, owner) = (self.clone(), library.clone(), owner.clone());
        let (tag, project) = (recipe.tag.clone(), owner.project.clone());
        let make = async move { engine.prepare_and_make(&library, recipe, &owner, preparing).await };
        self.once(&tag, &project, make).await
    }

    /// The same, however it is made. A tag of another project's is taken.
    pub async fn once(
        &self,
        tag: &Tag,
        project: &Project,
        make: impl Future<Output = Result<SnapshotHandle, EngineError>> + Send + 'static,
    ) -> Result<SnapshotHandle, Arc<EngineError>> {
        if let Some(found) = self.shared.snapshots.get(tag) {
            let view = found.view();
            if view.record.project != *project {
                return Err(EngineError::NameTaken(tag.clone()).into());
            }
            if view.status != SnapshotStatus::Failed {
                return Ok(found);
            }
            match self.remove_snapshot(tag.as_str(), false).await {
                // Another one who asks may have removed it.
                Ok(_) | Err(EngineError::NoSnapshot(_) | EngineError::Removed) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let find = || self.shared.snapshots.get(tag);
        self.once_for(Awaited::Tag(tag.clone()), find, make).await
    }

    /// Waits for a running build of it, or makes it. `find` finds an existing one.
    pub(crate) async fn once_for(
        &self,
        what: Awaited,
        find: impl FnOnce() -> Option<SnapshotHandle>,
        make: impl Future<Output = Result<SnapshotHandle, EngineError>> + Send + 'static,
    ) -> Outcome {
        let mut outcome = self.begin(what, find, make);
        match outcome.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(outcome)) => outcome.clone(),
            // The task that makes it is gone, and the runtime with it.
            Ok(None) | Err(_) => Err(EngineError::Stopping.into()),
        }
    }

    /// Begins to make it, unless another caller has begun, or has finished since this one looked: who makes one gives it its name before
    /// leaving the table.
    fn begin(
        &self,
        what: Awaited,
        find: impl FnOnce() -> Option<SnapshotHandle>,
        make: impl Future<Output = Result<SnapshotHandle, EngineError>> + Send + 'static,
    ) -> watch::Receiver<Option<Outcome>> {
        let mut being_made = self.shared.being_made.lock();
        if let Some(outcome) = being_made.get(&what) {
            return outcome.clone();
        }
        if let Some(found) = find() {
            return watch::channel(Some(Ok(found))).1;
        }
        let (told, outcome) = watch::channel(None);
        being_made.insert(what.clone(), outcome.clone());
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            let made = make.await;
            shared.being_made.lock().remove(&what);
            told.send_replace(Some(made.map_err(Arc::new)));
        });
        outcome
    }

    async fn prepare_and_make(
        &self,
        library: &Library,
        recipe: Recipe,
        owner: &Owner,
        preparing: Preparing,
    ) -> Result<SnapshotHandle, EngineError> {
        let steps = preparing.steps.clone();
        let new = preparing.prepare(library, recipe).await?.new;
        self.make_for(new, Some(owner), &steps).await
    }
}

/// What the library says of its work, from a thread that may wait.
pub(super) struct Preparing {
    pub steps: Steps,
    /// Whether it is cancelled when all callers have gone.
    pub ends_with_caller: bool,
}

impl Preparing {
    pub async fn prepare(self, library: &Library, recipe: Recipe) -> Result<Prepared, EngineError> {
        let library = library.clone();
        let prepared = tokio::task::spawn_blocking(move || library.prepare(recipe, &self)).await;
        Ok(prepared.map_err(|panic| EngineError::io("prepare a snapshot")(panic.into()))??)
    }
}

impl Progress for Preparing {
    fn step(&self, what: &str) {
        let _ = self.steps.blocking_send(Step::Begins(what.to_owned()));
    }

    fn detail(&self, what: &str) {
        let _ = self.steps.blocking_send(Step::Printed(format!("{what}\n")));
    }

    fn warn(&self, what: &str) {
        self.detail(what);
    }

    fn is_cancelled(&self) -> bool {
        self.ends_with_caller && self.steps.is_closed()
    }
}
