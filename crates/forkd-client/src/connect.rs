//! Connections to the daemon, of every kind.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::address::Address;
use crate::error::ClientError;

/// How long a connection may take to come up, TLS included.
const LIMIT: Duration = Duration::from_secs(10);
/// A peer that is gone without a word is noticed after this long, on a connection that waits.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// New connections to this host's own ports come one after another, this far apart. The port that leads into a machine is QEMU's,
/// which lets one connection wait: when more come at once, the kernel answers them with cookies, and drops or resets some.
const APART: Duration = Duration::from_millis(2);
static TURN: Mutex<()> = Mutex::const_new(());

/// A connection, whatever it is made of.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + std::fmt::Debug {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + std::fmt::Debug> Stream for T {}

/// Connects within a time limit.
pub(crate) async fn connect(
    address: &Address,
    tls: Option<&Arc<ClientConfig>>,
) -> Result<Box<dyn Stream>, ClientError> {
    let unreachable = |source| ClientError::Unreachable { address: address.to_string(), source };
    let connected = timeout(LIMIT, dial(address, tls)).await.map_err(|_| {
        unreachable(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("no connection within {} s", LIMIT.as_secs()),
        ))
    })?;
    connected.map_err(|error| match error {
        Failed::Connect(source) => unreachable(source),
        // rustls' own errors come as this kind; a peer that goes away in the handshake does not.
        Failed::Tls(source) if source.kind() == io::ErrorKind::InvalidData => {
            ClientError::Untrusted { address: address.to_string(), source }
        }
        Failed::Tls(source) => unreachable(source),
    })
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

/// Trusts whom this host trusts. A host without certificates trusts nobody, which is said when it matters.
pub(crate) fn tls_config() -> Result<Arc<ClientConfig>, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
