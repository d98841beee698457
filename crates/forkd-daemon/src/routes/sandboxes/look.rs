//! What a sandbox prints and uses.

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::IntoResponse;
use forkd_api::error::ErrorBody;
use forkd_api::sandbox::{ReadConsole, SandboxStats};
use forkd_engine::console::Follower;

use crate::app::Shared;
use crate::auth::Caller;
use crate::error::Answer;
use crate::extract::{Json, Path, Query};
use crate::routes::checks::within;
use crate::routes::responses::SandboxErrors;
use crate::views;

const TAIL: u64 = 64 << 10;
const LONGEST: u64 = 1 << 20;

/// Returns the end of a guest's console output; with `follow`, also its later output.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/console",
    tag = "sandboxes",
    operation_id = "sandbox_console",
    params(("id" = String, Path), ReadConsole),
    responses(
        (status = 200, description = "Text; without `follow`, invalid UTF-8 is replaced", body = String, content_type = "text/plain"),
        (status = 404, description = "No sandbox has this id", body = ErrorBody),
    )
)]
pub(super) async fn console(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(wanted): Query<ReadConsole>,
) -> Answer<impl IntoResponse> {
    let bytes = within("bytes", wanted.bytes.unwrap_or(TAIL), 1..=LONGEST)?;
    app.sandbox(&caller, &id)?;
    let body = match wanted.follow {
        true => followed(app.clone(), app.engine.follow_console(&id, bytes)?),
        false => Body::from(String::from_utf8_lossy(&app.engine.console(&id, bytes)?).into_owned()),
    };
    // A guest's words are shown by no browser as a page.
    let headers = [(CONTENT_TYPE, "text/plain; charset=utf-8"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    Ok((headers, body))
}

/// Ends with the sandbox, with its reader or with the daemon.
fn followed(app: Shared, console: Follower) -> Body {
    let pieces = futures_util::stream::unfold(console, move |mut console| {
        let app = app.clone();
        async move {
            let piece = tokio::select! {
                piece = console.next() => piece,
                () = app.stopping() => return None,
            };
            piece.transpose().map(|piece| (piece, console))
        }
    });
    Body::from_stream(pieces)
}

/// Returns the resource usage of a sandbox.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/stats",
    tag = "sandboxes",
    operation_id = "sandbox_stats",
    params(("id" = String, Path)),
    responses((status = 200, description = "The current usage", body = SandboxStats), SandboxErrors)
)]
pub(super) async fn stats(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer<Json<SandboxStats>> {
    app.sandbox(&caller, &id)?;
    let usage = app.engine.usage(&id).await?;
    Ok(Json(views::stats(usage, app.engine.traffic(&id).await?)))
}
