//! Where connections come from: TCP in development, vsock in a guest.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_vsock::{VMADDR_CID_ANY, VsockAddr, VsockListener, VsockStream};

pub trait Accept: Send + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    fn accept(&mut self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<TcpStream> {
        let (stream, _) = TcpListener::accept(self).await?;
        // Output of processes comes in small pieces that somebody waits for.
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
}

/// Listens on a vsock port. Only the host can reach it, unless the guest has loaded `vsock_loopback`.
pub fn listen_vsock(port: u32) -> io::Result<VsockListener> {
    VsockListener::bind(VsockAddr::new(VMADDR_CID_ANY, port))
}
