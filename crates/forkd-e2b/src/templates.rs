//! What a sandbox is made of, by the names that clients have for it.
//!
//! ```text
//!   templateID ──┬── a snapshot's tag, also with ":tag" behind it                    forked
//!                ├── a template that was built: one of the names of its snapshot     forked
//!                ├── an image of the library ──▶ booted, warmed up, frozen, once ──▶ forked
//!                └── base, code-interpreter-v1: each stands for the other where only one is there
//! ```

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use forkd_api::error::ErrorCode;
use forkd_api::hint::HintCode;
use forkd_api::snapshot::Progress;
use forkd_engine::bring_up::WarmUp;
use forkd_engine::library::{DefaultAccount, Recipe};
use forkd_engine::project::Project;
use forkd_engine::{EngineError, Removal, SnapshotHandle, SnapshotStatus};
use forkd_image::digest::Digest;
use forkd_image::images::Name;
use forkd_proto::agent::account::Account;
use forkd_proto::control::CpuModel;
use forkd_store::Tag;
use tokio::sync::mpsc;

use crate::App;
use forkd_daemon::auth::Caller;
use forkd_daemon::error::{Answer, ApiError};
use forkd_daemon::extract::Path;
use forkd_daemon::operations::look;
use forkd_daemon::operations::{How, build_recipe, make};

/// The templates that clients take if nothing else is said.
pub(super) const USUAL: [&str; 2] = ["base", "code-interpreter-v1"];
/// What E2B calls the newest build of a template.
pub(super) const DEFAULT: &str = "default";
/// What the interpreter has loaded before the first sandbox asks for it.
const WARM_UP: &str = "for _name in ('numpy', 'pandas', 'matplotlib.pyplot', 'requests', 'PIL.Image', 'sklearn'):\n    \
                       try:\n        __import__(_name)\n    except Exception:\n        pass\ndel _name";
/// What is told and not read yet.
const QUEUE: usize = 16;

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
pub(super) async fn resolve(app: &App, caller: &Caller, template: &str) -> Answer<SnapshotHandle> {
    forkd_proto::passes!();
    if let Some(found) = find(app, caller, template).await? {
        return Ok(found);
    }
    let own = template.split(':').next().unwrap_or(template);
    if USUAL.contains(&own) {
        for other in USUAL.iter().filter(|name| **name != own) {
            if let Some(found) = find(app, caller, other).await? {
                return Ok(found);
            }
        }
    }
    let shown: String = template.chars().take(80).collect();
    let error = ApiError::new(ErrorCode::NotFound, format!("template '{shown}' not found"));
    Err(match USUAL.contains(&own) {
        true => error.hint(HintCode::SetUpTemplate),
        false => error.hint(HintCode::NameTemplate),
    })
}

async fn find(app: &App, caller: &Caller, template: &str) -> Answer<Option<SnapshotHandle>> {
    if let Some(found) = named(app, caller, template) {
        return Ok(Some(found));
    }
    let Ok(name) = template.parse::<Name>() else { return Ok(None) };
    let asked = caller.clone();
    let named = look(app, move |app| {
        let id = app.library.images.named(&name).map_err(|error| ApiError::internal(&error))?;
        Ok(id.and_then(|id| app.image(&asked, &id.to_string()).ok()))
    });
    let Some(image) = named.await? else { return Ok(None) };
    let image = image.id().to_string();
    let tag = image_tag(template, &image, &caller.project)?;
    let found = app.snapshot(caller, tag.as_str()).ok();
    if let Some(found) = found.filter(|found| found.view().status != SnapshotStatus::Failed) {
        return Ok(Some(found));
    }
    make_once(app, caller, &tag, &image).await?;
    Ok(Some(app.snapshot(caller, tag.as_str())?))
}

/// The snapshot that a template name refers to: the newest build of that name, or else the snapshot with that tag.
pub(super) fn named(app: &App, caller: &Caller, template: &str) -> Option<SnapshotHandle> {
    let exact = template.parse().ok();
    let mapped = || tag_of(template).ok();
    exact.or_else(mapped).and_then(|tag: Tag| {
        let built = app.e2b.names.current(&tag).and_then(|build| app.snapshot(caller, build.as_str()).ok());
        // One of a build that the name does not mean any more is not found by the name.
        let plain = || app.snapshot(caller, tag.as_str()).ok().filter(|_| !app.e2b.names.is_other(&tag));
        built.or_else(plain)
    })
}

/// One for each content of an image: a name that means another image later is another snapshot. And one for each project: what
/// is made for one is not another's.
fn image_tag(name: &str, digest: &str, project: &Project) -> Answer<Tag> {
    let plain = |character: char| {
        if character.is_ascii_alphanumeric() { character.to_ascii_lowercase() } else { '-' }
    };
    let digits =
        |text: &str, count| text.rsplit(':').next().unwrap_or(text).chars().take(count).collect::<String>();
    let digest = digits(digest, 12);
    let name = |most| name.chars().map(plain).take(most).collect::<String>();
    let tag = match project.is_default() {
        true => format!("e2b-{}-{digest}", name(40)),
        false => format!(
            "e2b-{}-{digest}-{}",
            name(32),
            digits(&Digest::of(project.as_str().as_bytes()).hex(), 12)
        ),
    };
    Ok(tag.parse().map_err(EngineError::Tag)?)
}

