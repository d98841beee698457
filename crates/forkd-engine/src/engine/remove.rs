//! Remove: a snapshot goes, if nobody needs it.

use forkd_store::Tag;

use super::{Engine, EngineError};

impl Engine {
    /// Removes a snapshot. Those that are changes of it go first with `cascade`, and are named otherwise. Sandboxes that were
    /// forked from it go on: their memory is their own.
    pub async fn remove_snapshot(&self, tag: &str, cascade: bool) -> Result<Vec<Tag>, EngineError> {
        let tag = self.snapshot(tag)?.tag();
        let mut doomed = self.with_descendants(&tag);
        if doomed.len() > 1 && !cascade {
            let dependents = doomed.iter().skip(1).map(ToString::to_string).collect();
            return Err(EngineError::HasDependents { tag, dependents });
        }
        // The youngest first: a parent is needed until its last child is gone.
        doomed.reverse();
        for tag in &doomed {
            match self.snapshot(tag.as_str()) {
                Ok(snapshot) => snapshot.remove().await?,
                // Somebody else has removed it meanwhile.
                Err(_) => continue,
            }
        }
        Ok(doomed)
    }

    /// A snapshot and all that are changes of it, parents before children.
    fn with_descendants(&self, tag: &Tag) -> Vec<Tag> {
        let all = self.snapshots();
        let mut family = vec![tag.clone()];
        let mut next = 0;
        while let Some(parent) = family.get(next).cloned() {
            let children = all.iter().filter(|view| view.record.parent.as_ref() == Some(&parent));
            family.extend(children.map(|view| view.record.tag.clone()));
            next += 1;
        }
        family
    }
}
