//! What a sandbox is made of, by the names that clients have for it.
//!
//! ```text
//!   templateID ──┬── a snapshot's tag, also with ":tag" behind it                    forked
//!                ├── an image of the library ──▶ booted, warmed up, frozen, once ──▶ forked
//!                └── base, code-interpreter-v1: each stands for the other where only one is there
//! ```

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use axum::extract::State;
use axum::http::StatusCode;
use forkd_api::error::ErrorCode;
use forkd_api::snapshot::Progress;
use forkd_engine::engine::{EngineError, SnapshotHandle, SnapshotStatus};
use forkd_engine::library::{DefaultAccount, Recipe};
use forkd_image::images::Name;
use forkd_proto::agent::account::Account;
use forkd_proto::control::CpuModel;
use forkd_store::Tag;
use tokio::sync::{mpsc, watch};

use crate::app::Shared;
use crate::error::{Answer, ApiError};
use crate::extract::Path;
use crate::routes::snapshots::create::make;

/// The templates that clients take if nothing else is said.
pub(super) const USUAL: [&str; 2] = ["base", "code-interpreter-v1"];
/// What E2B calls the newest build of a template.
const DEFAULT: &str = "default";
/// What the interpreter has loaded before the first sandbox asks for it.
const WARM_UP: &str = "for _name in ('numpy', 'pandas', 'matplotlib.pyplot'):\n    \
                       try:\n        __import__(_name)\n    except Exception:\n        pass\ndel _name";
/// What is told and not read yet.
const QUEUE: usize = 16;

type Outcome = Result<(), (ErrorCode, String)>;

/// Snapshots that are being made of images: whoever wants the same one waits for it.
#[derive(Debug, Default)]
pub(super) struct Making(Mutex<HashMap<Tag, watch::Receiver<Option<Outcome>>>>);

/// The snapshot's tag for a name of E2B's: `name`, `name:tag`, and either with somebody's name and a slash before it.
pub(super) fn tag_of(name: &str) -> Answer<Tag> {
    let own = name.rsplit('/').next().unwrap_or(name);
    let own = match own.split_once(':') {
        None | Some((_, "" | DEFAULT)) => own.split(':').next().unwrap_or(own).to_owned(),
        Some((name, tag)) => format!("{name}.{tag}"),
    };
    Ok(own.to_ascii_lowercase().parse().map_err(EngineError::Tag)?)
}

/// The snapshot that a template means. One of an image is made the first time, which takes as long as its guest to boot.
pub(super) async fn resolve(app: &Shared, template: &str) -> Answer<SnapshotHandle> {
    if let Some(found) = find(app, template).await? {
        return Ok(found);
    }
    let own = template.split(':').next().unwrap_or(template);
    if USUAL.contains(&own) {
        for other in USUAL.iter().filter(|name| **name != own) {
            if let Some(found) = find(app, other).await? {
                return Ok(found);
            }
        }
    }
    let shown: String = template.chars().take(80).collect();
    let error = ApiError::new(ErrorCode::NotFound, format!("template '{shown}' not found"));
    Err(match USUAL.contains(&own) {
        true => error.hint("make it on the daemon's host: forkd e2b setup"),
        false => error.hint("name a snapshot (forkd snapshot ls) or an image (forkd image ls)"),
    })
}

async fn find(app: &Shared, template: &str) -> Answer<Option<SnapshotHandle>> {
    let exact = app.engine.snapshot(template).ok();
    let mapped = || tag_of(template).ok().and_then(|tag| app.engine.snapshot(tag.as_str()).ok());
    if let Some(found) = exact.or_else(mapped) {
        return Ok(Some(found));
    }
    let Ok(name) = template.parse::<Name>() else { return Ok(None) };
    let images = app.library.images.clone();
    let named = tokio::task::spawn_blocking(move || images.named(&name)).await;
    let named =
        named.map_err(|error| ApiError::internal(&error))?.map_err(|error| ApiError::internal(&error))?;
    let Some(image) = named else { return Ok(None) };
    let tag = image_tag(template, &image.to_string())?;
    make_once(app, &tag, template).await?;
    Ok(Some(app.engine.snapshot(tag.as_str())?))
}

/// One for each content of an image: a name that means another image later is another snapshot.
fn image_tag(name: &str, digest: &str) -> Answer<Tag> {
    let plain = |character: char| {
        if character.is_ascii_alphanumeric() { character.to_ascii_lowercase() } else { '-' }
    };
    let name: String = name.chars().map(plain).take(40).collect();
    let digest: String = digest.rsplit(':').next().unwrap_or(digest).chars().take(12).collect();
    Ok(format!("e2b-{name}-{digest}").parse().map_err(EngineError::Tag)?)
}

