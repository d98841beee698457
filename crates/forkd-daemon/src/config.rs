//! What the daemon is told when it starts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::idempotency::Bounds;
use crate::trace::SpanSink;

/// Where the daemon listens, and what it keeps. It does not read files or the environment for it: the command line does.
#[derive(Debug, Clone)]
pub struct Config {
    /// The directory of forkd's files, with the tokens.
    pub home: PathBuf,
    pub socket: Option<Socket>,
    pub tcp: Option<Tcp>,
    /// The audit log; without one, none is kept.
    pub audit: Option<PathBuf>,
    /// The policy for snapshots in registries, which must be there; without one, `snapshot-policy.toml` in `home`, if it is there.
    pub snapshot_policy: Option<PathBuf>,
    pub limits: Limits,
    /// What models are offered at `/mcp`.
    pub mcp: forkd_mcp::Settings,
    /// Where the spans of requests go; without one, none are recorded.
    pub spans: Option<Arc<dyn SpanSink>>,
}

/// A Unix socket. Everyone who may connect to it is an admin.
#[derive(Debug, Clone)]
pub struct Socket {
    pub path: PathBuf,
    /// The group that may connect, beside the daemon's own user.
    pub group: Option<u32>,
}

#[derive(Debug, Clone)]
pub struct Tcp {
    pub address: SocketAddr,
    /// Without it, plain HTTP only.
    pub tls: Option<Tls>,
}

/// What the TCP port's TLS is made with.
#[derive(Debug, Clone)]
pub enum Tls {
    /// Files. Plain HTTP is not spoken.
    Files(TlsFiles),
    /// The daemon's own CA, for the loopback and for these domains with the names below them. Plain HTTP is spoken, too, on the
    /// same port.
    Own(Vec<String>),
}

/// Files in PEM: the chain of certificates, the daemon's own first, and its key.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// What a client can make the daemon spend.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// A JSON body.
    pub json_bytes: usize,
    /// A file or an archive for a sandbox.
    pub file_bytes: u64,
    /// The head of a request, and the pause between two requests of a connection.
    pub head_time: Duration,
    /// A JSON body, or the next piece of an upload.
    pub body_time: Duration,
    /// How long an answer waits for a client that does not read it.
    pub write_time: Duration,
    /// Open connections, for each listener: those of the TCP port cannot lock out the Unix socket.
    pub connections: usize,
    /// How long a guest may take no more of what is sent to it, or send no more of what it has begun to send.
    pub guest_time: Duration,
    /// What requests get to come to their end when the daemon is to stop.
    pub stop_time: Duration,
    pub idempotency: Bounds,
    /// Images and kernels that are made at once.
    pub jobs: usize,
    /// The archive of an image.
    pub image_bytes: u64,
    /// The archive of a build context.
    pub context_bytes: u64,
    /// The archive of a kernel with its modules.
    pub kernel_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            json_bytes: 1 << 20,
            file_bytes: 64 << 30,
            head_time: Duration::from_secs(30),
            body_time: Duration::from_secs(30),
            write_time: Duration::from_secs(60),
            connections: 4096,
            guest_time: Duration::from_secs(120),
            stop_time: Duration::from_secs(10),
            idempotency: Bounds::default(),
            jobs: 4,
            image_bytes: 64 << 30,
            context_bytes: 16 << 30,
            kernel_bytes: 2 << 30,
        }
    }
}