/// A snapshot of an image, made once. With its interpreter warm, if the image has one.
async fn make_once(app: &App, caller: &Caller, tag: &Tag, image: &str) -> Answer<()> {
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
        run: Vec::new(),
        warm_up: vec![WarmUp { language: "python".into(), code: WARM_UP.into(), required: false }],
        account: Some(DefaultAccount { account: Account::e2b(), keeps_image_user: false }),
        host_certs: false,
        network: app.engine.networks().is_ok(),
    };
    let (told, mut heard) = mpsc::channel(QUEUE);
    let unheard = async { while heard.recv().await.is_some() {} };
    let (made, ()) = tokio::join!(make(app, caller, recipe, How::Once, false, told), unheard);
    made.map(drop)
}

/// The snapshot of a recipe, on disk: one of the same contents, unless it is to be a fresh one. Says what happens on the way.
pub(super) async fn build(
    app: &App,
    caller: &Caller,
    recipe: Recipe,
    fresh: bool,
    say: impl Fn(&str),
) -> Answer<SnapshotHandle> {
    let (told, mut heard) = mpsc::channel(QUEUE);
    let hearing = async {
        while let Some(progress) = heard.recv().await {
            if let Progress::Step(line) | Progress::Output(line) = progress {
                say(&line);
            }
        }
    };
    let (built, ()) = tokio::join!(build_recipe(app, caller, recipe, fresh, told), hearing);
    let built = built?;
    if !built.is_new {
        say(&format!("unchanged: snapshot {} has the same contents", built.snapshot.tag()));
    }
    Ok(built.snapshot)
}

/// Removes a snapshot, or a template.
pub(super) async fn remove(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer<StatusCode> {
    let unknown = || EngineError::NoSnapshot(id.chars().take(80).collect());
    let snapshot = named(&app, &caller, &id).ok_or_else(unknown)?;
    match built_name(&app, &id) {
        Some(template) => remove_name(&app, &caller, &template).await?,
        None => {
            let tag = snapshot.tag();
            // The only name of a branch goes with it: to E2B's clients, the name is the snapshot.
            let is_named_branch =
                snapshot.view().record.branched_from.is_some() && app.engine.names_of(&tag).len() == 1;
            let removal = Removal { all_names: is_named_branch, ..Removal::default() };
            app.remove_snapshot(&caller, tag.as_str(), removal).await?;
            let e2b = Arc::clone(&app.e2b);
            look(&app, move |_| Ok(e2b.names.removed(&tag)?)).await?;
        }
    }
    Ok(StatusCode::NO_CONTENT)
}

/// The name of a built template, if this is one.
pub(super) fn built_name(app: &App, name: &str) -> Option<Tag> {
    let exact = name.parse().ok();
    exact.or_else(|| tag_of(name).ok()).filter(|tag: &Tag| app.e2b.names.current(tag).is_some())
}

/// Removes a name of a built template, and with the last one what it means. One that others depend on is refused; one that has names of
/// forkd's own stays.
pub(super) async fn remove_name(app: &App, caller: &Caller, template: &Tag) -> Answer<()> {
    let names = &app.e2b.names;
    let turn = names.turn().await;
    let unknown = || EngineError::NoSnapshot(template.to_string());
    let tag = app.own_snapshot(caller, names.current(template).ok_or_else(unknown)?.as_str())?.tag();
    if !names.is_shared(template) && app.engine.names_of(&tag).is_empty() {
        app.remove_snapshot(caller, tag.as_str(), Removal::default()).await?;
    }
    let (e2b, name) = (Arc::clone(&app.e2b), template.clone());
    look(app, move |_| Ok(e2b.names.release(&name)?)).await?;
    drop(turn);
    remove_others(app, template).await;
    Ok(())
}

/// Removes what no name of a template means any more. What others depend on stays until they are gone and the next build comes.
pub(super) async fn remove_others(app: &App, template: &Tag) {
    let _turn = app.e2b.names.turn().await;
    for tag in app.e2b.names.to_remove(template) {
        // One that has names of forkd's own stays.
        match app.engine.remove_snapshot_of(None, tag.as_str(), Removal::default()).await {
            Ok(_) | Err(EngineError::NoSnapshot(_)) => {}
            Err(error) => {
                tracing::info!(%template, %tag, %error, "cannot remove an earlier build of a template");
                continue;
            }
        }
        let e2b = Arc::clone(&app.e2b);
        if let Err(error) = look(app, move |_| Ok(e2b.names.removed(&tag)?)).await {
            tracing::warn!(%template, %error, "cannot remove the record of a template's earlier build");
        }
    }
}

/// Removes what builds have left that a daemon did not bring to their ends.
pub(crate) async fn clean_up(app: &App) {
    for template in app.e2b.names.templates() {
        remove_others(app, &template).await;
    }
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
        let one =
            image_tag("registry.example/python:3.12-slim", "sha256:0123456789abcdef", &Project::default())
                .unwrap();
        assert_eq!(one.as_str(), "e2b-registry-example-python-3-12-slim-0123456789ab");
        let of = |digest: &str, project: &str| image_tag("x", digest, &project.parse().unwrap()).unwrap();
        assert_ne!(of("sha256:1", "default"), of("sha256:2", "default"));
        assert_ne!(of("sha256:1", "one"), of("sha256:1", "two"));
        for project in ["default", "Other"] {
            assert!(image_tag(&"x/".repeat(100), &"f".repeat(64), &project.parse().unwrap()).is_ok());
        }
    }

    proptest::proptest! {
        #[test]
        fn any_name_may_come(name in "\\PC{0,80}") {
            let _ = (tag_of(&name), image_tag(&name, "sha256:00", &Project::default()));
        }
    }
}
