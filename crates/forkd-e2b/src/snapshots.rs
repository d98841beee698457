//! Snapshots of sandboxes: branches, in forkd's words. Each is a template, too.
//!
//! A name that a client gives is a further name of the branch, which moves to the next branch that is given it. The branch that had it is
//! then known by its id only.

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use forkd_engine::{Removal, SandboxHandle, SnapshotHandle, SnapshotView};
use forkd_store::Tag;
use serde::Deserialize;

use super::models::{Body, NewSnapshot, Snapshot};
use super::sandboxes::find;
use super::{paging, templates};
use crate::App;
use forkd_daemon::auth::Caller;
use forkd_daemon::error::Answer;
use forkd_daemon::extract::{Json, Path, Query};
use forkd_daemon::operations::branch_of;
use forkd_daemon::operations::checks::malformed;

/// Makes one. The sandbox goes on; whoever asks can fork from it at once.
pub(super) async fn create(
    State(app): State<App>,
    Path(id): Path<String>,
    Extension(caller): Extension<Caller>,
    Body(wanted): Body<NewSnapshot>,
) -> Answer<(StatusCode, Json<Snapshot>)> {
    let sandbox = find(&app, &caller, &id)?;
    let tag = wanted.name.filter(|name| !name.is_empty()).map(|name| templates::tag_of(&name)).transpose()?;
    let own = app.clone();
    let making = async move {
        match tag {
            None => branch_of(&own, &sandbox, None, &caller).await,
            Some(name) => branch_named(&own, &sandbox, name, &caller).await,
        }
    };
    let branch = app.to_its_end(making).await??;
    Ok((StatusCode::CREATED, Json(shown(&app, &branch.view()))))
}

/// A branch with a name, which another branch may have had until then.
async fn branch_named(
    app: &App,
    sandbox: &SandboxHandle,
    name: Tag,
    caller: &Caller,
) -> Answer<SnapshotHandle> {
    app.check_branch_name(caller, &name)?;
    let branch = branch_of(app, sandbox, None, caller).await?;
    if let Err(error) = app.add_branch_name(caller, &branch, name).await {
        let tag = branch.tag();
        // The client does not know of it.
        if let Err(error) = app.engine.remove_snapshot_of(None, tag.as_str(), Removal::default()).await {
            tracing::warn!(%tag, %error, "cannot remove a snapshot that did not get its name");
        }
        return Err(error);
    }
    Ok(branch)
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ListSnapshots {
    #[serde(rename = "sandboxID")]
    sandbox_id: Option<String>,
    name: Option<String>,
    limit: Option<u32>,
    next_token: Option<String>,
}

pub(super) async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Query(wanted): Query<ListSnapshots>,
) -> Answer<Response> {
    let (page, next) = page(&app, app.snapshots(&caller), &wanted)?;
    Ok(paging::with_next(Json(page).into_response(), next))
}

/// A page, by tag, and where the next one begins.
fn page(
    app: &App,
    mut views: Vec<SnapshotView>,
    wanted: &ListSnapshots,
) -> Answer<(Vec<Snapshot>, Option<String>)> {
    let limit = paging::limit(wanted.limit)?;
    let name = wanted.name.as_deref().filter(|name| !name.is_empty()).map(templates::tag_of).transpose()?;
    if wanted.next_token.as_deref().is_some_and(|token| token.parse::<forkd_store::Tag>().is_err()) {
        return Err(malformed("invalid nextToken: expected x-next-token of an earlier answer"));
    }
    views.retain(|view| {
        let record = &view.record;
        record.branched_from.as_ref().is_some_and(|from| {
            wanted.sandbox_id.as_deref().is_none_or(|id| id.is_empty() || from.as_str() == id)
        }) && name
            .as_ref()
            .is_none_or(|name| record.tag == *name || app.engine.names_of(&record.tag).contains(name))
            && wanted.next_token.as_deref().is_none_or(|after| record.tag.as_str() > after)
    });
    views.sort_by(|one, other| one.record.tag.cmp(&other.record.tag));
    let more = views.len() > limit;
    views.truncate(limit);
    let next = views.last().filter(|_| more).map(|last| last.record.tag.to_string());
    Ok((views.iter().map(|view| shown(app, view)).collect(), next))
}

/// One without a name is known by its id only, and one with names by the first of them.
fn shown(app: &App, view: &SnapshotView) -> Snapshot {
    let tag = view.record.tag.to_string();
    let own = view.record.branched_from.as_ref().is_none_or(|from| !tag.starts_with(&format!("{from}-")));
    let own_name = own.then(|| tag.clone());
    let others = app.engine.names_of(&view.record.tag);
    let names: Vec<String> = own_name.into_iter().chain(others.iter().map(Tag::to_string)).collect();
    Snapshot { snapshot_id: names.first().cloned().unwrap_or(tag), names }
}
