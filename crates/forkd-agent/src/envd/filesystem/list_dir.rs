//! `ListDir`: a directory, and those in it down to a depth.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use forkd_envd::connect::{Code, ConnectError};
use forkd_envd::filesystem::{EntryInfo, ListDirRequest, ListDirResponse};

use super::{Caller, entry};
use crate::agent::Agent;
use crate::connect::{system_error, unary};
use crate::runtime::blocking;
use crate::users::Users;

/// An answer is made in memory: this many entries are some 20 MiB of it.
const MAX_ENTRIES: usize = 50_000;

pub async fn list_dir(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    let headers = request.headers().clone();
    unary(request, |message: ListDirRequest| async move {
        let path = Caller::new(&agent, &headers).await?.resolve(&message.path)?;
        let depth = message.depth.0.max(1);
        let listed = blocking(move || list(&path, depth, MAX_ENTRIES)).await;
        let entries = listed.map_err(|error| system_error("the directory", &error))??;
        Ok(ListDirResponse { entries })
    })
    .await
}

/// In the order of names, a directory before what is in it. Links are not followed, except the one that was asked for.
fn list(root: &Path, depth: u32, limit: usize) -> Result<Vec<EntryInfo>, ConnectError> {
    let wrong = |error: &io::Error| system_error(&root.display().to_string(), error);
    if !fs::metadata(root).map_err(|error| wrong(&error))?.is_dir() {
        return Err(ConnectError::invalid(format!("{} is not a directory", root.display())));
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
