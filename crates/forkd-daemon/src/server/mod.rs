//! Listening: a Unix socket, a TCP port, and the way from the first connection to the last.
//!
//! ```text
//! bind ──▶ serve ──────────────────────────▶ stopping ─────────────────────▶ end
//!           accepts; reload() reopens the     nothing new is taken; what is   what is left
//!           audit log and the certificate     being answered has stop_time    is cut off
//! ```

pub(crate) mod connection;
mod stream;
mod tls;
mod unix;

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use forkd_api::error::ErrorCode;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::app::Shared;
use crate::audit::AuditError;
use crate::auth::Peer;
use crate::config::Config;
use crate::error::chain;

pub use tls::TlsError;
pub use unix::SocketError;

/// After a refused accept (no descriptors left, mostly), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often it is written down when tokens were used.
const USAGE_INTERVAL: Duration = Duration::from_secs(60);

/// The daemon cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("there is nothing to listen on: neither a socket nor an address")]
    Nowhere,
    #[error(
        "{0} can be reached from other hosts, and there is no token that would protect it; make one (forkd token \
         create NAME --scope run), or listen on 127.0.0.1"
    )]
    Unprotected(SocketAddr),
    #[error("cannot listen on {address}; choose another address (--listen)")]
    Tcp { address: SocketAddr, source: io::Error },
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A daemon that listens.
#[derive(Debug)]
pub struct Server {
    app: Shared,
    unix: Option<(UnixListener, unix::SocketFile)>,
    tcp: Option<BoundTcp>,
}

#[derive(Debug)]
struct BoundTcp {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<(Arc<tls::Certificate>, Acceptor)>,
}

#[derive(Clone)]
struct Acceptor(TlsAcceptor);

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Acceptor")
    }
}

/// Stops and reloads a daemon from elsewhere: the handlers of signals, and tests.
#[derive(Debug, Clone)]
pub struct Handle {
    app: Shared,
    certificate: Option<Arc<tls::Certificate>>,
}

impl Handle {
    /// Begins to stop. `Server::serve` returns when it is done.
    pub fn stop(&self) {
        self.app.stop();
    }

    /// Opens the audit log by its name again, and reads the certificate if it has changed.
    pub async fn reload(&self) -> Result<(), AuditError> {
        if let Some(certificate) = &self.certificate {
            refresh(Arc::clone(certificate)).await;
        }
        self.app.audit.reopen().await
    }
}

async fn refresh(certificate: Arc<tls::Certificate>) {
    // A panic in it was printed where it happened.
    let _ = tokio::task::spawn_blocking(move || certificate.refresh()).await;
}

impl Server {
    /// Listens; from now on connections wait to be accepted.
    pub async fn bind(config: &Config, app: Shared) -> Result<Server, BindError> {
        if config.socket.is_none() && config.tcp.is_none() {
            return Err(BindError::Nowhere);
        }
        let tcp = match &config.tcp {
            None => None,
            Some(tcp) => {
                let address = tcp.address;
                if !address.ip().is_loopback() && !app.tokens.any() {
                    return Err(BindError::Unprotected(address));
                }
                if !address.ip().is_loopback() && tcp.tls.is_none() {
                    tracing::warn!(%address, "tokens travel in the clear: without TLS, listen on networks you trust");
                }
                let tls = match &tcp.tls {
                    None => None,
                    Some(files) => {
                        let certificate = tls::Certificate::open(files)?;
                        let acceptor = Acceptor(certificate.acceptor()?);
                        Some((certificate, acceptor))
                    }
                };
                let failed = |source| BindError::Tcp { address, source };
                let listener = TcpListener::bind(address).await.map_err(failed)?;
                let address = listener.local_addr().map_err(failed)?;
                Some(BoundTcp { listener, address, tls })
            }
        };
        // The last step: its file tells others that the daemon is there.
        let unix = config.socket.as_ref().map(unix::bind).transpose()?;
        Ok(Server { app, unix, tcp })
    }

    /// The TCP address, with its port when the kernel has chosen it.
    pub fn address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().map(|tcp| tcp.address)
    }

    pub fn socket(&self) -> Option<&Path> {
        self.unix.as_ref().map(|(_, file)| file.path())
    }

    pub fn handle(&self) -> Handle {
        let tls = self.tcp.as_ref().and_then(|tcp| tcp.tls.as_ref());
        Handle { app: self.app.clone(), certificate: tls.map(|(certificate, _)| Arc::clone(certificate)) }
    }

    /// Answers requests until somebody says stop.
    pub async fn serve(self, router: Router) {
        let Server { app, unix, tcp } = self;
        let mut chores = JoinSet::new();
        chores.spawn(write_usage(app.clone()));
        if let Some((certificate, _)) = tcp.as_ref().and_then(|tcp| tcp.tls.as_ref()) {
            chores.spawn(watch(Arc::clone(certificate)));
        }
        let (unix, _file) = unix.unzip();
        let over_unix = async {
            if let Some(listener) = unix {
                accept_unix(listener, &app, &router).await;
            }
        };
        let over_tcp = async {
            if let Some(tcp) = tcp {
                accept_tcp(tcp, &app, &router).await;
            }
        };
        tokio::join!(over_unix, over_tcp);
        drop(chores);
        flush_usage(app.clone()).await;
        app.audit.flush().await;
    }
}

