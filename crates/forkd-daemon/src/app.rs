//! What all handlers share.

use std::sync::Arc;

use tokio::sync::watch;

use crate::audit::{Audit, AuditError};
use crate::auth::{TokenError, TokenFile, Tokens};
use crate::config::{Config, Limits};
use crate::idempotency::Idempotency;
use crate::metrics::Metrics;

/// The state of every handler: `State(app): State<Shared>`.
pub type Shared = Arc<App>;

/// The daemon, as handlers see it. The engine's handle belongs here, too.
#[derive(Debug)]
pub struct App {
    pub tokens: Tokens,
    pub audit: Audit,
    pub metrics: Metrics,
    pub idempotency: Idempotency,
    pub limits: Limits,
    stopping: watch::Sender<bool>,
}

/// The daemon cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    #[error(transparent)]
    Tokens(#[from] TokenError),
    #[error(transparent)]
    Audit(#[from] AuditError),
}

impl App {
    /// Reads the tokens and opens the audit log.
    pub fn new(config: &Config) -> Result<Shared, AppError> {
        let audit = Audit::open(config.audit.as_deref())?;
        let metrics = Metrics::default();
        metrics.register(|registry| {
            registry.register("audit_lost_lines", "Lines that the audit log misses", audit.lost());
        });
        Ok(Arc::new(App {
            tokens: Tokens::open(TokenFile::new(&config.home))?,
            audit,
            metrics,
            idempotency: Idempotency::new(config.limits.idempotency),
            limits: config.limits,
            stopping: watch::Sender::new(false),
        }))
    }

    /// Resolves when the daemon is about to stop: handlers that answer with endless streams end them then.
    pub async fn stopping(&self) {
        let mut stopping = self.stopping.subscribe();
        // The sender lives as long as this.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    }

    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    pub(crate) fn stop(&self) {
        self.stopping.send_replace(true);
    }
}
