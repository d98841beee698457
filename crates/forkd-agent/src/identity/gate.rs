//! The gate: between a fork and the new identity, no request is served.
//!
//! ```text
//!            POST /forkd/close            the VM is frozen, forked, restored
//!    open ───────────────────────▶ closed ─────────────────────────────────────▶ closed, in every child
//!     ▲                              │ POST /forkd/open (the source continues)      │ POST /forkd/identity
//!     └──────────────────────────────┴──────────────────────────────────────────────┘
//! ```
//!
//! A guest cannot see that it was forked. So the host closes the gate before it freezes, and the closed gate is part of the
//! snapshot: a child wakes up behind it and stays there until it has an identity. A request that comes too early waits for a
//! while and is then told to come again.
//!
//! With the gate, the guest's programs are frozen and thawed: see [`crate::children`]. A live branch is made without a word to the
//! guest, so its gate is open and its programs run until the identity comes.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tokio::sync::watch;

use crate::agent::Agent;
use forkd_proto::agent::identity::IdentityResponse;

/// How long a request waits at the closed gate.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Gate {
    open: watch::Sender<bool>,
    /// The id of the last identity, and the answer. Held while one is applied.
    pub(super) last: tokio::sync::Mutex<Option<(String, IdentityResponse)>>,
}

#[derive(Debug, thiserror::Error)]
#[error("this sandbox was forked and has no identity yet")]
pub struct Closed;

impl Default for Gate {
    fn default() -> Self {
        Self { open: watch::Sender::new(true), last: tokio::sync::Mutex::default() }
    }
}

impl Gate {
    pub fn close(&self) {
        self.open.send_replace(false);
    }

    pub fn open(&self) {
        self.open.send_replace(true);
    }

    /// Waits until the gate is open.
    pub async fn pass(&self) -> Result<(), Closed> {
        let mut open = self.open.subscribe();
        match tokio::time::timeout(PATIENCE, open.wait_for(|open| *open)).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Closed),
        }
    }
}

/// Lets requests pass when the gate is open.
pub async fn guard(State(agent): State<std::sync::Arc<Agent>>, request: Request, next: Next) -> Response {
    match agent.gate.pass().await {
        Ok(()) => next.run(request).await,
        Err(closed) => {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            let body = json!({ "code": status.as_u16(), "message": closed.to_string() });
            (status, [(header::RETRY_AFTER, "1")], axum::Json(body)).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn a_closed_gate_holds_and_then_refuses() {
        let gate = Arc::new(Gate::default());
        assert!(gate.pass().await.is_ok());
        gate.close();
        assert!(gate.pass().await.is_err());
        let waiting = tokio::spawn({
            let gate = Arc::clone(&gate);
            async move { gate.pass().await }
        });
        tokio::time::sleep(PATIENCE / 2).await;
        assert!(!waiting.is_finished());
        gate.open();
        assert!(waiting.await.unwrap().is_ok());
    }
}
