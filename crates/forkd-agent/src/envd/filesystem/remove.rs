//! `Remove`: an entry and everything in it. What is not there has been removed.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use forkd_envd::Empty;
use forkd_envd::filesystem::PathRequest;

use super::Caller;
use crate::agent::Agent;
use crate::connect::{system_error, unary};
use crate::runtime::blocking;

pub async fn remove(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    let headers = request.headers().clone();
    unary(request, |message: PathRequest| async move {
        let path = Caller::new(&agent, &headers).await?.resolve(&message.path)?;
        let subject = path.display().to_string();
        let removed = blocking(move || remove_all(&path)).await.and_then(|removed| removed);
        removed.map_err(|error| system_error(&subject, &error))?;
        Ok(Empty {})
    })
    .await
}

fn remove_all(path: &Path) -> io::Result<()> {
    let removed = match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(())
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn trees_files_links_and_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let (kept, tree) = (directory.path().join("kept"), directory.path().join("tree"));
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "").unwrap();
        symlink(&kept, tree.join("link")).unwrap();
        remove_all(&tree).unwrap();
        assert!(!tree.exists() && kept.join("file").exists());
        symlink(&kept, &tree).unwrap();
        remove_all(&tree).unwrap();
        assert!(kept.join("file").exists());
        remove_all(&tree).unwrap();
        remove_all(&kept.join("file/below")).unwrap();
    }
}
