//! Connections to the daemon, of every kind.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::address::Address;

/// How long a connection may take to come up, TLS included.
const LIMIT: Duration = Duration::from_secs(10);
/// A peer that is gone without a word is noticed after this long, on a connection that waits.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// New connections to this host's own ports come one after another, this far apart. The port that leads into a machine is QEMU's,
/// which lets one connection wait: when more come at once, the kernel answers them with cookies, and drops or resets some.
const APART: Duration = Duration::from_millis(2);
static TURN: Mutex<()> = Mutex::const_new(());

/// A connection, whatever it is made of.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send + std::fmt::Debug {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + std::fmt::Debug> Stream for T {}

/// Makes connections to a daemon of the same process.
pub(crate) type Dial = dyn Fn() -> Box<dyn Stream> + Send + Sync;

/// Connects to a daemon, for the pool and for connections that become something else than HTTP.
#[derive(Clone)]
pub(crate) enum Connector {
    Address(Arc<(Address, Option<Arc<ClientConfig>>)>),
    InProcess(Arc<Dial>),
}

/// There is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("cannot connect to the daemon")]
    Unreachable(#[source] io::Error),
    #[error("the daemon's certificate is not trusted")]
    Untrusted(#[source] io::Error),
}

impl Connector {
    pub(crate) fn new(address: Address, tls: Option<Arc<ClientConfig>>) -> Connector {
        Connector::Address(Arc::new((address, tls)))
    }

    /// Connects within a time limit.
    pub(crate) async fn connect(&self) -> Result<Box<dyn Stream>, ConnectError> {
        let (address, tls) = match self {
            Connector::Address(to) => &**to,
            Connector::InProcess(dial) => return Ok(dial()),
        };
        let connected = timeout(LIMIT, dial(address, tls.as_ref())).await.map_err(|_| {
            let text = format!("no connection within {} s", LIMIT.as_secs());
            ConnectError::Unreachable(io::Error::new(io::ErrorKind::TimedOut, text))
        })?;
        connected.map_err(|error| match error {
            // rustls' own errors come as this kind; a peer that goes away in the handshake does not.
            Failed::Tls(source) if source.kind() == io::ErrorKind::InvalidData => {
                ConnectError::Untrusted(source)
            }
            Failed::Connect(source) | Failed::Tls(source) => ConnectError::Unreachable(source),
        })
    }
}

impl tower_service::Service<Uri> for Connector {
    type Response = Pooled;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Pooled, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    /// The address is known; the pool has the URI of a request only.
    fn call(&mut self, _: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { Ok(Pooled(TokioIo::new(connector.connect().await?))) })
    }
}

/// A connection that the pool keeps.
pub(crate) struct Pooled(TokioIo<Box<dyn Stream>>);

impl Connection for Pooled {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for Pooled {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl hyper::rt::Write for Pooled {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, slices)
    }
}

enum Failed {
    Connect(io::Error),
    Tls(io::Error),
}

async fn dial(address: &Address, tls: Option<&Arc<ClientConfig>>) -> Result<Box<dyn Stream>, Failed> {
    let (host, port) = match address {
        Address::Unix(path) => {
            return Ok(Box::new(UnixStream::connect(path).await.map_err(Failed::Connect)?));
        }
        Address::Tcp { host, port, .. } => (host, *port),
    };
    let stream = if address.is_local() {
        dial_in_turn(host, port).await
    } else {
        TcpStream::connect((host.as_str(), port)).await
    };
    let stream = stream.map_err(Failed::Connect)?;
    prepare(&stream).map_err(Failed::Connect)?;
    let Some(config) = tls else { return Ok(Box::new(stream)) };
    let name =
        ServerName::try_from(host.clone()).map_err(|error| Failed::Connect(io::Error::other(error)))?;
    let connector = TlsConnector::from(Arc::clone(config));
    Ok(Box::new(connector.connect(name, stream).await.map_err(Failed::Tls)?))
}

async fn dial_in_turn(host: &str, port: u16) -> io::Result<TcpStream> {
    let turn = TURN.lock().await;
    let stream = TcpStream::connect((host, port)).await;
    // The next one waits, not this one.
    tokio::spawn(async move {
        tokio::time::sleep(APART).await;
        drop(turn);
    });
    stream
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE)?;
    Ok(())
}

/// Trusts the CAs that this host trusts. A host without certificates trusts none, which is reported when it matters.
pub(crate) fn tls_config() -> Result<Arc<ClientConfig>, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