/// Makes a snapshot of an image, unless there is one, or somebody makes it right now.
async fn make_once(app: &Shared, tag: &Tag, image: &str) -> Answer<()> {
    if let Ok(snapshot) = app.engine.snapshot(tag.as_str()) {
        if snapshot.view().status != SnapshotStatus::Failed {
            return Ok(());
        }
        app.engine.remove_snapshot(tag.as_str(), false).await?;
    }
    let mut outcome = {
        let mut making = app.e2b.templates.0.lock().unwrap_or_else(PoisonError::into_inner);
        match making.get(tag) {
            Some(outcome) => outcome.clone(),
            None => {
                let (told, outcome) = watch::channel(None);
                making.insert(tag.clone(), outcome.clone());
                let (app, tag, image) = (app.clone(), tag.clone(), image.to_owned());
                // It goes on when its first caller goes away: others may wait, and the next one will want it.
                tokio::spawn(async move {
                    let made = warm(&app, &tag, &image).await;
                    let made = made.map_err(|error| (error.code(), error.to_string()));
                    app.e2b.templates.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&tag);
                    told.send_replace(Some(made));
                });
                outcome
            }
        }
    };
    let outcome = outcome.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
    match outcome {
        Ok(Some(Ok(()))) => Ok(()),
        Ok(Some(Err((code, text)))) => Err(ApiError::new(code, text)),
        _ => Err(ApiError::new(ErrorCode::Unavailable, "the daemon is about to end")),
    }
}

/// With its interpreter warm, if the image has one.
async fn warm(app: &Shared, tag: &Tag, image: &str) -> Answer<()> {
    let recipe = Recipe {
        tag: tag.clone(),
        image: image.to_owned(),
        kernel: None,
        vcpus: None,
        memory_mib: None,
        disk_mib: None,
        cpu: CpuModel::Host,
        env: std::collections::BTreeMap::new(),
        start: None,
        ready: None,
        warm_up: vec![("python".to_owned(), WARM_UP.to_owned())],
        account: Some(DefaultAccount { account: Account::e2b(), keeps_image_user: false }),
        host_certs: false,
        network: app.engine.networks().is_ok(),
    };
    let _busy = app.busy().await;
    let warm = made_and_told(app, recipe.clone(), |_| ()).await;
    match warm {
        Err(error) if error.code() == ErrorCode::GuestFailed => {
            made_and_told(app, Recipe { warm_up: Vec::new(), ..recipe }, |_| ()).await
        }
        warm => warm,
    }
}

/// Makes a snapshot, and says what happens on the way.
pub(super) async fn made_and_told(app: &Shared, recipe: Recipe, say: impl Fn(&str)) -> Answer<()> {
    let (told, mut heard) = mpsc::channel(QUEUE);
    let hearing = async {
        while let Some(progress) = heard.recv().await {
            if let Progress::Step(line) | Progress::Output(line) = progress {
                say(&line);
            }
        }
    };
    let (made, ()) = tokio::join!(make(app, recipe, false, told), hearing);
    made.map(drop)
}

/// Removes a snapshot, or a template.
pub(super) async fn remove(State(app): State<Shared>, Path(id): Path<String>) -> Answer<StatusCode> {
    let tag = match app.engine.snapshot(&id) {
        Ok(snapshot) => snapshot.tag(),
        Err(error) => tag_of(&id).map_err(|_| ApiError::from(error))?,
    };
    app.engine.remove_snapshot(tag.as_str(), false).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_tags() {
        for (name, tag) in [
            ("base", "base"),
            ("base:default", "base"),
            ("team/base:v2", "base.v2"),
            ("My-Template", "my-template"),
            ("i1abc-1", "i1abc-1"),
        ] {
            assert_eq!(tag_of(name).unwrap().as_str(), tag, "{name}");
        }
        for wrong in ["", "a b", "../x/", ":x", "ü"] {
            assert_eq!(tag_of(wrong).map_err(|error| error.code().status()).ok(), None, "{wrong}");
        }
    }

    #[test]
    fn an_image_has_a_tag_for_what_it_is() {
        let one = image_tag("registry.example/python:3.12-slim", "sha256:0123456789abcdef").unwrap();
        assert_eq!(one.as_str(), "e2b-registry-example-python-3-12-slim-0123456789ab");
        assert_ne!(image_tag("x", "sha256:1").unwrap(), image_tag("x", "sha256:2").unwrap());
        assert!(image_tag(&"x/".repeat(100), &"f".repeat(64)).is_ok());
    }

    proptest::proptest! {
        #[test]
        fn any_name_may_come(name in "\\PC{0,80}") {
            let _ = (tag_of(&name), image_tag(&name, "sha256:00"));
        }
    }
}
