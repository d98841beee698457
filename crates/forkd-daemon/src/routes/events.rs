//! What happens, as it happens.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use forkd_api::event::{Event, What};
use tokio::sync::broadcast::error::RecvError;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::Shared;
use crate::auth::Caller;
use crate::{ndjson, views};

pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(events))
}

/// What happens from now on to the caller's sandboxes and snapshots, a line for each event.
///
/// The stream has no end of its own. Who reads too slowly misses events, and is told how many.
#[utoipa::path(
    get,
    path = "/v1/events",
    tag = "events",
    operation_id = "events",
    responses((status = 200, description = "Lines of JSON", body = Event, content_type = "application/x-ndjson"))
)]
async fn events(State(app): State<Shared>, Extension(caller): Extension<Caller>) -> Response {
    // From before the answer, so that whoever has its head misses nothing.
    let mut happened = app.engine.happenings();
    ndjson::answer(move |lines| async move {
        loop {
            let received = tokio::select! {
                received = happened.recv() => received,
                () = app.stopping() => return,
            };
            let what = match received {
                Ok(told) if !caller.owns(&told.project) => None,
                Ok(told) => views::event(&app.engine, told.what),
                Err(RecvError::Lagged(count)) => Some(What::Missed { count }),
                Err(RecvError::Closed) => return,
            };
            if let Some(what) = what
                && lines.write(&Event { at_unix_ms: unix_ms(), what }).await.is_err()
            {
                return;
            }
        }
    })
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
