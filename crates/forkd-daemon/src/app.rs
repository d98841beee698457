//! What all handlers share.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use forkd_api::error::ErrorCode;
use forkd_engine::Engine;
use forkd_engine::library::Library;
use tokio::sync::{OwnedRwLockReadGuard, OwnedSemaphorePermit, RwLock, Semaphore, watch};
use tracing::Instrument;

use crate::audit::{Audit, AuditError};
use crate::auth::{TokenError, TokenFile, Tokens};
use crate::build_guests::BuildGuests;
use crate::config::{Config, Limits, Tls};
use crate::error::ApiError;
use crate::event_log::EventLog;
use crate::idempotency::Idempotency;
use crate::kept::KeptError;
use crate::metrics::Metrics;
use crate::protocol::Protocol;
use crate::removals::Removals;
use crate::sharing::Sharing;
use crate::snapshot_policy::PolicyFile;
use crate::trace::{RequestTrace, SpanSink};

/// The state of every handler: `State(app): State<Shared>`.
pub type Shared = Arc<App>;

/// The daemon, as handlers see it.
#[derive(Debug)]
pub struct App {
    pub engine: Engine,
    pub library: Library,
    pub build_guests: Box<dyn BuildGuests>,
    pub tokens: Tokens,
    pub audit: Audit,
    pub metrics: Metrics,
    pub idempotency: Idempotency,
    pub removals: Removals,
    pub events: EventLog,
    pub limits: Limits,
    pub mcp: forkd_mcp::Settings,
    /// Whether the TCP port is for TLS only.
    pub tls: bool,
    /// Where the daemon listens on TCP, once it does.
    pub tcp: OnceLock<SocketAddr>,
    /// The certificate of the daemon's own CA, in PEM, if it has one.
    pub ca: OnceLock<String>,
    pub protocol: Arc<dyn Protocol>,
    pub sharing: Sharing,
    pub snapshot_policy: PolicyFile,
    pub spans: Option<Arc<dyn SpanSink>>,
    /// Places for long work on the library.
    pub jobs: Arc<Semaphore>,
    stopping: watch::Sender<bool>,
    /// Held by everything that is not to be cut short.
    busy: Arc<RwLock<()>>,
    /// Places for connections that have become something else than HTTP, which their listeners no longer count.
    upgraded: Arc<Semaphore>,
}

/// The daemon cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    #[error(transparent)]
    Tokens(#[from] TokenError),
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error(transparent)]
    Kept(#[from] KeptError),
}

impl App {
    /// Reads the tokens and opens the audit log.
    pub fn new(
        config: &Config,
        engine: Engine,
        library: Library,
        build_guests: Box<dyn BuildGuests>,
        protocol: Arc<dyn Protocol>,
    ) -> Result<Shared, AppError> {
        let audit = Audit::open(config.audit.as_deref())?;
        let metrics = Metrics::default();
        metrics.register_losses(audit.lost(), config.spans.as_ref().map(|spans| spans.lost()));
        Ok(Arc::new(App {
            engine,
            library,
            build_guests,
            tokens: Tokens::open(TokenFile::new(&config.home))?,
            audit,
            metrics,
            idempotency: Idempotency::new(config.limits.idempotency),
            removals: Removals::default(),
            events: EventLog::default(),
            limits: config.limits,
            mcp: config.mcp.clone(),
            tls: config.tcp.as_ref().is_some_and(|tcp| matches!(tcp.tls, Some(Tls::Files(_)))),
            tcp: OnceLock::new(),
            ca: OnceLock::new(),
            protocol,
            sharing: Sharing::open(&config.home)?,
            snapshot_policy: PolicyFile::new(config),
            spans: config.spans.clone(),
            jobs: Arc::new(Semaphore::new(config.limits.jobs)),
            stopping: watch::Sender::new(false),
            busy: Arc::default(),
            upgraded: Arc::new(Semaphore::new(config.limits.connections)),
        }))
    }

    /// Resolves when the daemon is about to stop: handlers that answer with endless streams end them then.
    pub async fn stopping(&self) {
        let mut stopping = self.stopping.subscribe();
        // The sender lives as long as this.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    }

    /// As long as it is held, the daemon waits before it ends.
    pub async fn busy(&self) -> OwnedRwLockReadGuard<()> {
        Arc::clone(&self.busy).read_owned().await
    }

    /// Whether there is room for an image or a kernel at all. What it will take is known only when it is there.
    pub fn admit_image(&self) -> Result<(), ApiError> {
        let directory = self.library.directory();
        std::fs::create_dir_all(&directory).map_err(|error| ApiError::internal(&error))?;
        Ok(self.engine.admit_bytes(&directory, 0)?)
    }

    /// Runs something to its end, even if its caller disconnects.
    pub async fn to_its_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, ApiError> {
        let busy = self.busy().await;
        let work = RequestTrace::current().scope(async move {
            let _busy = busy;
            work.await
        });
        tokio::spawn(work.in_current_span()).await.map_err(|error| ApiError::internal(&error))
    }

    /// Waits for everything that is not to be cut short. Nothing of the kind begins from then on.
    pub async fn settled(&self) {
        std::mem::forget(self.busy.write().await);
        self.engine.settled().await;
    }

    /// A place for a connection that becomes something else than HTTP: as many as a listener has for all of its own.
    pub fn place_for_upgrade(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        Arc::clone(&self.upgraded)
            .try_acquire_owned()
            .map_err(|_| ApiError::new(ErrorCode::Unavailable, "the daemon has too many open connections"))
    }

    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    pub fn stop(&self) {
        self.stopping.send_replace(true);
        self.engine.stop();
    }
}
