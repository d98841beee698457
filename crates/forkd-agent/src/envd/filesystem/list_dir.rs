//! `ListDir`: a directory, and those in it down to a depth; or one page of a directory of any size.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use forkd_envd::connect::{Code, ConnectError};
use forkd_envd::filesystem::{EntryInfo, ListDirRequest, ListDirResponse, Page};

use super::{Caller, entry};
use crate::agent::Agent;
use crate::connect::{or_missing, system_error, unary};
use crate::runtime::blocking;
use crate::users::Users;

/// An answer is made in memory: this many entries are some 20 MiB of it.
const MAX_ENTRIES: usize = 50_000;
/// What a page has, as far as names and paths count.
const MAX_PAGE: usize = 4 << 20;
const MAX_PAGE_ENTRIES: usize = 10_000;

pub async fn list_dir(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    let headers = request.headers().clone();
    unary(request, |message: ListDirRequest| async move {
        let path = Caller::new(&agent, &headers).await?.resolve(&message.path)?;
        let depth = message.depth.0.max(1);
        let listed = blocking(move || match message.page {
            Some(wanted) => page(&path, &wanted),
            None => Ok(ListDirResponse { entries: list(&path, depth, MAX_ENTRIES)?, more: false }),
        });
        listed.await.map_err(|error| system_error("the directory", &error))?
    })
    .await
}

/// A page in the order of names. However large the directory is, no more than a page of it is in memory.
fn page(root: &Path, wanted: &Page) -> Result<ListDirResponse, ConnectError> {
    let wrong =
        |error: &io::Error| or_missing("path not found", system_error(&root.display().to_string(), error));
    let limit = usize::try_from(wanted.limit).unwrap_or(usize::MAX).clamp(1, MAX_PAGE_ENTRIES);
    let mut names: BTreeSet<(String, OsString)> = BTreeSet::new();
    for entry in fs::read_dir(root).map_err(|error| wrong(&error))? {
        let name = entry.map_err(|error| wrong(&error))?.file_name();
        let shown = name.to_string_lossy().into_owned();
        if shown <= wanted.after {
            continue;
        }
        names.insert((shown, name));
        // One beyond the page says that there is more.
        if names.len() > limit + 1 {
            names.pop_last();
        }
    }
    let users = Users::read();
    let mut answer = ListDirResponse::default();
    let mut size = 0;
    for (_, name) in names {
        if answer.entries.len() == limit || size > MAX_PAGE {
            answer.more = true;
            break;
        }
        // What vanishes while it is listed was not there.
        let Ok(info) = entry::info(&root.join(name), &users) else { continue };
        size += info.name.len() + info.path.len() + 200;
        answer.entries.push(info);
    }
    Ok(answer)
}

/// In the order of names, a directory before what is in it. Links are not followed, except the one that was asked for.
fn list(root: &Path, depth: u32, limit: usize) -> Result<Vec<EntryInfo>, ConnectError> {
    let wrong =
        |error: &io::Error| or_missing("path not found", system_error(&root.display().to_string(), error));
    if !fs::metadata(root).map_err(|error| wrong(&error))?.is_dir() {
        return Err(ConnectError::invalid(format!("path is not a directory: {}", root.display())));
    }
    let users = Users::read();
    let mut entries = Vec::new();
    let mut rest = children(root, depth).map_err(|error| wrong(&error))?;
    while let Some((path, depth)) = rest.pop() {
        // What vanishes while it is listed was not there.
        let Ok(info) = entry::info(&path, &users) else { continue };
        entries.push(info);
        let below = if depth > 1 && is_own_directory(&path) {
            children(&path, depth - 1).unwrap_or_default()
        } else {
            Vec::new()
        };
        rest.extend(below);
        if entries.len() + rest.len() > limit {
            let text = format!("{} has more than {limit} entries at this depth", root.display());
            return Err(ConnectError::new(Code::ResourceExhausted, text));
        }
    }
    Ok(entries)
}

fn is_own_directory(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_dir())
}

/// The last name first, so that the first is popped first. A directory with more than the limit is cut there, and refused then.
fn children(directory: &Path, depth: u32) -> io::Result<Vec<(PathBuf, u32)>> {
    let found = fs::read_dir(directory)?.take(MAX_ENTRIES + 1);
    let mut paths: Vec<_> = found.filter_map(|entry| Some((entry.ok()?.path(), depth))).collect();
    paths.sort_unstable_by(|one, other| other.cmp(one));
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(root: &Path, depth: u32) -> Vec<String> {
        let entries = list(root, depth, 100).unwrap();
        entries.iter().map(|entry| entry.path.replace(&format!("{}/", root.display()), "")).collect()
    }

    #[test]
    fn pages_have_every_name_once() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        for number in 0..25 {
            fs::write(root.join(format!("{number:02}")), "").unwrap();
        }
        let mut seen = Vec::new();
        let mut after = String::new();
        loop {
            let answer = page(root, &Page { after: after.clone(), limit: 10 }).unwrap();
            seen.extend(answer.entries.iter().map(|entry| entry.name.clone()));
            after = seen.last().unwrap().clone();
            if !answer.more {
                break;
            }
        }
        assert_eq!(seen, (0..25).map(|number| format!("{number:02}")).collect::<Vec<_>>());
        assert!(!page(root, &Page { after: "04".into(), limit: 20 }).unwrap().more, "the last page is full");
        assert!(page(root, &Page { after: "zz".into(), limit: 20 }).unwrap().entries.is_empty());
        assert_eq!(page(&root.join("none"), &Page::default()).unwrap_err().code, Code::NotFound);
    }

    #[test]
    fn depth_order_and_links() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::create_dir_all(root.join("b/inner/deep")).unwrap();
        fs::write(root.join("a"), "").unwrap();
        fs::write(root.join("b/x"), "").unwrap();
        symlink("/", root.join("c")).unwrap();
        assert_eq!(names(root, 1), ["a", "b", "c"]);
        assert_eq!(names(root, 2), ["a", "b", "b/inner", "b/x", "c"]);
        assert_eq!(names(root, 9), ["a", "b", "b/inner", "b/inner/deep", "b/x", "c"]);
        assert_eq!(list(root, 9, 3).unwrap_err().code, Code::ResourceExhausted);
        assert_eq!(list(&root.join("a"), 1, 9).unwrap_err().code, Code::InvalidArgument);
        assert_eq!(list(&root.join("none"), 1, 9).unwrap_err().code, Code::NotFound);
    }
}
