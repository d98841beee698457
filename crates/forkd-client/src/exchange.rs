//! A request and its answer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::ext::on_informational;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, EXPECT, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Response, StatusCode};
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::address::Address;
use crate::body::{Body, Wish};
use crate::connect::{self, ConnectError, Connector, Stream};
use crate::error::{ClientError, Refusal};
use crate::secret::Secret;

/// The most of an answer that is read as a whole. A command's output is kept to 16 MiB by the daemon, and JSON may take six
/// bytes for one.
const LARGEST: usize = 128 << 20;
/// The most of an answer in plain text: the end of a console, or metrics, which are far smaller.
const LARGEST_TEXT: usize = 16 << 20;
/// The most of an error's answer.
const LARGEST_ERROR: usize = 1 << 20;
/// How long the daemon may take where it only looks something up.
pub(crate) const QUICK: Duration = Duration::from_secs(60);
/// What is accepted where plain text is expected: refusals are JSON.
pub(crate) const TEXT: &str = "text/plain, application/json";
/// How many connections are kept for later.
const IDLE: usize = 128;

/// What stays as it is in a part of a path.
const PLAIN: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A daemon that is asked.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    address: Address,
    token: Option<Secret>,
    connector: Connector,
    /// Keeps connections for later, and replaces those that the daemon has closed meanwhile.
    pool: legacy::Client<Connector, Body>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Client").field("address", &self.address).finish_non_exhaustive()
    }
}

/// What is asked.
#[derive(Debug)]
pub(crate) struct Request {
    method: Method,
    path: String,
    accept: &'static str,
    content_type: Option<&'static str>,
    body: Body,
    limit: Option<Duration>,
}

/// What is answered, with a status below 400.
#[derive(Debug)]
pub(crate) struct Answer {
    pub response: Response<Incoming>,
    client: Client,
}

/// The body of an answer, piece by piece.
#[derive(Debug)]
pub struct Streamed(Incoming);

impl Streamed {
    /// The next piece; nothing at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        loop {
            match self.0.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(ClientError::broken(error)),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }
}

impl Request {
    pub(crate) fn new(method: Method, path: String) -> Request {
        Request {
            method,
            path,
            accept: "application/json",
            content_type: None,
            body: Body::empty(),
            limit: None,
        }
    }

    pub(crate) fn get(path: String) -> Request {
        Request::new(Method::GET, path).within(QUICK)
    }

    pub(crate) fn post(path: String) -> Request {
        Request::new(Method::POST, path)
    }

    pub(crate) fn json(mut self, value: &impl Serialize) -> Request {
        // Types of the API are maps with text keys: they can be written.
        let text = serde_json::to_vec(value).unwrap_or_default();
        self.body = Body::Whole(Some(text.into()));
        self.content_type = Some("application/json");
        self
    }

    pub(crate) fn body(mut self, content_type: &'static str, body: Body) -> Request {
        self.content_type = Some(content_type);
        self.body = body;
        self
    }

    pub(crate) fn accept(mut self, accept: &'static str) -> Request {
        self.accept = accept;
        self
    }

    /// How long it may take until the answer begins.
    pub(crate) fn within(mut self, limit: Duration) -> Request {
        self.limit = Some(limit);
        self
    }
}

/// A part of a path, whatever it is.
pub(crate) fn part(text: &str) -> String {
    // Dots alone would be taken for a way through the path, even when escaped.
    match text {
        "." | ".." | "" => "%00".into(),
        _ => utf8_percent_encode(text, &PLAIN).to_string(),
    }
}

/// The part of a path behind the question mark, with the mark; nothing without values.
pub(crate) fn query<'a>(values: impl IntoIterator<Item = (&'a str, Option<String>)>) -> String {
    let mut text = String::new();
    for (name, value) in values {
        if let Some(value) = value {
            let mark = if text.is_empty() { '?' } else { '&' };
            text += &format!("{mark}{name}={}", utf8_percent_encode(&value, &PLAIN));
        }
    }
    text
}

