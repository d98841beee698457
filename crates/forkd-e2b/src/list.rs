//! Lists running and paused sandboxes, page by page.

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use forkd_engine::{SandboxState, SandboxView};
use serde::Deserialize;

use super::about::About;
use super::models::{ListedSandbox, template};
use super::{paging, query};
use crate::App;
use forkd_daemon::auth::Caller;
use forkd_daemon::error::Answer;
use forkd_daemon::extract::{Json, Query};
use forkd_daemon::operations::checks::malformed;

const RUNNING: HeaderName = HeaderName::from_static("x-total-running");

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ListQuery {
    metadata: Option<String>,
    /// `running`, `paused`, or both with a comma.
    state: Option<String>,
    order: Option<String>,
    started_after: Option<String>,
    template: Option<String>,
    next_token: Option<String>,
    limit: Option<u32>,
}

/// When it was made, and its id.
type Place = (u64, String);

pub(super) async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Query(wanted): Query<ListQuery>,
) -> Answer<Response> {
    answer(app.sandboxes(&caller), &wanted)
}

/// As the first clients asked: all that run, at once.
pub(super) async fn list_running(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Query(wanted): Query<ListQuery>,
) -> Answer<Response> {
    let mut views = app.sandboxes(&caller);
    views.retain(|view| view.state == SandboxState::Running);
    let wanted = ListQuery { state: None, next_token: None, ..wanted };
    let (views, _) = page(views, &wanted, usize::MAX)?;
    Ok(Json(views.iter().map(ListedSandbox::of).collect::<Vec<_>>()).into_response())
}

fn answer(views: Vec<SandboxView>, wanted: &ListQuery) -> Answer<Response> {
    let limit = paging::limit(wanted.limit)?;
    let running = views.iter().filter(|view| view.state == SandboxState::Running).count();
    let (views, next) = page(views, wanted, limit)?;
    let mut response = Json(views.iter().map(ListedSandbox::of).collect::<Vec<_>>()).into_response();
    response.headers_mut().insert(RUNNING, HeaderValue::from(running));
    Ok(paging::with_next(response, next))
}

/// The newest first, unless it is asked for otherwise. A page goes on behind the last of the one before, so nothing is listed
/// twice or left out when sandboxes come and go in between.
fn page(
    mut views: Vec<SandboxView>,
    wanted: &ListQuery,
    limit: usize,
) -> Answer<(Vec<SandboxView>, Option<String>)> {
    let states: Vec<&str> =
        wanted.state.as_deref().unwrap_or_default().split(',').filter(|it| !it.is_empty()).collect();
    if states.iter().any(|state| !["running", "paused"].contains(state)) {
        return Err(malformed("invalid state: expected running, paused, or both separated by a comma"));
    }
    let metadata = query::metadata(wanted.metadata.as_deref().unwrap_or_default());
    let oldest_first = match wanted.order.as_deref() {
        None | Some("" | "desc") => false,
        Some("asc") => true,
        Some(_) => return Err(malformed("invalid order: expected asc or desc")),
    };
    let after = wanted.next_token.as_deref().filter(|token| !token.is_empty()).map(parse).transpose()?;
    let since = wanted.started_after.as_deref().map(|text| {
        let time = query::time(text).ok_or_else(|| malformed("invalid startedAfter: expected a time"))?;
        let since = time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Ok::<_, forkd_daemon::error::ApiError>(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    });
    let since = since.transpose()?;
    views.retain(|view| {
        let record = &view.record;
        let state = match view.state {
            SandboxState::Running => "running",
            SandboxState::Paused => "paused",
            SandboxState::Starting | SandboxState::Ended => return false,
        };
        let is_template = |wanted: &String| {
            template(view, &About::of(record)) == *wanted || record.snapshot.as_str() == wanted
        };
        (states.is_empty() || states.contains(&state))
            && metadata.iter().all(|(key, value)| record.metadata.get(key) == Some(value))
            && wanted.template.as_ref().is_none_or(is_template)
            && since.is_none_or(|since| record.created_unix_ms > since)
            && after.as_ref().is_none_or(|after| match oldest_first {
                true => place(view) > *after,
                false => place(view) < *after,
            })
    });
    views.sort_by_cached_key(place);
    if !oldest_first {
        views.reverse();
    }
    let more = views.len() > limit;
    views.truncate(limit);
    let next = views.last().filter(|_| more).map(|last| {
        let (created, id) = place(last);
        format!("{created}-{id}")
    });
    Ok((views, next))
}

fn place(view: &SandboxView) -> Place {
    (view.record.created_unix_ms, view.record.id.to_string())
}

fn parse(text: &str) -> Answer<Place> {
    let place = text.split_once('-').and_then(|(created, id)| Some((created.parse().ok()?, id.to_owned())));
    place.ok_or_else(|| malformed("invalid nextToken: expected x-next-token of an earlier answer"))
}
