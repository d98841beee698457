//! Remove: deletes a snapshot that nothing depends on.

use std::collections::BTreeSet;

use forkd_store::Tag;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::project::Project;
use crate::snapshot::SnapshotHandle;

/// What goes with a snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Removal {
    /// Those that are based on it. Without this, it is refused if there are any.
    pub cascade: bool,
    /// Its other names, and theirs. Without this, it is refused if there are any.
    pub all_names: bool,
}

impl Engine {
    /// Removes a snapshot with its other names. Those that are changes of it go first with `cascade`, and are named otherwise. Sandboxes that were
    /// forked from it go on: their memory is their own.
    pub async fn remove_snapshot(&self, tag: &str, cascade: bool) -> Result<Vec<Tag>, EngineError> {
        self.remove_snapshot_of(None, tag, Removal { cascade, all_names: true }).await
    }

    /// The same for a caller who may remove one project's snapshots only. Snapshots that other projects made of it keep it, also with `cascade`.
    pub async fn remove_snapshot_of(
        &self,
        project: Option<&Project>,
        tag: &str,
        removal: Removal,
    ) -> Result<Vec<Tag>, EngineError> {
        let is_own =
            |handle: &SnapshotHandle| project.is_none_or(|project| handle.view().record.project == *project);
        // By its tag only: another name of it is not what is removed.
        let unknown = || EngineError::NoSnapshot(tag.chars().take(80).collect());
        let exact: Tag = tag.parse().map_err(|_| unknown())?;
        let snapshot = self.shared.snapshots.get(&exact).ok_or_else(unknown)?;
        if !is_own(&snapshot) {
            return Err(EngineError::NoSnapshot(tag.into()));
        }
        let mut doomed = self.with_descendants(snapshot);
        let (own, others): (Vec<_>, Vec<_>) = doomed.iter().skip(1).partition(|handle| is_own(handle));
        if !others.is_empty() || (!own.is_empty() && !removal.cascade) {
            let mut dependents: Vec<_> = own.iter().map(|handle| handle.tag().to_string()).collect();
            if !others.is_empty() {
                dependents.push("snapshots of other projects".into());
            }
            return Err(EngineError::HasDependents { tag: doomed.swap_remove(0).tag(), dependents });
        }
        for snapshot in &doomed {
            let names = self.names_of(&snapshot.tag());
            if !removal.all_names && !names.is_empty() {
                return Err(EngineError::HasNames { tag: snapshot.tag(), names });
            }
        }
        // The youngest first: a parent is needed until its last child is gone.
        doomed.reverse();
        for snapshot in &doomed {
            match snapshot.remove().await {
                // Another caller has removed it meanwhile.
                Ok(()) | Err(EngineError::Removed) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(doomed.iter().map(SnapshotHandle::tag).collect())
    }

    /// A snapshot and all that are changes of it, parents before children.
    fn with_descendants(&self, snapshot: SnapshotHandle) -> Vec<SnapshotHandle> {
        let all: Vec<_> = self
            .shared
            .snapshots
            .all()
            .into_iter()
            .map(|handle| (handle.view().record.parent, handle))
            .collect();
        // A record may say anything, also that it is its own parent.
        let mut known = BTreeSet::from([snapshot.tag()]);
        let mut family = vec![snapshot];
        let mut next = 0;
        while let Some(parent) = family.get(next).map(SnapshotHandle::tag) {
            let children =
                all.iter().filter(|(of, _)| of.as_ref() == Some(&parent)).map(|(_, handle)| handle);
            family.extend(children.filter(|child| known.insert(child.tag())).cloned());
            next += 1;
        }
        family
    }
}
