//! HTTP over the daemon's socket, one connection a request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use forkd_api::error::{ErrorBody, ErrorCode};
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::tiny::PATIENCE;
use serde::de::DeserializeOwned;
use serde_json::Value;

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

/// Sends a request, with JSON if there is any, and waits for the whole answer.
pub fn send(socket: &Path, request: &str, headers: &str, body: Option<&Value>) -> Result<Answer, Failure> {
    answer(begin(socket, request, headers, body)?)
}

/// The same over TCP, where a token says who asks.
pub fn send_tcp(address: &str, request: &str, headers: &str, body: &str) -> Result<Answer, Failure> {
    answer(begin_tcp(address, request, headers, body)?)
}

fn begin_tcp(address: &str, request: &str, headers: &str, body: &str) -> Result<TcpStream, Failure> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let whole = format!(
        "{request} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n{body}",
        body.len()
    );
    stream.write_all(whole.as_bytes())?;
    Ok(stream)
}

fn answer(mut stream: impl Read) -> Result<Answer, Failure> {
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(|| format!("no answer: {text:?}"))?;
    let status = head.split(' ').nth(1).ok_or("no status")?.parse()?;
    Ok(Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() })
}

fn begin(socket: &Path, request: &str, headers: &str, body: Option<&Value>) -> Result<UnixStream, Failure> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let whole = format!(
        "{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n{headers}\r\n{body}",
        body.len()
    );
    // At once: a daemon that refuses early does not read the rest.
    stream.write_all(whole.as_bytes())?;
    Ok(stream)
}

/// Sends bytes that are no JSON.
pub fn upload(socket: &Path, request: &str, headers: &str, body: &[u8]) -> Result<Answer, Failure> {
    answer(begin_upload(socket, request, headers, body.len(), body)?)
}

/// Says that so many bytes come, sends fewer, and goes away.
pub fn break_off(socket: &Path, request: &str, said: usize, body: &[u8]) -> Result<(), Failure> {
    let stream = begin_upload(socket, request, "", said, body)?;
    std::thread::sleep(Duration::from_millis(300));
    drop(stream);
    Ok(())
}

fn begin_upload(
    socket: &Path,
    request: &str,
    headers: &str,
    said: usize,
    body: &[u8],
) -> Result<UnixStream, Failure> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {said}\r\n{headers}\r\n"
    )?;
    // A daemon that refuses early does not read the rest.
    let _ = stream.write_all(body);
    Ok(stream)
}

/// Sends a request and does not wait for its answer.
pub fn abandon(
    socket: &Path,
    request: &str,
    headers: &str,
    body: &Value,
    patience: Duration,
) -> Result<(), Failure> {
    let stream = begin(socket, request, headers, Some(body))?;
    std::thread::sleep(patience);
    drop(stream);
    Ok(())
}

/// A stream of lines that goes on.
pub struct Lines(BufReader<Box<dyn Read>>);

impl Lines {
    /// Asks, and waits for the head of the answer.
    pub fn open(socket: &Path, request: &str, headers: &str, body: Option<&Value>) -> Result<Lines, Failure> {
        Lines::of(begin(socket, request, headers, body)?)
    }

    /// The same over TCP.
    pub fn open_tcp(address: &str, request: &str, headers: &str) -> Result<Lines, Failure> {
        Lines::of(begin_tcp(address, request, headers, "")?)
    }

    fn of(stream: impl Read + 'static) -> Result<Lines, Failure> {
        let mut lines = Lines(BufReader::new(Box::new(stream)));
        while lines.line()?.ok_or("no answer")? != "\r\n" {}
        Ok(lines)
    }

    fn line(&mut self) -> Result<Option<String>, Failure> {
        let mut line = String::new();
        let read = self.0.read_line(&mut line)?;
        Ok((read > 0).then_some(line))
    }

    /// The next line of JSON; what is between them is how HTTP cuts a stream into pieces.
    pub fn next(&mut self) -> Result<Option<Value>, Failure> {
        while let Some(line) = self.line()? {
            if line.starts_with('{') {
                return Ok(Some(serde_json::from_str(&line)?));
            }
        }
        Ok(None)
    }
}

impl Answer {
    /// Whether its end is missing.
    pub fn is_cut(&self) -> bool {
        let length = self.head.lines().find_map(|line| line.strip_prefix("content-length: "));
        length.is_some_and(|length| length.trim().parse() != Ok(self.body.len()))
    }

    pub fn parsed<T: DeserializeOwned>(&self, status: u16) -> Result<T, Failure> {
        if self.status != status {
            return Err(format!("expected {status}: {self:?}").into());
        }
        Ok(serde_json::from_str(&self.body)?)
    }

    /// An error, whose status is that of its code and which can be helped or not.
    pub fn error(&self, code: ErrorCode) -> Result<ErrorBody, Failure> {
        let body: ErrorBody = self.parsed(code.status())?;
        assert_eq!(body.code, code, "{self:?}");
        Ok(body)
    }
}
