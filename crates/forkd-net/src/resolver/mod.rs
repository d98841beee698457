//! The resolver of a sandbox: the only one that it can ask, in its own namespace, answered by this process.
//!
//! ```text
//!   guest ── question ──▶ 198.19.255.1:53 ── allowed? ── no ──▶ NXDOMAIN
//!                                              └─ yes ─▶ upstream, from the host ─▶ open the addresses ─▶ answer
//! ```
//!
//! An answer's addresses are open before the guest has it.

mod answer;
mod upstream;

pub use upstream::Upstream;

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Message, ResponseCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::drops::{self, GROUP, LOGGED_BYTES, Notices};
use crate::error::blocking;
use crate::lease::Inside;
use crate::log_socket::{LogSocket, listen};
use crate::namespace::Namespace;
use crate::plan::{GATEWAY4, GATEWAY6};
use answer::{Decision, Question, decide};

const PORT: u16 = 53;
/// Questions and connections of one guest at the same time. Further ones wait for a place, or are lost on the way as
/// datagrams are.
const QUESTIONS: usize = 64;
const CONNECTIONS: usize = 16;
/// No question is longer.
const MAX_QUESTION: usize = 4096;
const IDLE: Duration = Duration::from_secs(10);

/// Sockets of a namespace, made there.
#[derive(Debug)]
pub(crate) struct Sockets {
    datagrams: Vec<UdpSocket>,
    listeners: Vec<TcpListener>,
    /// What is dropped in the namespace.
    log: OwnedFd,
}

impl Sockets {
    pub fn open(namespace: &Namespace, ipv6: bool) -> io::Result<Sockets> {
        namespace.run(|| Sockets::open_here(ipv6))
    }

    /// In the calling thread's namespace.
    pub fn open_here(ipv6: bool) -> io::Result<Sockets> {
        let addresses = [SocketAddr::from((GATEWAY4, PORT)), SocketAddr::from((GATEWAY6, PORT))];
        let mut sockets =
            Sockets { datagrams: Vec::new(), listeners: Vec::new(), log: listen(GROUP, LOGGED_BYTES)? };
        for address in addresses.into_iter().filter(|address| address.is_ipv4() || ipv6) {
            let (datagrams, listener) = (UdpSocket::bind(address)?, TcpListener::bind(address)?);
            datagrams.set_nonblocking(true)?;
            listener.set_nonblocking(true)?;
            sockets.datagrams.push(datagrams);
            sockets.listeners.push(listener);
        }
        Ok(sockets)
    }
}

/// What answers a sandbox's questions. It ends with this value.
#[derive(Debug)]
pub struct Resolver {
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Answering {
    inside: Arc<Inside>,
    upstream: Upstream,
    notices: Arc<Notices>,
    questions: Semaphore,
}

impl Resolver {
    /// Begins to answer, in the runtime that this is called in.
    pub(crate) fn start(
        sockets: Sockets,
        inside: Arc<Inside>,
        upstream: Upstream,
        notices: Arc<Notices>,
    ) -> io::Result<Resolver> {
        let mut tasks = JoinSet::new();
        tasks.spawn(drops::watch(LogSocket::new(sockets.log)?, Arc::clone(&notices)));
        let questions = Semaphore::new(QUESTIONS);
        let answering = Arc::new(Answering { inside, upstream, notices, questions });
        for socket in sockets.datagrams {
            let socket = Arc::new(tokio::net::UdpSocket::from_std(socket)?);
            tasks.spawn(serve_datagrams(socket, Arc::clone(&answering)));
        }
        for listener in sockets.listeners {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            tasks.spawn(serve_connections(listener, Arc::clone(&answering)));
        }
        Ok(Resolver { tasks })
    }

