//! What the names of built templates mean: the snapshot of the newest build that came up.
//!
//! ```text
//!   build ──▶ begin: NAME-1a2b3c4d is written down ──▶ made, on disk ──▶ swap: NAME means it ──▶ what it meant before is removed
//! ```
//!
//! So a name means one whole build or the next, whatever fails on the way and whenever the daemon is killed. What was begun and
//! never used, and what others still depend on, is written down, and removed when that can be done.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forkd_store::Tag;
use serde::{Deserialize, Serialize};

use forkd_daemon::operations::{Kept, KeptError};

const FILE: &str = "e2b-templates.json";

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    templates: BTreeMap<Tag, Builds>,
}

/// The snapshots of a template's builds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Builds {
    current: Option<Tag>,
    /// Those that are being made, and those that are to be removed.
    others: BTreeSet<Tag>,
}

#[derive(Debug)]
pub(crate) struct Names {
    kept: Kept<Content>,
    /// What is being made now, and not to be removed.
    making: Mutex<BTreeSet<Tag>>,
}

/// A build. When it is dropped, its snapshot is to be removed, unless a name means it by then.
#[derive(Debug)]
pub(super) struct Making<'a> {
    names: &'a Names,
    template: Tag,
    snapshot: Tag,
}

impl Names {
    pub fn open(home: &Path) -> Result<Names, KeptError> {
        Ok(Names { kept: Kept::open(home.join(FILE))?, making: Mutex::default() })
    }

    /// The snapshot that a template's name means.
    pub fn current(&self, template: &Tag) -> Option<Tag> {
        self.kept.look().templates.get(template)?.current.clone()
    }

    /// The template whose newest build a snapshot is.
    pub fn template_of(&self, snapshot: &Tag) -> Option<Tag> {
        let content = self.kept.look();
        let mut all = content.templates.iter();
        all.find(|(_, builds)| builds.current.as_ref() == Some(snapshot))
            .map(|(template, _)| template.clone())
    }

    /// Whether a snapshot is of a build that no name means.
    pub fn is_other(&self, snapshot: &Tag) -> bool {
        self.kept.look().templates.values().any(|builds| builds.others.contains(snapshot))
    }

    /// A build begins. Blocks, as everything that changes something here does.
    pub fn begin(&self, template: &Tag, snapshot: &Tag) -> Result<Making<'_>, KeptError> {
        // First, so that nobody takes it for what is to be removed.
        self.making().insert(snapshot.clone());
        let making = Making { names: self, template: template.clone(), snapshot: snapshot.clone() };
        self.kept.change(|content| {
            content.templates.entry(template.clone()).or_default().others.insert(snapshot.clone());
        })?;
        Ok(making)
    }

    /// What of a template is to be removed.
    pub fn to_remove(&self, template: &Tag) -> Vec<Tag> {
        let others = self.kept.look().templates.get(template).map(|builds| builds.others.clone());
        others.unwrap_or_default().difference(&self.making()).cloned().collect()
    }

    /// A snapshot is gone.
    pub fn removed(&self, snapshot: &Tag) -> Result<(), KeptError> {
        let is_known =
            |builds: &Builds| builds.others.contains(snapshot) || builds.current.as_ref() == Some(snapshot);
        if !self.kept.look().templates.values().any(is_known) {
            return Ok(());
        }
        self.kept.change(|content| {
            for builds in content.templates.values_mut() {
                builds.others.remove(snapshot);
                builds.current.take_if(|current| current == snapshot);
            }
            content.templates.retain(|_, builds| *builds != Builds::default());
        })
    }

    /// Those that have builds.
    pub fn templates(&self) -> Vec<Tag> {
        self.kept.look().templates.keys().cloned().collect()
    }

    fn making(&self) -> MutexGuard<'_, BTreeSet<Tag>> {
        self.making.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Making<'_> {
    /// The name means this build from now on. What it meant before, and a snapshot of the name itself, are to be removed.
    pub fn swap(self, named: Option<Tag>) -> Result<(), KeptError> {
        let Making { names, template, snapshot } = &self;
        names.kept.change(|content| {
            let builds = content.templates.entry(template.clone()).or_default();
            builds.others.remove(snapshot);
            builds.others.extend(builds.current.replace(snapshot.clone()));
            builds.others.extend(named);
        })
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.names.making().remove(&self.snapshot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(name: &str) -> Tag {
        name.parse().unwrap()
    }

    #[test]
    fn a_name_means_one_build_or_the_next() {
        let home = tempfile::tempdir().unwrap();
        let names = Names::open(home.path()).unwrap();
        let (web, one, two) = (tag("web"), tag("web-1"), tag("web-2"));
        let making = names.begin(&web, &one).unwrap();
        assert_eq!((names.current(&web), names.is_other(&one)), (None, true));
        assert_eq!(names.to_remove(&web), [], "it is being made");
        making.swap(Some(web.clone())).unwrap();
        assert_eq!((names.current(&web), names.template_of(&one)), (Some(one.clone()), Some(web.clone())));
        assert_eq!(names.to_remove(&web), vec![web.clone()]);
        names.removed(&web).unwrap();
        // One that fails leaves what was.
        drop(names.begin(&web, &two).unwrap());
        assert_eq!((names.current(&web), names.to_remove(&web)), (Some(one.clone()), vec![two.clone()]));
        names.begin(&web, &two).unwrap().swap(None).unwrap();
        assert_eq!((names.current(&web), names.to_remove(&web)), (Some(two.clone()), vec![one.clone()]));
        // A daemon that starts again knows the same, and that nothing is being made.
        let making = names.begin(&web, &tag("web-3")).unwrap();
        let again = Names::open(home.path()).unwrap();
        assert_eq!(
            (again.current(&web), again.to_remove(&web)),
            (Some(two.clone()), vec![one.clone(), tag("web-3")])
        );
        drop(making);
        for gone in [&one, &two, &tag("web-3"), &tag("unknown")] {
            again.removed(gone).unwrap();
        }
        assert!(again.templates().is_empty() && again.current(&web).is_none());
    }
}
