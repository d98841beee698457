//! What a sandbox uses, as its agent sees it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Extension;
use axum::extract::State;
use forkd_engine::SandboxState;
use forkd_envd::metrics::{METRICS, Metrics};
use serde::Deserialize;

use super::models::{Metric, date};
use super::sandboxes::find;
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

/// As of now, if that is in the time that is asked about. Nothing is measured before somebody asks.
pub(super) async fn metrics(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(when): Query<When>,
) -> Answer<Json<Vec<Metric>>> {
    let sandbox = find(&app, &caller, &id)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    // Clocks differ by a little.
    let asked = when.start.is_none_or(|start| start <= now + 1) && when.end.is_none_or(|end| end + 5 >= now);
    if !asked || sandbox.view().state != SandboxState::Running {
        return Ok(Json(Vec::new()));
    }
    let said = sandbox.answering_agent()?.get::<Metrics>(METRICS, PATIENCE).await;
    let said = said.map_err(|error| ApiError::from(forkd_engine::EngineError::Agent(error)))?;
    Ok(Json(vec![Metric {
        timestamp: date(now.saturating_mul(1000)),
        timestamp_unix: now,
        cpu_count: said.cpu_count,
        cpu_used_pct: said.cpu_used_pct,
        mem_used: said.mem_used,
        mem_total: said.mem_total,
        mem_cache: said.mem_cache,
        disk_used: said.disk_used,
        disk_total: said.disk_total,
    }]))
}
