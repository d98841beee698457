//! A way to a registry that breaks off or stalls after so many bytes, and counts what comes back.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::engine::process::Failure;

/// The answer to requests after the cut. The client must not retry any of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    Unauthorized,
    Forbidden,
    TooManyRequests,
}

impl Refusal {
    fn answer(self) -> String {
        let (status, header) = match self {
            Refusal::Unauthorized => ("401 Unauthorized", "www-authenticate: Basic realm=\"test\"\r\n"),
            Refusal::Forbidden => ("403 Forbidden", ""),
            Refusal::TooManyRequests => ("429 Too Many Requests", "retry-after: 7200\r\n"),
        };
        format!("HTTP/1.1 {status}\r\n{header}content-length: 0\r\nconnection: close\r\n\r\n")
    }
}

/// It ends with the test's process.
#[derive(Debug)]
pub struct CuttingProxy {
    /// `127.0.0.1:PORT`
    pub address: String,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    to: String,
    /// Bytes that have come back since the last time, and after how many the way ends.
    passed: AtomicU64,
    limit: AtomicU64,
    /// Whether connections stay open then.
    stalls: AtomicBool,
    /// If not: the answer to new ones.
    refusal: Mutex<Refusal>,
}

impl CuttingProxy {
    pub fn start(to: &str) -> Result<CuttingProxy, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let state = Arc::new(State {
            to: to.into(),
            passed: AtomicU64::new(0),
            limit: AtomicU64::new(u64::MAX),
            stalls: AtomicBool::new(false),
            refusal: Mutex::new(Refusal::Forbidden),
        });
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let state = Arc::clone(&shared);
                // Either side breaks off when it likes.
                thread::spawn(move || drop(state.serve(client)));
            }
        });
        Ok(CuttingProxy { address, state })
    }

    /// Lets so many bytes come back from now on. Then connections are closed.
    pub fn cut_after(&self, bytes: u64) {
        self.cut_with(bytes, Refusal::Forbidden);
    }

    /// The same, with this answer to new connections.
    pub fn cut_with(&self, bytes: u64, refusal: Refusal) {
        *self.state.refusal.lock().unwrap_or_else(PoisonError::into_inner) = refusal;
        self.limit(bytes);
        self.state.stalls.store(false, Ordering::SeqCst);
    }

    /// The same, but then nothing comes any more.
    pub fn stall_after(&self, bytes: u64) {
        self.state.stalls.store(true, Ordering::SeqCst);
        self.limit(bytes);
    }

    fn limit(&self, bytes: u64) {
        // In this order: a stalled connection must not see the old limit with the new count.
        self.state.limit.store(bytes, Ordering::SeqCst);
        self.state.passed.store(0, Ordering::SeqCst);
    }

    /// Bytes that have come back since.
    pub fn passed(&self) -> u64 {
        self.state.passed.load(Ordering::SeqCst)
    }
}

impl State {
    fn is_cut(&self) -> bool {
        self.passed.load(Ordering::SeqCst) >= self.limit.load(Ordering::SeqCst)
    }

    fn serve(&self, mut client: TcpStream) -> io::Result<()> {
        if self.is_cut() && !self.stalls.load(Ordering::SeqCst) {
            let _ = client.read(&mut [0; 4096])?;
            let refusal = *self.refusal.lock().unwrap_or_else(PoisonError::into_inner);
            return client.write_all(refusal.answer().as_bytes());
        }
        let server = TcpStream::connect(&self.to)?;
        let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
        thread::spawn(move || {
            let _ = io::copy(&mut from_client, &mut to_server);
            let _ = to_server.shutdown(Shutdown::Both);
        });
        let answered = self.answers(&server, &mut client);
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
        answered
    }

    fn answers(&self, mut server: &TcpStream, client: &mut TcpStream) -> io::Result<()> {
        let mut buffer = [0; 16 << 10];
        loop {
            let read = server.read(&mut buffer)?;
            while self.is_cut() && self.stalls.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(10));
            }
            if read == 0 || self.is_cut() {
                return Ok(());
            }
            client.write_all(&buffer[..read])?;
            self.passed.fetch_add(read as u64, Ordering::SeqCst);
        }
    }
}
