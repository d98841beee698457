//! What a sandbox uses, as its agent sees it: over time, and now.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Extension;
use axum::extract::State;
use forkd_engine::SandboxState;
use forkd_envd::metrics::{METRICS, Metrics};
use serde::Deserialize;

use super::models::Metric;
use super::sandboxes::find;
use super::series::Point;
use crate::App;
use forkd_daemon::auth::Caller;
use forkd_daemon::error::{Answer, ApiError};
use forkd_daemon::extract::{Json, Path, Query};

const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct When {
    start: Option<u64>,
    end: Option<u64>,
}

/// What was measured in the time that is asked about, and what is so now, if that is in it.
pub(super) async fn metrics(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(when): Query<When>,
) -> Answer<Json<Vec<Metric>>> {
    let sandbox = find(&app, &caller, &id)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    // Clocks differ by a little.
    let asks_now =
        when.start.is_none_or(|start| start <= now + 1) && when.end.is_none_or(|end| end + 5 >= now);
    let mut points = app.e2b.series.of(&id, when.start, when.end);
    if asks_now && sandbox.view().state == SandboxState::Running {
        let said = sandbox.answering_agent()?.get::<Metrics>(METRICS, PATIENCE).await;
        let said = said.map_err(|error| ApiError::from(forkd_engine::EngineError::Agent(error)))?;
        points.retain(|point| point.unix < now);
        points.push(Point::of(now, &said));
    }
    Ok(Json(points.iter().map(Metric::of).collect()))
}
