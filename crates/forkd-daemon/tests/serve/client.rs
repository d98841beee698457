//! A client that shows exactly what is on the wire.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use forkd_api::error::{ErrorBody, ErrorCode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

/// Nothing in these tests takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

pub trait Bytes: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Bytes for S {}

/// Where to send a request.
#[derive(Debug, Clone, Copy)]
pub enum To<'a> {
    Tcp(SocketAddr),
    Unix(&'a Path),
}

impl To<'_> {
    pub async fn connect(self) -> Box<dyn Bytes> {
        match self {
            To::Tcp(address) => Box::new(TcpStream::connect(address).await.expect("the daemon listens")),
            To::Unix(path) => Box::new(UnixStream::connect(path).await.expect("the daemon listens")),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Request {
    head: String,
    body: Vec<u8>,
}

impl Request {
    pub fn new(method: &str, path: &str) -> Request {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
        Request { head, body: Vec::new() }
    }

    pub fn get(path: &str) -> Request {
        Request::new("GET", path)
    }

    pub fn post(path: &str, json: &str) -> Request {
        Request::new("POST", path).header("content-type", "application/json").body(json.as_bytes())
    }

    pub fn header(mut self, name: &str, value: &str) -> Request {
        self.head += &format!("{name}: {value}\r\n");
        self
    }

    pub fn token(self, secret: &str) -> Request {
        self.header("authorization", &format!("Bearer {secret}"))
    }

    pub fn body(mut self, body: &[u8]) -> Request {
        self.body = body.to_vec();
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let length = format!("content-length: {}\r\n\r\n", self.body.len());
        [self.head.as_bytes(), length.as_bytes(), &self.body].concat()
    }

    pub async fn send(&self, to: To<'_>) -> Answer {
        self.send_on(to.connect().await).await
    }

    pub async fn send_on(&self, mut stream: impl Bytes) -> Answer {
        // A daemon that refuses early does not read the rest.
        let _ = stream.write_all(&self.bytes()).await;
        Answer::read(&mut stream).await
    }
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Answer {
    /// Reads until the daemon closes the connection.
    pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Answer {
        let text = read_all(stream).await;
        Answer::parse(&text).unwrap_or_else(|| panic!("no answer: {text:?}"))
    }

    /// Reads one answer, of a connection that goes on.
    pub async fn read_one(stream: &mut (impl AsyncRead + Unpin)) -> Answer {
        let mut text = String::new();
        let read = async {
            loop {
                if let Some(answer) = Answer::parse(&text)
                    && answer.headers["content-length"] == answer.body.len().to_string()
                {
                    return answer;
                }
                text.push(char::from(stream.read_u8().await.expect("more of the answer")));
            }
        };
        tokio::time::timeout(PATIENCE, read).await.expect("the daemon answers")
    }

    fn parse(text: &str) -> Option<Answer> {
        let (head, body) = text.split_once("\r\n\r\n")?;
        let mut lines = head.split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers = lines.map(|line| line.split_once(": ").expect("a header"));
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Some(Answer { status, headers, body: body.to_owned() })
    }

    /// The body of a failure. Its status is that of its code.
    pub fn error(&self) -> ErrorBody {
        assert_eq!(self.headers["content-type"], "application/json");
        let body: ErrorBody =
            serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        assert_eq!(body.code.status(), self.status, "{self:?}");
        body
    }

    pub fn code(&self) -> ErrorCode {
        self.error().code
    }

    pub fn json(&self) -> serde_json::Value {
        assert_eq!(self.status, 200, "{self:?}");
        serde_json::from_str(&self.body).expect("JSON")
    }
}

pub async fn read_all(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut bytes = Vec::new();
    let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await;
    // A reset after the answer is an end, too.
    let _ = end.expect("the daemon neither answers nor closes");
    String::from_utf8_lossy(&bytes).into_owned()
}
