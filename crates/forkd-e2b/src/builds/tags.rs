//! Tags of templates: `name:tag` means a build as `name` does, and costs nothing.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use forkd_api::error::ErrorCode;
use forkd_api::hint::HintCode;
use forkd_engine::record::ZygoteRecord;
use forkd_image::digest::Digest;
use forkd_store::Tag;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::App;
use crate::models::{Body, date};
use crate::templates;
use forkd_daemon::auth::Caller;
use forkd_daemon::error::{Answer, ApiError};
use forkd_daemon::extract::{Json, Path};
use forkd_daemon::operations::checks::malformed;
use forkd_daemon::operations::look;

/// The most tags of one request.
const MOST: usize = 100;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Assign {
    /// `name` or `name:tag`.
    target: String,
    tags: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Remove {
    name: String,
    tags: Vec<String>,
}

/// The names of a template with these tags; without tags, its own.
pub(super) fn names(name: &str, tags: &[String]) -> Answer<Vec<String>> {
    if tags.len() > MOST {
        return Err(malformed(format!("{} tags, expected at most {MOST}", tags.len())));
    }
    let bare = name.split(':').next().unwrap_or_default();
    match tags {
        [] => Ok(vec![name.to_owned()]),
        tags => Ok(tags.iter().map(|tag| format!("{bare}:{tag}")).collect()),
    }
}

/// Gives a build further tags.
pub(super) async fn assign(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Body(wanted): Body<Assign>,
) -> Answer<(StatusCode, Json<Value>)> {
    if wanted.tags.is_empty() {
        return Err(malformed("tags is empty; name the tags to assign"));
    }
    let named = names(&wanted.target, &wanted.tags)?;
    let tagged = named.iter().map(|name| templates::tag_of(name)).collect::<Answer<Vec<Tag>>>()?;
    let turn = app.e2b.names.turn().await;
    let target = templates::built_name(&app, &wanted.target).ok_or_else(|| not_built(&wanted.target))?;
    let current = app.e2b.names.current(&target).ok_or_else(|| not_built(&wanted.target))?;
    let record = app.own_snapshot(&caller, current.as_str())?.view().record;
    for name in &tagged {
        check_free(&app, &caller, name)?;
    }
    let (e2b, snapshot, pointed) = (Arc::clone(&app.e2b), record.tag.clone(), tagged.clone());
    let point = move |_: &_| Ok(pointed.iter().try_for_each(|name| e2b.names.point(name, &snapshot))?);
    look(&app, point).await?;
    drop(turn);
    for name in &tagged {
        templates::remove_others(&app, name).await;
    }
    Ok((StatusCode::CREATED, Json(json!({ "buildID": build_id(&record), "tags": wanted.tags }))))
}

/// Takes tags from a template. What no name means any more goes.
pub(super) async fn remove(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Body(wanted): Body<Remove>,
) -> Answer<StatusCode> {
    if wanted.tags.is_empty() {
        return Err(malformed("tags is empty; name the tags to remove"));
    }
    let mut tagged = Vec::new();
    // None goes if one is not there.
    for name in names(&wanted.name, &wanted.tags)? {
        let template = templates::tag_of(&name)?;
        let current = app.e2b.names.current(&template).ok_or_else(|| not_built(&name))?;
        app.own_snapshot(&caller, current.as_str())?;
        tagged.push(template);
    }
    for template in &tagged {
        templates::remove_name(&app, &caller, template).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// The tags of a template.
pub(super) async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer<Json<Vec<Value>>> {
    let template = templates::tag_of(id.split(':').next().unwrap_or_default())?;
    let mut shown = Vec::new();
    for (name, snapshot) in app.e2b.names.all() {
        let Some(tag) = tag_below(&template, &name) else { continue };
        if let Ok(snapshot) = app.snapshot(&caller, snapshot.as_str()) {
            let record = snapshot.view().record;
            let created = date(record.created_unix_ms);
            shown.push(json!({ "tag": tag, "buildID": build_id(&record), "createdAt": created }));
        }
    }
    match shown.is_empty() {
        true => Err(not_built(&id)),
        false => Ok(Json(shown)),
    }
}

/// The tag of a template in one of its names.
fn tag_below(template: &Tag, name: &Tag) -> Option<String> {
    if name == template {
        return Some(templates::DEFAULT.to_owned());
    }
    let tag = name.as_str().strip_prefix(template.as_str())?.strip_prefix('.')?;
    Some(tag.to_owned())
}

/// A name of another project's template, or of a snapshot that was not built, is not taken.
pub(super) fn check_free(app: &App, caller: &Caller, name: &Tag) -> Answer<()> {
    let taken = || ApiError::new(ErrorCode::NameTaken, format!("the name {name} is in use"));
    match app.e2b.names.current(name) {
        Some(current) => match app.own_snapshot(caller, current.as_str()) {
            Err(_) if app.engine.snapshot(current.as_str()).is_ok() => Err(taken()),
            _ => Ok(()),
        },
        None if app.engine.snapshot(name.as_str()).is_ok() => Err(taken().hint(HintCode::ChooseTag)),
        None => Ok(()),
    }
}

fn not_built(name: &str) -> ApiError {
    let shown: String = name.chars().take(80).collect();
    ApiError::new(ErrorCode::NotFound, format!("there is no built template '{shown}'"))
        .hint(HintCode::NameTemplate)
}

/// Clients expect a UUID. A snapshot always has the same.
fn build_id(record: &ZygoteRecord) -> String {
    let digest = Digest::of(format!("{} {}", record.tag, record.created_unix_ms).as_bytes()).hex();
    let number = u128::from_str_radix(&digest[..32], 16).unwrap_or_default();
    uuid::Builder::from_random_bytes(number.to_be_bytes()).into_uuid().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_has_a_name_for_each_tag() {
        let tags = |tags: &[&str]| tags.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names("web", &[]).unwrap(), ["web"]);
        assert_eq!(names("web:v1", &[]).unwrap(), ["web:v1"]);
        assert_eq!(names("web:v1", &tags(&["v2", "v3"])).unwrap(), ["web:v2", "web:v3"]);
        assert!(names("web", &vec!["x".to_owned(); MOST + 1]).is_err());
    }

    #[test]
    fn tags_are_told_from_names() {
        let below =
            |template: &str, name: &str| tag_below(&template.parse().unwrap(), &name.parse().unwrap());
        assert_eq!(below("web", "web").as_deref(), Some("default"));
        assert_eq!(below("web", "web.v1").as_deref(), Some("v1"));
        for other in ["website", "web-1", "app", "we"] {
            assert_eq!(below("web", other), None, "{other}");
        }
    }
}
