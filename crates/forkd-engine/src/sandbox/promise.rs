//! Promise: the requester of sandboxes is about to learn their ids. One empty file records that for all sandboxes of a request.
//!
//! ```text
//!   every record names the group ─▶ the file is there: all are promised ─▶ the last one is gone: so is the file
//! ```
//!
//! A daemon that starts again writes it into each record instead, before it removes the file (`recovery/recover.rs`).

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::blocking::in_place;
use crate::ids::SandboxId;
use crate::paths::{PathError, Paths};

/// Shared by the sandboxes that it is about. Dropped, the file stays, as the sandboxes do when the daemon ends.
#[derive(Debug)]
pub(crate) struct Promise {
    path: PathBuf,
}

impl Promise {
    pub fn make(paths: &Paths, group: &SandboxId) -> Result<Arc<Promise>, PathError> {
        let path = paths.promises().join(group.as_str());
        in_place(|| File::create_new(&path)).map_err(PathError::at("create", &path))?;
        Ok(Arc::new(Promise { path }))
    }

    /// One that it was about is gone, with its record. The last one takes the file along.
    pub fn leave(self: Arc<Self>) {
        if let Some(last) = Arc::into_inner(self) {
            // The next daemon removes what cannot be removed now.
            let _ = in_place(|| fs::remove_file(&last.path));
        }
    }
}

/// The groups that are promised.
pub(crate) fn promised(paths: &Paths) -> io::Result<BTreeSet<SandboxId>> {
    let names = fs::read_dir(paths.promises())?.map(|entry| Ok(entry?.file_name()));
    let names = names.collect::<io::Result<Vec<_>>>()?;
    // No group has any other name.
    Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
}

/// Removes the promises of groups, when each record says it itself.
pub(crate) fn forget(paths: &Paths, groups: &BTreeSet<SandboxId>) {
    for group in groups {
        // It does no harm where it stays: no other group has its name.
        let _ = fs::remove_file(paths.promises().join(group.as_str()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_takes_the_promise_along() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path()).unwrap();
        let group = SandboxId::random().unwrap();
        let promise = Promise::make(&paths, &group).unwrap();
        assert_eq!(promised(&paths).unwrap(), BTreeSet::from([group.clone()]));
        assert!(Promise::make(&paths, &group).is_err(), "it is another's");
        let other = Arc::clone(&promise);
        promise.leave();
        assert!(promised(&paths).unwrap().contains(&group));
        other.leave();
        assert_eq!(promised(&paths).unwrap(), BTreeSet::new());
    }

    #[test]
    fn a_daemon_that_ends_breaks_no_promise() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path()).unwrap();
        let group = SandboxId::random().unwrap();
        drop(Promise::make(&paths, &group).unwrap());
        let groups = promised(&paths).unwrap();
        assert_eq!(groups, BTreeSet::from([group]));
        forget(&paths, &groups);
        assert_eq!(promised(&paths).unwrap(), BTreeSet::new());
    }
}