impl Client {
    /// Does not connect yet.
    pub fn new(address: Address, token: Option<Secret>) -> Result<Client, ClientError> {
        let tls = match &address {
            Address::Tcp { tls: true, .. } => Some(connect::tls_config().map_err(ClientError::broken)?),
            _ => None,
        };
        Ok(Client::connected(Connector::new(address.clone(), tls), address, token))
    }

    /// A client of a daemon in the same process: `dial` makes its connections, and the address is what the daemon takes itself to
    /// be asked at.
    pub fn in_process(
        address: Address,
        token: Option<Secret>,
        dial: impl Fn() -> Box<dyn Stream> + Send + Sync + 'static,
    ) -> Client {
        Client::connected(Connector::InProcess(Arc::new(dial)), address, token)
    }

    fn connected(connector: Connector, address: Address, token: Option<Secret>) -> Client {
        let pool = legacy::Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(IDLE)
            .pool_idle_timeout(None)
            .build(connector.clone());
        Client { inner: Arc::new(Inner { address, token, connector, pool }) }
    }

    pub fn address(&self) -> &Address {
        &self.inner.address
    }

    pub fn token(&self) -> Option<&Secret> {
        self.inner.token.as_ref()
    }

    pub(crate) async fn connect(&self) -> Result<Box<dyn Stream>, ClientError> {
        self.inner.connector.connect().await.map_err(|error| self.unconnected(&error))
    }

    /// The headers that every request has.
    pub(crate) fn headers(&self) -> Vec<(HeaderName, HeaderValue)> {
        let mut headers =
            vec![(USER_AGENT, HeaderValue::from_static(concat!("forkd/", env!("CARGO_PKG_VERSION"))))];
        if let Ok(value) = HeaderValue::from_str(&self.inner.address.authority()) {
            headers.push((HOST, value));
        }
        let token = self.inner.token.as_ref().map(|token| HeaderValue::from_str(&token.header()));
        if let Some(Ok(mut value)) = token {
            value.set_sensitive(true);
            headers.push((AUTHORIZATION, value));
        }
        headers
    }

    /// Asks, and waits for the head of the answer.
    pub(crate) async fn exchange(&self, request: Request) -> Result<Answer, ClientError> {
        let limit = request.limit;
        let exchange = self.exchange_at_leisure(request);
        match limit {
            Some(limit) => timeout(limit, exchange).await.map_err(|_| ClientError::TimedOut(limit))?,
            None => exchange.await,
        }
    }

    async fn exchange_at_leisure(&self, mut request: Request) -> Result<Answer, ClientError> {
        let kept_back = request.body.keep_back();
        // The pool wants all of it, whatever it connects to; the daemon gets the path.
        let uri = format!("http://{}{}", self.inner.address.authority(), request.path);
        let mut http = hyper::Request::builder().method(request.method).uri(uri);
        for (name, value) in self.headers() {
            http = http.header(name, value);
        }
        http = http.header(ACCEPT, request.accept);
        if let Some(content_type) = request.content_type {
            http = http.header(CONTENT_TYPE, content_type);
        }
        if kept_back.is_some() {
            http = http.header(EXPECT, "100-continue");
        }
        let mut http = http.body(request.body).map_err(ClientError::broken)?;
        if let Some(wish) = kept_back.clone() {
            on_informational(&mut http, move |said| {
                if said.status() == StatusCode::CONTINUE {
                    wish.send_replace(Wish::Wanted);
                }
            });
        }
        let response = self.inner.pool.request(http).await.map_err(|error| self.failed(&error))?;
        let answer = Answer::new(response, self);
        match answer.response.status().as_u16() {
            200..400 => Ok(answer),
            _ => {
                let refusal = answer.refusal().await;
                if let Some(wish) = &kept_back {
                    wish.send_replace(Wish::Unwanted);
                }
                Err(refusal)
            }
        }
    }

    /// Why there is no answer: the causes of the pool's error say.
    fn failed(&self, error: &legacy::Error) -> ClientError {
        let mut cause = std::error::Error::source(error);
        while let Some(found) = cause {
            if let Some(error) = found.downcast_ref::<ConnectError>() {
                return self.unconnected(error);
            }
            if let Some(error) = found.downcast_ref::<hyper::Error>() {
                return sending_failed(error);
            }
            cause = found.source();
        }
        ClientError::broken(error.to_string())
    }

