//! Listening: a Unix socket, a TCP port, and the way from the first connection to the last.
//!
//! ```text
//! bind ──▶ serve ──────────────────────────▶ stopping ─────────────────────▶ end
//!           accepts; reload() reopens the     nothing new is taken; what is   the rest
//!           audit log and the certificate     being answered has stop_time    is cut off
//! ```

pub(crate) mod connection;
mod own_ca;
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
use tokio_rustls::server::TlsStream;

use crate::app::Shared;
use crate::audit::AuditError;
use crate::auth::Peer;
use crate::config::{Config, Tls};
use crate::error::chain;

use own_ca::OwnCa;
pub use tls::TlsError;
pub use unix::SocketError;

/// After a refused accept (no descriptors left, mostly), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often it is written down when tokens were used.
const USAGE_INTERVAL: Duration = Duration::from_secs(60);

/// The daemon cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("nothing to listen on: neither a socket nor an address is set")]
    Nowhere,
    #[error(
        "{0} is reachable from other hosts, but no token exists to protect it; make one (forkd token \
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
    speaks: Speaks,
    /// Of files, which may change.
    certificate: Option<Arc<tls::Certificate>>,
}

/// What connections of the TCP port begin with.
#[derive(Clone)]
enum Speaks {
    Plain,
    Tls(TlsAcceptor),
    /// Each connection as its first byte says.
    Both(TlsAcceptor),
}

impl std::fmt::Debug for Speaks {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Speaks::Plain => "Plain",
            Speaks::Tls(_) => "Tls",
            Speaks::Both(_) => "Both",
        })
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
                if !address.ip().is_loopback() && !app.tls {
                    tracing::warn!(%address, "plain HTTP sends tokens unencrypted: without --tls-cert, listen only on trusted networks");
                }
                let (speaks, certificate) = match &tcp.tls {
                    None => (Speaks::Plain, None),
                    Some(Tls::Files(files)) => {
                        let certificate = tls::Certificate::open(files)?;
                        (Speaks::Tls(certificate.acceptor()?), Some(certificate))
                    }
                    Some(Tls::Own(domains)) => {
                        let ca = OwnCa::open(&config.home, domains, address.ip())?;
                        app.ca.get_or_init(|| ca.certificate().to_owned());
                        (Speaks::Both(tls::acceptor(ca)?), None)
                    }
                };
                let failed = |source| BindError::Tcp { address, source };
                let listener = TcpListener::bind(address).await.map_err(failed)?;
                let address = listener.local_addr().map_err(failed)?;
                app.tcp.get_or_init(|| address);
                Some(BoundTcp { listener, address, speaks, certificate })
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
        let certificate = self.tcp.as_ref().and_then(|tcp| tcp.certificate.clone());
        Handle { app: self.app.clone(), certificate }
    }

    /// Answers requests until it is stopped.
    pub async fn serve(self, router: Router) {
        let Server { app, unix, tcp } = self;
        let mut chores = JoinSet::new();
        chores.spawn(write_usage(app.clone()));
        if let Some(certificate) = tcp.as_ref().and_then(|tcp| tcp.certificate.clone()) {
            chores.spawn(watch(certificate));
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
    let BoundTcp { listener, address, speaks, .. } = tcp;
    let loopback = address.ip().is_loopback();
    let mut connections = Connections::new(app);
    while let Some((stream, address)) = connections.next(|| listener.accept()).await {
        let Some(place) = connections.place() else {
            if !matches!(speaks, Speaks::Tls(_)) {
                refuse_tcp(stream);
            }
            continue;
        };
        // Answers are written whole; waiting for more to send only delays them. It fails for a connection that is gone.
        let _ = stream.set_nodelay(true);
        let (app, router, speaks) = (app.clone(), router.clone(), speaks.clone());
        connections.tasks.spawn(async move {
            let peer = |tls| Peer::Tcp { address, loopback, tls };
            let begun = tokio::select! {
                begun = tokio::time::timeout(app.limits.head_time, begin(stream, speaks)) => begun,
                () = app.stopping() => return,
            };
            match begun {
                Ok(Ok(Begun::Plain(stream))) => connection::serve(stream, peer(false), app, router).await,
                Ok(Ok(Begun::Tls(stream))) => connection::serve(stream, peer(true), app, router).await,
                Ok(Err(error)) => tracing::debug!(%address, %error, "TLS handshake failed"),
                Err(_) => {
                    tracing::debug!(%address, "timed out before the first byte or in the TLS handshake")
                }
            }
            drop(place);
        });
    }
    drop(listener);
    connections.finish().await;
}

/// A connection whose first bytes were exchanged.
enum Begun {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// The first byte of a TLS connection: its record is a handshake. No method of HTTP begins with it.
const HANDSHAKE: u8 = 0x16;

async fn begin(stream: TcpStream, speaks: Speaks) -> io::Result<Begun> {
    let acceptor = match speaks {
        Speaks::Plain => return Ok(Begun::Plain(stream)),
        Speaks::Tls(acceptor) => acceptor,
        Speaks::Both(acceptor) => {
            let mut first = [0];
            stream.peek(&mut first).await?;
            if first != [HANDSHAKE] {
                return Ok(Begun::Plain(stream));
            }
            acceptor
        }
    };
    Ok(Begun::Tls(Box::new(acceptor.accept(stream).await?)))
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
                        tracing::warn!(%error, "cannot accept a connection");
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
            tracing::warn!(limit = self.app.limits.connections, "too many connections: refused one");
        }
        place
    }

    /// Waits until all have ended, then ends those that are left.
    async fn finish(mut self) {
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(self.app.limits.stop_time, all).await.is_err() {
            tracing::warn!(connections = self.tasks.len(), "closed connections that did not end in time");
            self.tasks.shutdown().await;
        }
    }
}

fn too_many() -> Vec<u8> {
    stream::plain_answer(ErrorCode::Unavailable, "the daemon has too many open connections")
}

/// An empty socket has room for a few hundred bytes, so that no write waits for a reader.
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
        tracing::warn!(error = %chain(&error), "cannot write when tokens were last used");
    }
}
