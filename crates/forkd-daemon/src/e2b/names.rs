//! What the names of built templates mean: the snapshot of the newest build that came up.
//!
//! ```text
//!   build ──▶ begin: NAME-1a2b3c4d is written down ──▶ made, on disk ──▶ swap: NAME means it ──▶ what it meant before is removed
//! ```
//!
//! So a name means one whole build or the next, whatever fails on the way and whenever the daemon is killed. What was begun and
//! never used, and what others still depend on, is written down, and removed when that can be done.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forkd_store::Tag;
use serde::{Deserialize, Serialize};

use crate::whole_file;

const FILE: &str = "e2b-templates.json";
const VERSION: u32 = 1;
const MAX_BYTES: u64 = 8 << 20;

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TemplatesError {
    #[error("cannot {verb} {}", path.display())]
    Io { verb: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is damaged; repair it, or remove it and build templates anew", path.display())]
    Damaged { path: PathBuf, source: serde_json::Error },
    #[error("{} has version {found}, and this forkd knows version {VERSION}", path.display())]
    Version { path: PathBuf, found: u32 },
    #[error("{} would have more than {MAX_BYTES} bytes", path.display())]
    TooLarge { path: PathBuf },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
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
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    content: Content,
    /// What is being made now, and not to be removed.
    making: BTreeSet<Tag>,
}

/// A build. When it is dropped, its snapshot is to be removed, unless a name means it by then.
#[derive(Debug)]
pub(super) struct Making<'a> {
    names: &'a Names,
    template: Tag,
    snapshot: Tag,
}

impl Names {
    pub fn open(home: &Path) -> Result<Names, TemplatesError> {
        let path = home.join(FILE);
        let content = match whole_file::read(&path, MAX_BYTES) {
            Err(source) => return Err(TemplatesError::Io { verb: "read", path, source }),
            Ok(None) => Content { version: VERSION, templates: BTreeMap::new() },
            Ok(Some(text)) if text.len() as u64 > MAX_BYTES => return Err(TemplatesError::TooLarge { path }),
            Ok(Some(text)) => match serde_json::from_slice::<Content>(&text) {
                Err(source) => return Err(TemplatesError::Damaged { path, source }),
                Ok(Content { version, .. }) if version != VERSION => {
                    return Err(TemplatesError::Version { path, found: version });
                }
                Ok(content) => content,
            },
        };
        Ok(Names { path, state: Mutex::new(State { content, making: BTreeSet::new() }) })
    }

    /// The snapshot that a template's name means.
    pub fn current(&self, template: &Tag) -> Option<Tag> {
        self.lock().content.templates.get(template)?.current.clone()
    }

    /// The template whose newest build a snapshot is.
    pub fn template_of(&self, snapshot: &Tag) -> Option<Tag> {
        let state = self.lock();
        let mut all = state.content.templates.iter();
        all.find(|(_, builds)| builds.current.as_ref() == Some(snapshot))
            .map(|(template, _)| template.clone())
    }

    /// Whether a snapshot is of a build that no name means.
    pub fn is_other(&self, snapshot: &Tag) -> bool {
        self.lock().content.templates.values().any(|builds| builds.others.contains(snapshot))
    }

    /// A build begins. Blocks, as everything that changes something here does.
    pub fn begin(&self, template: &Tag, snapshot: &Tag) -> Result<Making<'_>, TemplatesError> {
        self.change(|state| {
            state.content.templates.entry(template.clone()).or_default().others.insert(snapshot.clone());
            state.making.insert(snapshot.clone());
        })?;
        Ok(Making { names: self, template: template.clone(), snapshot: snapshot.clone() })
    }

    /// What of a template is to be removed.
    pub fn to_remove(&self, template: &Tag) -> Vec<Tag> {
        let state = self.lock();
        let others = state.content.templates.get(template).map(|builds| builds.others.clone());
        others.unwrap_or_default().difference(&state.making).cloned().collect()
    }

    /// A snapshot is gone.
    pub fn removed(&self, snapshot: &Tag) -> Result<(), TemplatesError> {
        let is_known =
            |builds: &Builds| builds.others.contains(snapshot) || builds.current.as_ref() == Some(snapshot);
        if !self.lock().content.templates.values().any(is_known) {
            return Ok(());
        }
        self.change(|state| {
            for builds in state.content.templates.values_mut() {
                builds.others.remove(snapshot);
                builds.current.take_if(|current| current == snapshot);
            }
            state.content.templates.retain(|_, builds| *builds != Builds::default());
        })
    }

    /// Those that have builds.
    pub fn templates(&self) -> Vec<Tag> {
        self.lock().content.templates.keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing has changed when the file could not be written.
    fn change(&self, change: impl FnOnce(&mut State)) -> Result<(), TemplatesError> {
        let mut state = self.lock();
        let mut changed = State { content: state.content.clone(), making: state.making.clone() };
        change(&mut changed);
        let failed = |source| TemplatesError::Io { verb: "write", path: self.path.clone(), source };
        let text = serde_json::to_vec_pretty(&changed.content).map_err(|error| failed(error.into()))?;
        if text.len() as u64 > MAX_BYTES {
            return Err(TemplatesError::TooLarge { path: self.path.clone() });
        }
        whole_file::replace(&self.path, &text).map_err(failed)?;
        *state = changed;
        Ok(())
    }
}

impl Making<'_> {
    /// The name means this build from now on. What it meant before, and a snapshot of the name itself, are to be removed.
    pub fn swap(self, named: Option<Tag>) -> Result<(), TemplatesError> {
        let Making { names, template, snapshot } = &self;
        names.change(|state| {
            let builds = state.content.templates.entry(template.clone()).or_default();
            builds.others.remove(snapshot);
            builds.others.extend(builds.current.replace(snapshot.clone()));
            builds.others.extend(named);
        })
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.names.lock().making.remove(&self.snapshot);
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

    #[test]
    fn what_cannot_be_read_or_written_changes_nothing() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(FILE);
        for text in ["{", r#"{"version":2,"templates":{}}"#, r#"{"version":1,"templates":{"A B":{}}}"#] {
            std::fs::write(&path, text).unwrap();
            assert!(Names::open(home.path()).is_err(), "{text}");
        }
        std::fs::remove_file(&path).unwrap();
        let names = Names::open(home.path()).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(names.begin(&tag("web"), &tag("web-1")).is_err());
        assert!(names.templates().is_empty());
    }
}
