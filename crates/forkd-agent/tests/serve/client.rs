//! HTTP/1.1 and Connect, as little as the tests need. Nothing is read ahead, so a test can be a slow client.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

#[derive(Debug, Clone)]
pub struct Client {
    address: SocketAddr,
    headers: Vec<(String, String)>,
}

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| json!(String::from_utf8_lossy(&self.body)))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        Self { address, headers: Vec::new() }
    }

    /// The same with one more header in every request.
    pub fn with(&self, name: &str, value: &str) -> Self {
        let mut client = self.clone();
        client.headers.push((name.to_owned(), value.to_owned()));
        client
    }

    pub fn call(&self, method: &str, target: &str, kind: &str, body: &[u8]) -> Response {
        let mut stream = self.send(method, target, kind, body);
        let (status, headers) = head(&mut stream);
        let mut body = Vec::new();
        if headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked") {
            while let Some(chunk) = chunk(&mut stream) {
                body.extend_from_slice(&chunk);
            }
        } else {
            stream.read_to_end(&mut body).expect("a body");
        }
        Response { status, headers, body }
    }

    pub fn get(&self, target: &str) -> Response {
        self.call("GET", target, "text/plain", b"")
    }

    /// A unary call: the status and the JSON.
    pub fn unary(&self, method: &str, message: &Value) -> (u16, Value) {
        let response =
            self.call("POST", &format!("/{method}"), "application/json", message.to_string().as_bytes());
        (response.status, response.json())
    }

    /// A call that is answered by a stream, which stays open until it is dropped.
    pub fn stream(&self, method: &str, message: &Value) -> Messages {
        let body = envelope(message);
        let mut stream = self.send("POST", &format!("/{method}"), "application/connect+json", &body);
        let (status, headers) = head(&mut stream);
        let chunked = headers.iter().any(|(name, _)| name == "transfer-encoding");
        Messages { stream, status, chunked, buffer: Vec::new() }
    }

    /// A call that is answered by lines of JSON, read one at a time. None when it is refused.
    pub fn lines(&self, target: &str, message: &Value) -> Lines {
        let mut stream = self.send("POST", target, "application/json", message.to_string().as_bytes());
        let (status, _) = head(&mut stream);
        Lines { stream: (status == 200).then_some(stream) }
    }

    pub fn send(&self, method: &str, target: &str, kind: &str, body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).expect("the agent listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let mut head = format!(
            "{method} {target} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Type: {kind}\r\n"
        );
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
        stream.write_all(head.as_bytes()).expect("sent");
        // The agent may refuse before it has read everything.
        let _ = stream.write_all(body);
        stream
    }
}

pub fn envelope(message: &Value) -> Vec<u8> {
    let json = message.to_string();
    let length = u32::try_from(json.len()).expect("short");
    [&[0], length.to_be_bytes().as_slice(), json.as_bytes()].concat()
}

/// The lines of an answer, each of which is a chunk.
#[derive(Debug)]
pub struct Lines {
    stream: Option<TcpStream>,
}

impl Iterator for Lines {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        let line = chunk(self.stream.as_mut()?)?;
        Some(serde_json::from_slice(&line).expect("JSON"))
    }
}

/// What the events of a process carry of its output. How it is cut into events is chance.
pub fn stdout(events: &[Value]) -> String {
    let chunks = events.iter().filter_map(|event| event["data"]["stdout"].as_str());
    let bytes: Vec<u8> = chunks.flat_map(|chunk| STANDARD.decode(chunk).expect("base64")).collect();
    String::from_utf8(bytes).expect("text")
}

/// The messages of a stream.
#[derive(Debug)]
pub struct Messages {
    stream: TcpStream,
    pub status: u16,
    chunked: bool,
    buffer: Vec<u8>,
}

impl Messages {
    /// The next message; the last one is what the end-of-stream envelope holds.
    pub fn next(&mut self) -> Option<(bool, Value)> {
        let header = self.take(5)?;
        let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]);
        let json = self.take(usize::try_from(length).expect("short"))?;
        Some((header[0] == 2, serde_json::from_slice(&json).expect("JSON")))
    }

    /// All events up to the end, and how the stream ended.
    pub fn all(&mut self) -> (Vec<Value>, Value) {
        let mut events = Vec::new();
        while let Some((end, message)) = self.next() {
            if end {
                return (events, message);
            }
            events.push(message["event"].clone());
        }
        panic!("the stream has no end: {events:?}");
    }

    pub fn pid(&mut self) -> u64 {
        let (_, message) = self.next().expect("a start event");
        message["event"]["start"]["pid"].as_u64().unwrap_or_else(|| panic!("{message}"))
    }

    fn take(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < length {
            if self.chunked {
                self.buffer.extend(chunk(&mut self.stream)?);
            } else {
                let mut byte = [0];
                self.stream.read_exact(&mut byte).ok()?;
                self.buffer.push(byte[0]);
            }
        }
        Some(self.buffer.drain(..length).collect())
    }
}

fn line(stream: &mut TcpStream) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    while !line.ends_with(b"\r\n") {
        if stream.read(&mut byte).expect("a line") == 0 {
            break;
        }
        line.push(byte[0]);
    }
    String::from_utf8_lossy(&line).trim_end().to_owned()
}

pub fn head(stream: &mut TcpStream) -> (u16, Vec<(String, String)>) {
    let first = line(stream);
    let status =
        first.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{first:?}"));
    let mut headers = Vec::new();
    loop {
        let line = line(stream);
        let Some((name, value)) = line.split_once(':') else { return (status, headers) };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

pub fn chunk(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let length = usize::from_str_radix(&line(stream), 16).ok()?;
    let mut chunk = vec![0; length + 2];
    stream.read_exact(&mut chunk).ok()?;
    chunk.truncate(length);
    (length > 0).then_some(chunk)
}