    fn unconnected(&self, error: &ConnectError) -> ClientError {
        let address = self.inner.address.to_string();
        match error {
            ConnectError::Unreachable(source) => ClientError::Unreachable { address, source: again(source) },
            ConnectError::Untrusted(source) => ClientError::Untrusted { address, source: again(source) },
        }
    }

    /// Asks, and reads the answer.
    pub(crate) async fn ask<T: DeserializeOwned>(&self, request: Request) -> Result<T, ClientError> {
        let answer = self.exchange(request).await?;
        let text = answer.whole(LARGEST).await?;
        serde_json::from_slice(&text).map_err(|error| self.foreign(&format!("invalid answer ({error})")))
    }

    /// Asks, and expects nothing but success.
    pub(crate) async fn tell(&self, request: Request) -> Result<(), ClientError> {
        self.exchange(request).await?.whole(LARGEST).await?;
        Ok(())
    }

    /// A request that is answered with plain text.
    pub(crate) async fn text(&self, request: Request) -> Result<String, ClientError> {
        let request = request.accept(TEXT);
        let text = self.exchange(request).await?.whole(LARGEST_TEXT).await?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    pub(crate) fn foreign(&self, what: &str) -> ClientError {
        ClientError::Foreign { address: self.inner.address.to_string(), what: what.to_owned() }
    }
}

impl Answer {
    pub(crate) fn new(response: Response<Incoming>, client: &Client) -> Answer {
        Answer { response, client: client.clone() }
    }

    /// The whole body, which then leaves its connection to others.
    pub(crate) async fn whole(self, most: usize) -> Result<Bytes, ClientError> {
        let body = Limited::new(self.response.into_body(), most).collect().await;
        let body = body.map_err(|error| match error.is::<LengthLimitError>() {
            true => ClientError::TooLarge(most),
            false => ClientError::Broken(error),
        })?;
        Ok(body.to_bytes())
    }

    /// The body, to be read as it comes. Dropping it before its end ends the connection.
    pub(crate) fn streamed(self) -> Streamed {
        Streamed(self.response.into_body())
    }

    /// Why the daemon refuses, from an answer of 400 and above.
    pub(crate) async fn refusal(self) -> ClientError {
        let (client, status) = (self.client.clone(), self.response.status().as_u16());
        match self.whole(LARGEST_ERROR).await {
            Ok(body) => refusal(&client, status, &body),
            Err(ClientError::TooLarge(_)) => refusal(&client, status, b""),
            Err(error) => error,
        }
    }
}

/// What an answer of 400 and above says, or that it is not the daemon's.
pub(crate) fn refusal(client: &Client, status: u16, body: &[u8]) -> ClientError {
    match Refusal::parse(status, body) {
        Some(refusal) => ClientError::Refused(Box::new(refusal)),
        None => client.foreign(&format!("it answered with status {status}")),
    }
}

/// hyper lends its errors only; what callers need of one is its words.
fn sending_failed(error: &hyper::Error) -> ClientError {
    // hyper gives errors of the body that is sent as a cause.
    let of_upload = std::error::Error::source(error)
        .and_then(|cause| cause.downcast_ref::<io::Error>())
        .filter(|_| error.is_user());
    match of_upload {
        Some(cause) => ClientError::Upload(again(cause)),
        None => ClientError::broken(with_causes(error)),
    }
}

fn again(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

fn with_causes(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", with_causes(cause)),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_paths_are_nothing_else() {
        assert_eq!(part("python-3.12_a"), "python-3.12_a");
        assert_eq!(part("a/b?c#d%"), "a%2Fb%3Fc%23d%25");
        for nowhere in ["", ".", ".."] {
            assert_eq!(part(nowhere), "%00");
        }
        assert_eq!(
            query([("a", None), ("b", Some("x y&z".into())), ("c", Some("1".into()))]),
            "?b=x%20y%26z&c=1"
        );
        assert_eq!(query([("a", None)]), "");
    }
}
