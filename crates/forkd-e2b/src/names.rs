//! What the names of built templates mean: the snapshot of the newest build that came up.
//!
//! ```text
//!   build ──▶ begin: NAME-1a2b3c4d is written down ──▶ made, on disk ──▶ swap: NAME means it ──▶ what it meant before is removed
//!                                                  └──▶ there is one of the same contents ──▶ swap: NAME means that one
//! ```
//!
//! Many names may mean one snapshot. It is removed with the last of them.
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
    /// Held while what no name means is removed, and while a name gets a snapshot that is there: else it could be one that goes.
    turn: tokio::sync::Mutex<()>,
}

impl Content {
    /// How many names mean a snapshot.
    fn means(&self, snapshot: &Tag) -> usize {
        self.templates.values().filter(|builds| builds.current.as_ref() == Some(snapshot)).count()
    }

    fn is_meant(&self, snapshot: &Tag) -> bool {
        self.means(snapshot) > 0
    }

    /// Changes what a name means. What no name means then is to be removed, and so is `more`.
    fn point(&mut self, template: &Tag, snapshot: Option<&Tag>, more: &[Tag]) {
        let builds = self.templates.entry(template.clone()).or_default();
        let before = std::mem::replace(&mut builds.current, snapshot.cloned());
        if let Some(snapshot) = snapshot {
            builds.others.remove(snapshot);
        }
        let unused: Vec<Tag> = before.into_iter().chain(more.iter().cloned()).collect();
        let unused = unused.into_iter().filter(|tag| !self.is_meant(tag)).collect::<Vec<_>>();
        self.templates.entry(template.clone()).or_default().others.extend(unused);
        self.templates.retain(|_, builds| *builds != Builds::default());
    }
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
        let kept = Kept::open(home.join(FILE))?;
        Ok(Names { kept, making: Mutex::default(), turn: tokio::sync::Mutex::default() })
    }

    /// The snapshot that a template's name means.
    pub fn current(&self, template: &Tag) -> Option<Tag> {
        self.kept.look().templates.get(template)?.current.clone()
    }

    /// The names of built templates, with the snapshots that they mean.
    pub fn all(&self) -> BTreeMap<Tag, Tag> {
        let content = self.kept.look();
        let meant = |(template, builds): (&Tag, &Builds)| Some((template.clone(), builds.current.clone()?));
        content.templates.iter().filter_map(meant).collect()
    }

    /// Whether a snapshot is of a build that no name means.
    pub fn is_other(&self, snapshot: &Tag) -> bool {
        let content = self.kept.look();
        !content.is_meant(snapshot)
            && content.templates.values().any(|builds| builds.others.contains(snapshot))
    }

    /// Whether a name other than this one means what this one does.
    pub fn is_shared(&self, template: &Tag) -> bool {
        let content = self.kept.look();
        let current = content.templates.get(template).and_then(|builds| builds.current.as_ref());
        current.is_some_and(|current| content.means(current) > 1)
    }

    /// The turn to remove what no name means, or to give a name to what is there.
    pub async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
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
        let content = self.kept.look();
        let others = content.templates.get(template).map(|builds| builds.others.clone()).unwrap_or_default();
        let making = self.making();
        others.into_iter().filter(|tag| !making.contains(tag) && !content.is_meant(tag)).collect()
    }

    /// A name means a snapshot from now on. What it meant before is to be removed, unless another name means it.
    pub fn point(&self, template: &Tag, snapshot: &Tag) -> Result<(), KeptError> {
        self.kept.change(|content| content.point(template, Some(snapshot), &[]))
    }

    /// A name means nothing from now on.
    pub fn release(&self, template: &Tag) -> Result<(), KeptError> {
        self.kept.change(|content| content.point(template, None, &[]))
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
    /// The name means this snapshot from now on: the one that was made, or another one of the same contents. What it meant before, and
    /// a snapshot of the name itself, are to be removed.
    pub fn swap(&self, built: &Tag, named: Option<Tag>) -> Result<(), KeptError> {
        let Making { names, template, snapshot } = self;
        names.kept.change(|content| {
            // If it was not made, there is nothing to remove.
            content.templates.entry(template.clone()).or_default().others.remove(snapshot);
            content.point(template, Some(built), named.as_slice());
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
        making.swap(&one, Some(web.clone())).unwrap();
        drop(making);
        assert_eq!((names.current(&web), names.all()[&web].clone()), (Some(one.clone()), one.clone()));
        assert_eq!(names.to_remove(&web), vec![web.clone()]);
        names.removed(&web).unwrap();
        // One that fails leaves what was.
        drop(names.begin(&web, &two).unwrap());
        assert_eq!((names.current(&web), names.to_remove(&web)), (Some(one.clone()), vec![two.clone()]));
        names.begin(&web, &two).unwrap().swap(&two, None).unwrap();
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

    #[test]
    fn what_several_names_mean_goes_with_the_last() {
        let home = tempfile::tempdir().unwrap();
        let names = Names::open(home.path()).unwrap();
        let (web, app, v1, one, two) = (tag("web"), tag("app"), tag("web.v1"), tag("web-1"), tag("app-2"));
        names.begin(&web, &one).unwrap().swap(&one, None).unwrap();
        // There is one of the same contents, so none was made.
        names.begin(&app, &two).unwrap().swap(&one, None).unwrap();
        names.point(&v1, &one).unwrap();
        assert!(names.is_shared(&web) && !names.is_other(&two) && names.to_remove(&app).is_empty());
        names.release(&web).unwrap();
        assert_eq!((names.current(&web), names.to_remove(&web)), (None, vec![]));
        assert_eq!(names.all().into_keys().collect::<Vec<_>>(), [app.clone(), v1.clone()]);
        // A name that moves leaves the others.
        names.begin(&app, &two).unwrap().swap(&two, None).unwrap();
        assert_eq!((names.current(&v1), names.to_remove(&app)), (Some(one.clone()), vec![]));
        assert!(!names.is_shared(&v1));
        names.release(&v1).unwrap();
        assert_eq!((names.to_remove(&v1), names.is_other(&one)), (vec![one.clone()], true));
        // It gets a name again before it is removed.
        names.point(&web, &one).unwrap();
        assert_eq!((names.to_remove(&v1), names.is_other(&one)), (vec![], false));
    }
}
