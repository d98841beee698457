//! `POST /files/compose`: several files become one, and are gone then. Clients upload parts of a large file side by side.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Json;
use axum::extract::Request;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use forkd_envd::files::{ComposeRequest, Written};

use super::written;
use crate::agent::Agent;
use crate::envd::filesystem::{make_parents, own};
use crate::envd::rest::RestError;
use crate::envd::{caller, paths};
use crate::runtime::blocking;
use crate::users::User;

const MAX_REQUEST: usize = 4 << 20;

pub async fn compose(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    match serve(&agent, request).await {
        Ok(written) => Json(written).into_response(),
        Err(error) => error.into_response(),
    }
}

async fn serve(agent: &Agent, request: Request) -> Result<Written, RestError> {
    let body = axum::body::to_bytes(request.into_body(), MAX_REQUEST).await;
    let body = body.map_err(|error| RestError::bad_request(error.to_string()))?;
    let request: ComposeRequest = serde_json::from_slice(&body)
        .map_err(|error| RestError::bad_request(format!("not understood: {error}")))?;
    if request.source_paths.is_empty() || request.destination.is_empty() {
        return Err(RestError::bad_request("source_paths and destination must not be empty"));
    }
    let user = caller::find_user(agent, request.username).await?;
    let workdir = agent.settings().default_workdir;
    let resolve = |path: &str| {
        paths::resolve(path, &user, workdir.as_deref())
            .map_err(|error| RestError::bad_request(error.to_string()))
    };
    let destination = resolve(&request.destination)?;
    let sources = request.source_paths.iter().map(|path| resolve(path)).collect::<Result<Vec<_>, _>>()?;
    let subject = destination.display().to_string();
    let done = blocking(move || join(&sources, &destination, &user)).await;
    done.map_err(|error| RestError::system(&subject, &error))?
}

fn join(sources: &[PathBuf], destination: &Path, user: &User) -> Result<Written, RestError> {
    for source in sources {
        if source == destination {
            return Err(RestError::bad_request(format!("{} is source and destination", source.display())));
        }
        match source.metadata() {
            Ok(found) if found.is_file() => {}
            Ok(_) => {
                return Err(RestError::bad_request(format!("{} is not a regular file", source.display())));
            }
            Err(error) => return Err(RestError::system(&source.display().to_string(), &error)),
        }
    }
    let wrong = |error: io::Error| RestError::system(&destination.display().to_string(), &error);
    make_parents(destination, user).map_err(wrong)?;
    let draft = draft_beside(destination);
    // The destination is replaced whole or not at all.
    let made = write(sources, &draft, user).and_then(|()| fs::rename(&draft, destination));
    if let Err(error) = made {
        let _ = fs::remove_file(&draft);
        return Err(wrong(error));
    }
    for source in sources {
        // The parts have been used; one that stays is only space.
        let _ = fs::remove_file(source);
    }
    Ok(written(destination, Default::default()))
}

/// A name of its own for every call, on the same filesystem.
fn draft_beside(destination: &Path) -> PathBuf {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let mut name = destination.as_os_str().to_owned();
    name.push(format!(".forkd-compose.{}.{}", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed)));
    name.into()
}

fn write(sources: &[PathBuf], draft: &Path, user: &User) -> io::Result<()> {
    let mut output = File::create_new(draft)?;
    own(draft, user)?;
    for source in sources {
        // Within the kernel, where the filesystem can.
        io::copy(&mut File::open(source)?, &mut output)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_become_a_whole_and_nothing_happens_half() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let user = crate::users::current();
        fs::write(path("1"), "one ").unwrap();
        fs::write(path("2"), "two").unwrap();
        fs::write(path("whole"), "old").unwrap();
        let missing = join(&[path("1"), path("none")], &path("whole"), &user).unwrap_err();
        assert_eq!((missing.status(), fs::read_to_string(path("whole")).unwrap()), (404, "old".into()));
        assert_eq!(join(&[path("1")], &path("1"), &user).unwrap_err().status(), 400);
        join(&[path("1"), path("2")], &path("deep/whole"), &user).unwrap();
        assert_eq!(fs::read_to_string(path("deep/whole")).unwrap(), "one two");
        assert!(!path("1").exists() && !path("2").exists());
        assert_eq!(fs::read_dir(path("deep")).unwrap().count(), 1);
    }
}
