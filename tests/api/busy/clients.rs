//! Clients whose connections must outlive branches: a user at a terminal, and a client of a port.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::JoinHandle;
use std::time::Duration;

use forkd_tests::check;
use forkd_tests::daemon::Daemon;
use serde_json::json;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

use super::Failure;

const PATIENCE: Duration = Duration::from_secs(120);

fn connect(address: &str) -> Result<TcpStream, Failure> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// A terminal with `cat`, over a WebSocket.
pub struct Terminal {
    socket: WebSocket<TcpStream>,
    received: Vec<u8>,
}

impl Terminal {
    pub fn open(daemon: &Daemon, id: &str) -> Result<Terminal, Failure> {
        let (address, token) = daemon.tcp()?;
        let mut request = format!("ws://{address}/v1/sandboxes/{id}/exec").into_client_request()?;
        if let Some(token) = token {
            request.headers_mut().insert("authorization", format!("Bearer {token}").parse()?);
        }
        let (socket, _) = tungstenite::client(request, connect(&address)?)
            .map_err(|error| format!("no WebSocket: {error}"))?;
        let mut terminal = Terminal { socket, received: Vec::new() };
        let start = json!({ "args": ["cat"], "tty": { "cols": 80, "rows": 24 } });
        terminal.socket.send(Message::text(start.to_string()))?;
        Ok(terminal)
    }

    /// Types a line: the terminal and `cat` both print it, and nothing else comes.
    pub fn type_line(&mut self, line: &str) -> Result<(), Failure> {
        self.socket.send(Message::binary(format!("{line}\n").into_bytes()))?;
        let expected = format!("{line}\r\n{line}\r\n");
        while self.received.len() < expected.len() {
            match self.socket.read()? {
                Message::Binary(bytes) if bytes.first() == Some(&1) => self.received.extend(&bytes[1..]),
                Message::Text(text) if text.contains("started") => {}
                Message::Ping(_) | Message::Pong(_) => {}
                other => return Err(format!("the terminal ended: {other:?}").into()),
            }
        }
        let received = String::from_utf8(std::mem::take(&mut self.received))?;
        check!(received == expected, "{received:?}");
        Ok(())
    }
}

/// A client of the server in the guest, through the daemon's proxy.
pub struct PortClient {
    stream: TcpStream,
    reader: JoinHandle<std::io::Result<Vec<u8>>>,
    sent: usize,
}

impl PortClient {
    pub fn connect(daemon: &Daemon, id: &str, port: u16) -> Result<PortClient, Failure> {
        let (address, token) = daemon.tcp()?;
        let mut stream = connect(&address)?;
        let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        write!(
            stream,
            "GET /v1/sandboxes/{id}/proxy/{port}/ HTTP/1.1\r\nhost: {address}\r\nconnection: upgrade\r\nupgrade: lines\r\n{token}\r\n"
        )?;
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte)?;
            head.extend(byte);
        }
        let head = String::from_utf8(head)?;
        check!(head.starts_with("HTTP/1.1 101"), "{head}");
        let mut reading = stream.try_clone()?;
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            reading.read_to_end(&mut all).map(|_| all)
        });
        Ok(PortClient { stream, reader, sent: 0 })
    }

    pub fn send_line(&mut self) -> Result<(), Failure> {
        self.sent += 1;
        Ok(writeln!(self.stream, "sent {}", self.sent)?)
    }

    /// Reads to the end: all lines of the server, and all of its own, each once and in order.
    pub fn finish(self) -> Result<(), Failure> {
        let all = String::from_utf8(self.reader.join().map_err(|_| "the reader panicked")??)?;
        let (own, others): (Vec<_>, Vec<_>) = all.lines().partition(|line| line.starts_with("sent "));
        super::check_numbered(&own, "sent", self.sent)?;
        super::check_stream(&others)
    }
}