    /// Ends it. Its listeners are closed when this returns; what it was answering is a moment later.
    pub(crate) async fn end(mut self) {
        self.tasks.shutdown().await;
    }
}

async fn serve_datagrams(socket: Arc<tokio::net::UdpSocket>, answering: Arc<Answering>) {
    // They end with this task.
    let mut tasks = JoinSet::new();
    let mut buffer = vec![0; MAX_QUESTION];
    loop {
        // An error is of one datagram: the guest has closed the port that an answer went to.
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
            tokio::task::yield_now().await;
            continue;
        };
        while tasks.try_join_next().is_some() {}
        if tasks.len() >= QUESTIONS {
            continue;
        }
        let asked = buffer.get(..length).unwrap_or_default().to_vec();
        let (socket, answering) = (Arc::clone(&socket), Arc::clone(&answering));
        tasks.spawn(async move {
            let Some((message, largest)) = answering.answer(&asked).await else { return };
            let Ok(bytes) = message.to_vec() else { return };
            let bytes = match bytes.len() <= largest {
                true => bytes,
                false => message.truncate().to_vec().unwrap_or_default(),
            };
            // A guest that is gone waits for nothing.
            let _ = socket.send_to(&bytes, from).await;
        });
    }
}

async fn serve_connections(listener: tokio::net::TcpListener, answering: Arc<Answering>) {
    let mut tasks = JoinSet::new();
    loop {
        if tasks.len() >= CONNECTIONS {
            tasks.join_next().await;
            continue;
        }
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = tasks.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                // If it ends on the way, it leaves nothing behind: the kernel sends nothing more to the slot's next guest.
                if stream.set_zero_linger().is_err() {
                    continue;
                }
                let answering = Arc::clone(&answering);
                // A connection that breaks is the guest's to make again.
                tasks.spawn(async move { drop(serve_connection(stream, &answering).await) });
            }
            // Of one connection, or of descriptors, which will be there again later.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn serve_connection(mut stream: tokio::net::TcpStream, answering: &Answering) -> io::Result<()> {
    loop {
        let read = async {
            let length = usize::from(stream.read_u16().await?);
            if length > MAX_QUESTION {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let mut asked = vec![0; length];
            stream.read_exact(&mut asked).await?;
            io::Result::Ok(asked)
        };
        let asked = timeout(IDLE, read).await?;
        let asked = match asked {
            // The guest has said all that it wanted, and gets what it has not read yet.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return close(stream),
            asked => asked?,
        };
        let Some((message, _)) = answering.answer(&asked).await else { return Ok(()) };
        let bytes = message.to_vec().map_err(io::Error::other)?;
        let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
        timeout(IDLE, stream.write_all(&[&length.to_be_bytes(), &bytes[..]].concat())).await??;
    }
}

/// Closes a connection in order, which leaves no trace where the other side has closed it first.
fn close(stream: tokio::net::TcpStream) -> io::Result<()> {
    let linger = rustix::net::sockopt::set_socket_linger(&stream, None);
    drop(stream);
    Ok(linger?)
}

impl Answering {
    /// The answer, and how large it may be in a datagram.
    async fn answer(&self, asked: &[u8]) -> Option<(Message, usize)> {
        let _place = self.questions.acquire().await.ok()?;
        let policy = self.inside.policy();
        match decide(asked, &policy) {
            Decision::Ignore => None,
            Decision::Answer(message) => {
                if message.metadata.response_code == ResponseCode::NXDomain
                    && let Some(query) = message.queries.first()
                {
                    let name = query.name().to_ascii();
                    self.notices.refused_name(name.strip_suffix('.').unwrap_or(&name).to_owned());
                }
                Some((*message, usize::MAX))
            }
            Decision::Forward(question) => {
                let datagram = question.datagram;
                let answered = self.forward(&question).await;
                let message = answered.unwrap_or_else(|error| {
                    tracing::debug!(error = &error as &dyn std::error::Error, "cannot resolve a name");
                    question.failed()
                });
                Some((message, datagram))
            }
        }
    }

    async fn forward(&self, question: &Question) -> io::Result<Message> {
        let answer = self.upstream.ask(question).await?;
        // The policy may have changed while a server was asked.
        let policy = self.inside.policy();
        let reply = question.reply(answer, &policy);
        if reply.open.is_empty() {
            return Ok(reply.message);
        }
        let inside = Arc::clone(&self.inside);
        let opened = blocking(move || inside.open(&policy, &reply.entries, &reply.open)).await;
        match opened.map_err(io::Error::other)? {
            true => Ok(reply.message),
            false => Err(io::Error::other("the policy has changed")),
        }
    }
}
