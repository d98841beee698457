//! Watching a directory, and those below it, with inotify.
//!
//! inotify watches single directories by number. A recursive watch is a table of them that follows what happens: a new
//! directory is added, with what is already in it reported as created; one that is moved away is taken out with everything
//! below it. A file made in a new directory in the moment it is added may be reported twice, never not at all.

mod kernel;
mod tree;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forkd_envd::connect::{Code, ConnectError};
use forkd_envd::filesystem::{Event, EventType};
use tokio::io::unix::AsyncFd;

use super::entry;
use crate::connect::{or_missing, system_error};
use crate::envd::paths;
use crate::runtime::blocking;
use crate::users::Users;

use kernel::{Change, Inotify};
use tree::Tree;

#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub recursive: bool,
    pub include_entry: bool,
    pub allow_network_mounts: bool,
}

#[derive(Debug)]
pub struct Watch {
    inotify: Arc<AsyncFd<Inotify>>,
    tree: Tree,
    root: PathBuf,
    options: Options,
}

impl Watch {
    pub async fn open(root: PathBuf, options: Options) -> Result<Self, ConnectError> {
        let subject = root.display().to_string();
        let inotify = kernel::open().map_err(|error| system_error("inotify", &error))?;
        let inotify = Arc::new(inotify);
        let (handle, top) = (Arc::clone(&inotify), root.clone());
        let tree = blocking(move || {
            check(&top, options)?;
            let mut tree = Tree::default();
            tree.add(handle.get_ref(), &top, Path::new(""), options.recursive)?;
            Ok(tree)
        });
        let tree = tree.await.map_err(|error| system_error(&subject, &error))??;
        Ok(Self { inotify, tree, root, options })
    }

    /// Waits for events. An error is the end of a stream; a watcher that is polled may go on after it.
    pub async fn next(&mut self) -> Result<Vec<Event>, ConnectError> {
        loop {
            let changes = kernel::read(&self.inotify).await;
            let changes = changes.map_err(|error| system_error("inotify", &error))?;
            let events = self.events(changes).await?;
            if !events.is_empty() {
                return Ok(events);
            }
        }
    }

    async fn events(&mut self, changes: Vec<Change>) -> Result<Vec<Event>, ConnectError> {
        let (inotify, root, options) = (Arc::clone(&self.inotify), self.root.clone(), self.options);
        let mut tree = std::mem::take(&mut self.tree);
        // Directories may have to be looked at, so this is done where it may block.
        let done = blocking(move || {
            let mut events = Vec::new();
            let result = changes.iter().try_for_each(|change| {
                tree.follow(inotify.get_ref(), &root, options.recursive, change, &mut |path, kind| {
                    events.push(event(path, kind));
                })
            });
            if options.include_entry {
                add_entries(&root, &mut events);
            }
            (tree, result.map(|()| events))
        });
        let (tree, events) = done.await.map_err(|error| system_error("watching", &error))?;
        self.tree = tree;
        events
    }
}

fn event(path: &Path, kind: EventType) -> Event {
    let name = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    Event { name: paths::text(name), kind, entry: None }
}

fn add_entries(root: &Path, events: &mut [Event]) {
    let users = Users::read();
    for event in events {
        event.entry = entry::info(&root.join(&event.name), &users).ok();
    }
}

/// inotify sees what this kernel does. On a filesystem that others write to, it sees half of it.
fn check(root: &Path, options: Options) -> Result<(), ConnectError> {
    let shown = root.display();
    let wrong =
        |error: std::io::Error| or_missing(&format!("path {shown} not found"), system_error("stat", &error));
    if !root.metadata().map_err(wrong)?.is_dir() {
        return Err(ConnectError::invalid(format!("path {shown} not a directory")));
    }
    let kind = rustix::fs::statfs(root).map_err(|error| wrong(error.into()))?.f_type;
    if !options.allow_network_mounts && kernel::is_shared(kind) {
        let text =
            format!("{} is on a network filesystem, whose changes are seen only in part", root.display());
        return Err(ConnectError::new(Code::FailedPrecondition, text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    const OPTIONS: Options = Options { recursive: true, include_entry: false, allow_network_mounts: true };

    async fn collect(watch: &mut Watch) -> Vec<(String, EventType)> {
        let mut all = Vec::new();
        while let Ok(events) = tokio::time::timeout(Duration::from_millis(200), watch.next()).await {
            all.extend(events.unwrap().into_iter().map(|event| (event.name, event.kind)));
        }
        all
    }

    #[tokio::test]
    async fn a_file_from_its_birth_to_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_owned();
        let mut watch = Watch::open(root.clone(), Options { recursive: false, ..OPTIONS }).await.unwrap();
        fs::create_dir(root.join("sub")).unwrap();
        fs::write(root.join("sub/unseen"), "").unwrap();
        fs::write(root.join("a"), "text").unwrap();
        fs::rename(root.join("a"), root.join("b")).unwrap();
        fs::remove_file(root.join("b")).unwrap();
        let seen = collect(&mut watch).await;
        let expected = [
            ("sub", EventType::Create),
            ("a", EventType::Create),
            ("a", EventType::Write),
            ("a", EventType::Rename),
            ("b", EventType::Create),
            ("b", EventType::Remove),
        ];
        assert_eq!(seen, expected.map(|(name, kind)| (name.to_owned(), kind)));
    }

    #[tokio::test]
    async fn new_and_moved_directories_are_followed() {
        let directory = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let root = directory.path().to_owned();
        let mut watch = Watch::open(root.clone(), OPTIONS).await.unwrap();
        fs::create_dir_all(root.join("x/y")).unwrap();
        fs::write(root.join("x/y/early"), "").unwrap();
        let names =
            |seen: Vec<(String, EventType)>| seen.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let seen = names(collect(&mut watch).await);
        assert!(seen.contains(&"x/y".to_owned()) && seen.contains(&"x/y/early".to_owned()), "{seen:?}");
        fs::rename(root.join("x/y"), root.join("z")).unwrap();
        collect(&mut watch).await;
        fs::write(root.join("z/late"), "").unwrap();
        assert!(names(collect(&mut watch).await).contains(&"z/late".to_owned()));
        fs::rename(root.join("z"), outside.path().join("z")).unwrap();
        collect(&mut watch).await;
        fs::write(outside.path().join("z/unseen"), "").unwrap();
        assert_eq!(collect(&mut watch).await, []);
    }

    #[tokio::test]
    async fn entries_come_along_and_missing_directories_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let mut watch = Watch::open(directory.path().to_owned(), Options { include_entry: true, ..OPTIONS })
            .await
            .unwrap();
        fs::write(directory.path().join("file"), "12345").unwrap();
        let events = watch.next().await.unwrap();
        assert_eq!(events[0].entry.as_ref().unwrap().name, "file");
        let missing = Watch::open(directory.path().join("none"), OPTIONS).await;
        assert_eq!(missing.unwrap_err().code, Code::NotFound);
        let file = Watch::open(directory.path().join("file"), OPTIONS).await;
        assert_eq!(file.unwrap_err().code, Code::InvalidArgument);
    }
}
