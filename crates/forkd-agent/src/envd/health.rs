//! `GET /health`: the agent answers, so the sandbox runs.

use axum::http::StatusCode;

pub async fn health() -> StatusCode {
    StatusCode::NO_CONTENT
}
