//! The resolver that the host itself uses, asked from the host.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_proto::op::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::time::timeout;

use super::answer::Question;

const PORT: u16 = 53;
/// As long as the C library waits for each, and as many as it asks.
const PATIENCE: Duration = Duration::from_secs(5);
const MAX_SERVERS: usize = 3;
const ROUNDS: usize = 2;
const MAX_CONFIGURATION: u64 = 64 << 10;
/// How old what is known of the file may be.
const FRESH: Duration = Duration::from_secs(1);
/// How long a question waits for the file before it goes to the servers that were there before.
const READING: Duration = Duration::from_millis(500);

/// Who is asked.
#[derive(Debug, Clone)]
pub enum Upstream {
    /// The servers that a file names when a question comes.
    Configuration(Configuration),
    Servers(Vec<SocketAddr>),
}

impl Default for Upstream {
    fn default() -> Upstream {
        Upstream::Configuration(Configuration::new("/etc/resolv.conf"))
    }
}

/// A file that names servers, read at most once a second, in a thread that may wait for it. Clones share what is known.
#[derive(Debug, Clone)]
pub struct Configuration {
    path: PathBuf,
    known: Arc<watch::Sender<Known>>,
}

#[derive(Debug, Default)]
struct Known {
    /// `None` until the file was read.
    servers: Option<Vec<SocketAddr>>,
    read_at: Option<Instant>,
    is_being_read: bool,
}

impl Configuration {
    pub fn new(path: impl Into<PathBuf>) -> Configuration {
        Configuration { path: path.into(), known: Arc::new(watch::Sender::new(Known::default())) }
    }

    async fn servers(&self) -> Vec<SocketAddr> {
        let mut known = self.known.subscribe();
        let begins = self.known.send_if_modified(|known| {
            let fresh = known.read_at.is_some_and(|read| read.elapsed() < FRESH);
            let begins = !fresh && !known.is_being_read;
            known.is_being_read |= begins;
            begins
        });
        if begins {
            let own = self.clone();
            tokio::task::spawn_blocking(move || own.read());
        }
        // Only the first questions of all have nothing to go by.
        let patience = if known.borrow().servers.is_none() { PATIENCE } else { READING };
        if begins || known.borrow().servers.is_none() {
            let _ = timeout(patience, known.wait_for(|known| !known.is_being_read)).await;
        }
        known.borrow().servers.clone().unwrap_or_default()
    }

    fn read(&self) {
        let read = || {
            let mut text = String::new();
            let file = std::fs::File::open(&self.path)?;
            io::Read::read_to_string(&mut io::Read::take(file, MAX_CONFIGURATION), &mut text)?;
            io::Result::Ok(text)
        };
        let mut servers = parse(&read().unwrap_or_default());
        if servers.is_empty() {
            // As for the C library, a host without the file has a resolver of its own.
            servers.push((Ipv4Addr::LOCALHOST, PORT).into());
        }
        let read_at = Some(Instant::now());
        self.known.send_replace(Known { servers: Some(servers), read_at, is_being_read: false });
    }
}

impl Upstream {
    /// The answer of the first server that gives one.
    pub(super) async fn ask(&self, question: &Question) -> io::Result<Message> {
        let servers = self.servers().await;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "no upstream resolver");
        for server in std::iter::repeat_n(&servers, ROUNDS).flatten() {
            match timeout(PATIENCE, ask_one(*server, question)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => last = error,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(last)
    }

    async fn servers(&self) -> Vec<SocketAddr> {
        match self {
            Upstream::Servers(servers) => servers.clone(),
            Upstream::Configuration(configuration) => configuration.servers().await,
        }
    }
}

fn parse(text: &str) -> Vec<SocketAddr> {
    let servers = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let address: Option<IpAddr> = match (words.next(), words.next()) {
            (Some("nameserver"), Some(address)) => address.parse().ok(),
            _ => None,
        };
        address.map(|address| SocketAddr::from((address, PORT)))
    });
    servers.take(MAX_SERVERS).collect()
}

/// By datagram, from an unpredictable port; again over TCP if the answer does not fit.
async fn ask_one(server: SocketAddr, question: &Question) -> io::Result<Message> {
    let id = random()?;
    let bytes = question.upstream(id).to_vec().map_err(io::Error::other)?;
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(&bytes).await?;
    let mut buffer = vec![0; 4096];
    loop {
        let length = socket.recv(&mut buffer).await?;
        let answer = Message::from_vec(buffer.get(..length).unwrap_or_default());
        // Another sender's, or invalid: the answer may still come.
        let Ok(answer) = answer else { continue };
        if !question.is_answered_by(&answer, id) {
            continue;
        }
        if answer.metadata.truncation {
            return over_tcp(server, question, id, &bytes).await;
        }
        return Ok(answer);
    }
}

async fn over_tcp(server: SocketAddr, question: &Question, id: u16, bytes: &[u8]) -> io::Result<Message> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), bytes].concat()).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; length.into()];
    stream.read_exact(&mut answer).await?;
    let answer = Message::from_vec(&answer).map_err(io::Error::other)?;
    match question.is_answered_by(&answer, id) {
        true => Ok(answer),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn random() -> io::Result<u16> {
    let mut bytes = [0; 2];
    getrandom::fill(&mut bytes)?;
    Ok(u16::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_host_s_servers_are_found() {
        let text = "# comment\nsearch lan\nnameserver 192.0.2.1\nnameserver\nnameserver fe80::1%eth0\n\
                    nameserver 2001:db8::1 # second\nnameserver 1.1.1.1\nnameserver 8.8.8.8\n";
        let servers: Vec<String> = parse(text).iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["192.0.2.1:53", "[2001:db8::1]:53", "1.1.1.1:53"]);
        let missing = Upstream::Configuration(Configuration::new("/no/such/file"));
        assert_eq!(missing.servers().await, ["127.0.0.1:53".parse().unwrap()]);
    }

    /// A FIFO without a writer is a file that cannot be opened for a while, as on a server that does not answer.
    #[test]
    fn a_file_that_cannot_be_read_now_keeps_nobody_waiting() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("resolv.conf");
        let (ask, asked) = std::sync::mpsc::channel();
        let (told, heard) = std::sync::mpsc::channel();
        let asking = path.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let configuration = Configuration::new(&asking);
                for () in asked {
                    told.send(configuration.servers().await).unwrap();
                    tokio::time::sleep(FRESH).await;
                }
            });
        });
        let next = || {
            ask.send(()).unwrap();
            heard.recv_timeout(Duration::from_secs(20)).unwrap()
        };
        let servers = |text: &str| parse(&format!("nameserver {text}\n"));
        std::fs::write(&path, "nameserver 192.0.2.1\n").unwrap();
        assert_eq!(next(), servers("192.0.2.1"));
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        assert_eq!(next(), servers("192.0.2.1"), "those of before");
        // It can be read now.
        std::fs::write(&path, "nameserver 192.0.2.2\n").unwrap();
        assert_eq!(next(), servers("192.0.2.2"));
        // A reader may be waiting again.
        let _ = std::fs::OpenOptions::new().read(true).write(true).open(&path);
    }
}
