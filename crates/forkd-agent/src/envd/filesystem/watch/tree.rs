//! The watched directories: which number is which path.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use forkd_envd::connect::{Code, ConnectError};
use forkd_envd::filesystem::EventType;
use rustix::fs::inotify::ReadFlags;

use super::kernel::{self, Change, Inotify};
use crate::connect::system_error;

/// Kernels allow a user at least this many; a sandbox may have several watchers.
const MAX_DIRECTORIES: usize = 8192;

/// Paths are relative to the root, which is the empty one.
#[derive(Debug, Default)]
pub struct Tree {
    directories: HashMap<i32, PathBuf>,
}

impl Tree {
    /// Watches a directory and, if wanted, those below it. Returns what is in them, by relative path: nothing reported it.
    pub fn add(
        &mut self,
        inotify: &Inotify,
        root: &Path,
        directory: &Path,
        recursive: bool,
    ) -> Result<Vec<PathBuf>, ConnectError> {
        let mut found = Vec::new();
        let mut rest = vec![directory.to_owned()];
        while let Some(directory) = rest.pop() {
            let full = root.join(&directory);
            if self.directories.len() >= MAX_DIRECTORIES {
                let text = format!("{} has more than {MAX_DIRECTORIES} directories to watch", root.display());
                return Err(ConnectError::new(Code::ResourceExhausted, text));
            }
            match kernel::add(inotify, &full) {
                Ok(watch) => self.directories.insert(watch, directory.clone()),
                // Below the root, what vanishes or cannot be read is not watched.
                Err(error) if !directory.as_os_str().is_empty() && is_gone(&error) => continue,
                Err(error) => return Err(system_error(&full.display().to_string(), &error)),
            };
            if !recursive {
                break;
            }
            for entry in fs::read_dir(&full).into_iter().flatten().flatten() {
                let path = directory.join(entry.file_name());
                // The kind of the entry itself: a link to a directory is not a directory here.
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    rest.push(path.clone());
                }
                if found.len() < MAX_DIRECTORIES {
                    found.push(path);
                }
            }
        }
        Ok(found)
    }

    /// Says what a change means, and keeps the table true.
    pub fn follow(
        &mut self,
        inotify: &Inotify,
        root: &Path,
        recursive: bool,
        change: &Change,
        report: &mut dyn FnMut(&Path, EventType),
    ) -> Result<(), ConnectError> {
        let flags = change.flags;
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            return Err(ConnectError::new(Code::DataLoss, "too much happened at once: events were lost"));
        }
        let Some(directory) = self.directories.get(&change.watch) else { return Ok(()) };
        let path = directory.join(&change.name);
        if flags.contains(ReadFlags::IGNORED) {
            self.directories.remove(&change.watch);
            return Ok(());
        }
        if change.name.is_empty() {
            // About a watched directory itself: the one above it has said the same, unless it is the root.
            if path.as_os_str().is_empty()
                && let Some(kind) = own_kind(flags)
            {
                report(&path, kind);
            }
            return Ok(());
        }
        if let Some(kind) = kind(flags) {
            report(&path, kind);
        }
        if recursive && flags.contains(ReadFlags::ISDIR) {
            if flags.contains(ReadFlags::MOVED_FROM) {
                self.forget(inotify, &path);
            } else if flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
                for path in self.add(inotify, root, &path, true)? {
                    report(&path, EventType::Create);
                }
            }
        }
        Ok(())
    }

    fn forget(&mut self, inotify: &Inotify, path: &Path) {
        self.directories.retain(|watch, directory| {
            let below = directory.starts_with(path);
            if below {
                kernel::remove(inotify, *watch);
            }
            !below
        });
    }
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    matches!(error.kind(), NotFound | NotADirectory | PermissionDenied)
}

fn kind(flags: ReadFlags) -> Option<EventType> {
    let kinds = [
        (ReadFlags::CREATE | ReadFlags::MOVED_TO, EventType::Create),
        (ReadFlags::MODIFY, EventType::Write),
        (ReadFlags::DELETE, EventType::Remove),
        (ReadFlags::MOVED_FROM, EventType::Rename),
        (ReadFlags::ATTRIB, EventType::Chmod),
    ];
    kinds.into_iter().find(|(bits, _)| flags.intersects(*bits)).map(|(_, kind)| kind)
}

fn own_kind(flags: ReadFlags) -> Option<EventType> {
    if flags.contains(ReadFlags::DELETE_SELF) {
        Some(EventType::Remove)
    } else {
        flags.contains(ReadFlags::MOVE_SELF).then_some(EventType::Rename)
    }
}