async fn accept_unix(listener: UnixListener, app: &Shared, router: &Router) {
    let mut connections = Connections::new(app);
    while let Some((stream, _)) = connections.next(|| listener.accept()).await {
        let uid = stream.peer_cred().ok().map(|credentials| credentials.uid());
        let Some(place) = connections.place() else {
            refuse_unix(stream);
            continue;
        };
        let (app, router) = (app.clone(), router.clone());
        connections.tasks.spawn(async move {
            connection::serve(stream, Peer::Unix { uid }, app, router).await;
            drop(place);
        });
    }
    drop(listener);
    connections.finish().await;
}

async fn accept_tcp(tcp: BoundTcp, app: &Shared, router: &Router) {
    let BoundTcp { listener, address, tls } = tcp;
    let acceptor = tls.map(|(_, acceptor)| acceptor);
    let loopback = address.ip().is_loopback();
    let mut connections = Connections::new(app);
    while let Some((stream, address)) = connections.next(|| listener.accept()).await {
        let Some(place) = connections.place() else {
            if acceptor.is_none() {
                refuse_tcp(stream);
            }
            continue;
        };
        // Answers are written whole; waiting for more to send only delays them. It fails for a connection that is gone.
        let _ = stream.set_nodelay(true);
        let peer = Peer::Tcp { address, loopback };
        let (app, router, acceptor) = (app.clone(), router.clone(), acceptor.clone());
        connections.tasks.spawn(async move {
            match acceptor {
                None => connection::serve(stream, peer, app, router).await,
                Some(Acceptor(acceptor)) => {
                    match tokio::time::timeout(app.limits.head_time, acceptor.accept(stream)).await {
                        Ok(Ok(stream)) => connection::serve(stream, peer, app, router).await,
                        Ok(Err(error)) => tracing::debug!(%address, %error, "no TLS was agreed on"),
                        Err(_) => tracing::debug!(%address, "no TLS was agreed on in time"),
                    }
                }
            }
            drop(place);
        });
    }
    drop(listener);
    connections.finish().await;
}

/// The connections of one listener.
struct Connections {
    app: Shared,
    places: Arc<Semaphore>,
    tasks: JoinSet<()>,
}

impl Connections {
    fn new(app: &Shared) -> Connections {
        let places = Arc::new(Semaphore::new(app.limits.connections));
        Connections { app: app.clone(), places, tasks: JoinSet::new() }
    }

    /// The next connection; `None` when the daemon is to stop.
    async fn next<T, F: Future<Output = io::Result<T>>>(&mut self, accept: impl Fn() -> F) -> Option<T> {
        let stopping = self.app.stopping();
        tokio::pin!(stopping);
        loop {
            tokio::select! {
                () = &mut stopping => return None,
                Some(_) = self.tasks.join_next() => {}
                accepted = accept() => match accepted {
                    Ok(connection) => return Some(connection),
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }

    /// `None` when there are too many. Such a connection is told so at once: one that waits unaccepted looks like a daemon
    /// that hangs.
    fn place(&self) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok();
        if place.is_none() {
            tracing::warn!(limit = self.app.limits.connections, "too many connections: one was refused");
        }
        place
    }

    /// Waits until all have ended, then ends those that are left.
    async fn finish(mut self) {
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(self.app.limits.stop_time, all).await.is_err() {
            tracing::warn!(connections = self.tasks.len(), "connections were cut off");
            self.tasks.shutdown().await;
        }
    }
}

fn too_many() -> Vec<u8> {
    stream::plain_answer(ErrorCode::Unavailable, "the daemon has too many open connections")
}

/// An empty socket has room for a few hundred bytes, so that nobody waits for them to be read.
fn refuse_unix(stream: UnixStream) {
    let _ = stream.try_write(&too_many());
}

fn refuse_tcp(stream: TcpStream) {
    let _ = stream.try_write(&too_many());
    // Closed with bytes unread, the connection would be reset and the answer lost.
    tokio::spawn(async move {
        let mut stream = stream;
        let _ = stream.shutdown().await;
        let mut rest = [0; 1024];
        let drain = async {
            while tokio::io::AsyncReadExt::read(&mut stream, &mut rest).await.is_ok_and(|n| n > 0) {}
        };
        let _ = tokio::time::timeout(Duration::from_secs(1), drain).await;
    });
}

async fn watch(certificate: Arc<tls::Certificate>) {
    loop {
        tokio::time::sleep(tls::INTERVAL).await;
        refresh(Arc::clone(&certificate)).await;
    }
}

async fn write_usage(app: Shared) {
    loop {
        tokio::time::sleep(USAGE_INTERVAL).await;
        flush_usage(app.clone()).await;
    }
}

async fn flush_usage(app: Shared) {
    let written = tokio::task::spawn_blocking(move || app.tokens.write_usage()).await;
    if let Ok(Err(error)) = written {
        tracing::warn!(error = %chain(&error), "it was not written down when tokens were used");
    }
}
