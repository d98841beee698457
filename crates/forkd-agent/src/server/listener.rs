//! Where connections come from: TCP in development, vsock in a guest.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_vsock::{VMADDR_CID_ANY, VsockAddr, VsockListener, VsockStream};

pub trait Accept: Send + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    fn accept(&mut self) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Whether an error of a stream says that all connections were lost at once: see [`super::Peer`].
    fn is_transport_reset(_error: &io::Error) -> bool {
        false
    }
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<TcpStream> {
        let (stream, _) = TcpListener::accept(self).await?;
        // Output of processes comes in small pieces that a client waits for.
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

impl Accept for VsockListener {
    type Stream = VsockStream;

    async fn accept(&mut self) -> io::Result<VsockStream> {
        let (stream, _) = VsockListener::accept(self).await?;
        Ok(stream)
    }

    fn is_transport_reset(error: &io::Error) -> bool {
        matches!(error.kind(), io::ErrorKind::NotConnected | io::ErrorKind::ConnectionReset)
    }
}

/// Listens on a vsock port. Only the host can reach it, unless the guest has loaded `vsock_loopback`.
pub fn listen_vsock(port: u32) -> io::Result<VsockListener> {
    VsockListener::bind(VsockAddr::new(VMADDR_CID_ANY, port))
}
