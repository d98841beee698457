//! One request to a registry: authentication, time limits, bounded answers.
//!
//! oci-client's requests are not used: they read answers of any length into memory, hide `Retry-After`, and wait for an answer no
//! longer than for a single read, which ends the upload of a large blob on a slow line. Those for tokens also send a password over
//! plain HTTP where a registry says so.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use forkd_source::credentials::Credentials;
#[cfg(not(test))]
use forkd_source::registry_client::READ_TIMEOUT;
use forkd_source::registry_client::{self, CONNECT_TIMEOUT, USER_AGENT};
use oci_client::secrets::RegistryAuth;
use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Method, Response, StatusCode, Url};

use super::challenge::{self, Challenge};
use super::error::RegistryError;
use super::retry::{RetryPolicy, parse_retry_after};

/// Bytes of an error's body that are read.
const MAX_ERROR: u64 = 16 << 10;
/// Bytes of a token service's answer that are read.
const MAX_TOKEN: u64 = 1 << 20;
/// How long a registry may take to store a blob that it has got.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(300);
/// Tests do not wait for as long.
#[cfg(test)]
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a body that are handed over at once.
const BODY_CHUNK: usize = 256 << 10;

/// Attempts to reach a registry that has not answered yet.
const FIRST_ATTEMPTS: u32 = 3;

/// One registry, as one user.
pub(crate) struct Transport {
    http: reqwest::Client,
    auth: RegistryAuth,
    base: Url,
    /// What the registry accepted last.
    accepted: Mutex<HashMap<Scope, HeaderValue>>,
    /// Whether the registry has ever answered.
    has_answered: AtomicBool,
    pub retry: RetryPolicy,
}

/// What a token is valid for.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Scope {
    repository: String,
    is_push: bool,
    /// Another repository that it may read.
    mounts: Option<String>,
}

/// A request, without its authentication.
#[derive(Clone)]
pub(crate) struct Request<'a> {
    pub method: Method,
    /// An address of the registry's, or where it said that an upload goes.
    pub url: Url,
    pub repository: &'a str,
    pub is_push: bool,
    /// The repository that it takes a blob from.
    pub mounts: Option<&'a str>,
    pub headers: Vec<(HeaderName, String)>,
    pub body: Option<(Bytes, Arc<AtomicU64>)>,
}

impl Transport {
    pub fn new(registry: &str, credentials: Option<&Credentials>) -> Result<Transport, RegistryError> {
        registry_client::install_tls();
        let is_loopback = registry_client::is_loopback(registry);
        let mut http = reqwest::Client::builder()
            .user_agent(USER_AGENT)
            .connect_timeout(CONNECT_TIMEOUT)
            // Also of where a registry redirects to.
            .https_only(!is_loopback);
        if is_loopback {
            http = http.no_proxy();
        }
        let scheme = if is_loopback { "http" } else { "https" };
        let base = format!("{scheme}://{registry}/").parse();
        let bad = |reason: String| RegistryError::Reference { text: registry.into(), reason };
        Ok(Transport {
            http: http.build().map_err(RegistryError::Client)?,
            auth: registry_client::auth(credentials),
            base: base.map_err(|error| bad(format!("{error}")))?,
            accepted: Mutex::default(),
            has_answered: AtomicBool::new(false),
            retry: RetryPolicy::default(),
        })
    }

    /// A request for `/v2/<repository>/<path>`.
    pub fn request<'a>(&self, method: Method, repository: &'a str, path: &str) -> Request<'a> {
        let mut url = self.base.clone();
        url.set_path(&format!("/v2/{repository}/{path}"));
        let is_push = !matches!(method, Method::GET | Method::HEAD);
        Request { method, url, repository, is_push, mounts: None, headers: Vec::new(), body: None }
    }

    /// Where an answer's `Location` points to.
    pub fn location(&self, response: &Response, request: &str) -> Result<Url, RegistryError> {
        let problem =
            |problem: &str| RegistryError::Protocol { request: request.into(), problem: problem.into() };
        let location = response.headers().get(reqwest::header::LOCATION);
        let location = location.and_then(|location| location.to_str().ok());
        let location = location.ok_or_else(|| problem("the answer has no valid Location"))?;
        let url =
            response.url().join(location).map_err(|_| problem("the Location is not a valid address"))?;
        Ok(url)
    }

    /// Sends a request once. Answers that are not success are errors.
    pub async fn send(&self, request: &Request<'_>) -> Result<Response, RegistryError> {
        let response = self.exchange(request).await?;
        self.has_answered.store(true, Ordering::Relaxed);
        // Nor does a storage to which the registry has redirected get to say where the password goes.
        let is_ours = self.is_ours(&request.url) && self.is_ours(response.url());
        if response.status() != StatusCode::UNAUTHORIZED || !is_ours {
            return success(request, response).await;
        }
        self.authenticate(request, response.headers()).await?;
        success(request, self.exchange(request).await?).await
    }

    /// Sends a request, again if that may help.
    pub async fn send_patiently(&self, request: &Request<'_>) -> Result<Response, RegistryError> {
        let mut attempts = 0;
        loop {
            match self.send(request).await {
                Ok(response) => return Ok(response),
                Err(error) => {
                    attempts += 1;
                    self.wait(error, attempts).await?;
                }
            }
        }
    }

    /// Waits after the `attempts`th failure in a row, or returns the error if another try is of no use.
    pub async fn wait(&self, error: RegistryError, attempts: u32) -> Result<(), RegistryError> {
        // A typing error in the name should not take half a minute to be reported.
        let is_first = !self.has_answered.load(Ordering::Relaxed);
        if is_first && error.is_unreachable() && attempts >= FIRST_ATTEMPTS {
            return Err(error);
        }
        tokio::time::sleep(self.retry.decide(error, attempts)?).await;
        Ok(())
    }

    /// Credentials go to the registry only, and never to where it redirects an upload to.
    fn is_ours(&self, url: &Url) -> bool {
        url.origin() == self.base.origin()
    }

    async fn exchange(&self, request: &Request<'_>) -> Result<Response, RegistryError> {
        let mut builder = self.http.request(request.method.clone(), request.url.clone());
        for (name, value) in &request.headers {
            builder = builder.header(name, value);
        }
        if self.is_ours(&request.url) {
            let accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(value) = accepted.get(&request.scope()) {
                builder = builder.header(AUTHORIZATION, value.clone());
            }
        }
        let failed = |source: reqwest::Error| RegistryError::Connection {
            request: request.name(),
            source: source.without_url(),
        };
        let stalled =
            |limit: Duration| RegistryError::Stalled { request: request.name(), seconds: limit.as_secs() };
        let Some((body, sent)) = &request.body else {
            if request.is_push {
                builder = builder.header(CONTENT_LENGTH, 0);
            }
            let answer = tokio::time::timeout(READ_TIMEOUT, builder.send()).await;
            return answer.map_err(|_| stalled(READ_TIMEOUT))?.map_err(failed);
        };
        sent.store(0, Ordering::Relaxed);
        let total = body.len() as u64;
        let builder = builder.header(CONTENT_LENGTH, total).body(counted(body.clone(), Arc::clone(sent)));
        let mut answer = std::pin::pin!(builder.send());
        // As long as bytes go out the registry is there.
        loop {
            let before = sent.load(Ordering::Relaxed);
            let limit = if before == total { COMMIT_TIMEOUT } else { READ_TIMEOUT };
            match tokio::time::timeout(limit, &mut answer).await {
                Ok(answer) => return answer.map_err(failed),
                Err(_) if sent.load(Ordering::Relaxed) > before => {}
                Err(_) => return Err(stalled(limit)),
            }
        }
    }

    /// Finds out what the registry wants, and remembers it.
    async fn authenticate(&self, request: &Request<'_>, refusal: &HeaderMap) -> Result<(), RegistryError> {
        let token = match Challenge::find(refusal) {
            Some(challenge) => Some(self.token(request, &challenge).await?),
            None => None,
        };
        let unauthorized = || RegistryError::Unauthorized { request: request.name() };
        let mut value = match (token, &self.auth) {
            (Some(token), _) => HeaderValue::from_str(&format!("Bearer {token}")),
            // No token was issued: the registry takes the password itself.
            (None, RegistryAuth::Basic(username, password)) => {
                use base64::Engine;
                let text = format!("{username}:{password}");
                HeaderValue::from_str(&format!(
                    "Basic {}",
                    base64::engine::general_purpose::STANDARD.encode(text)
                ))
            }
            (None, _) => return Err(unauthorized()),
        }
        .map_err(|_| unauthorized())?;
        value.set_sensitive(true);
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner).insert(request.scope(), value);
        Ok(())
    }

    /// A token for the request's repository and, for a mount, for reading the one that the blob is in.
    async fn token(&self, request: &Request<'_>, challenge: &Challenge) -> Result<String, RegistryError> {
        let problem =
            |problem: &str| RegistryError::Protocol { request: request.name(), problem: problem.into() };
        let url = challenge.address(request.repository, request.is_push, request.mounts);
        let url = url.ok_or_else(|| problem("the address of the token service is not valid"))?;
        // A registry on this host may have its service there, too. The client refuses plain HTTP for all others.
        let is_here = url.host_str().is_some_and(registry_client::is_loopback);
        if url.scheme() != "https" && !is_here {
            return Err(problem("the token service must be asked over https"));
        }
        let asked = Request { method: Method::GET, url, body: None, headers: Vec::new(), ..request.clone() };
        let mut builder = self.http.get(asked.url.clone());
        if let RegistryAuth::Basic(username, password) = &self.auth {
            builder = builder.basic_auth(username, Some(password));
        }
        let stalled = |_| RegistryError::Stalled { request: asked.name(), seconds: READ_TIMEOUT.as_secs() };
        let failed = |source: reqwest::Error| RegistryError::Connection {
            request: asked.name(),
            source: source.without_url(),
        };
        let response = tokio::time::timeout(READ_TIMEOUT, builder.send()).await;
        let response = success(&asked, response.map_err(stalled)?.map_err(failed)?).await;
        let response = response.map_err(|error| match error {
            // It is not the blob or the manifest that is not there.
            RegistryError::NotFound { .. } => problem("the token service was not found"),
            error => error,
        })?;
        let answer = body(&asked, response, MAX_TOKEN).await?;
        challenge::token(&answer).ok_or_else(|| problem("the token service's answer has no token"))
    }
}

impl Request<'_> {
    /// What errors call it. Without the query, which may have a signature of the storage's.
    pub fn name(&self) -> String {
        let host = self.url.host_str().unwrap_or_default();
        let port = self.url.port().map(|port| format!(":{port}")).unwrap_or_default();
        format!("{} {host}{port}{}", self.method, self.url.path())
    }

    fn scope(&self) -> Scope {
        Scope {
            repository: self.repository.to_owned(),
            is_push: self.is_push,
            mounts: self.mounts.map(str::to_owned),
        }
    }

    pub fn header(mut self, name: HeaderName, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// A body that counts what was taken of it.
fn counted(body: Bytes, sent: Arc<AtomicU64>) -> reqwest::Body {
    let chunks = (0..body.len()).step_by(BODY_CHUNK).map(move |start| {
        let end = (start + BODY_CHUNK).min(body.len());
        sent.store(end as u64, Ordering::Relaxed);
        Ok::<_, std::convert::Infallible>(body.slice(start..end))
    });
    reqwest::Body::wrap_stream(futures_util::stream::iter(chunks))
}

async fn success(request: &Request<'_>, response: Response) -> Result<Response, RegistryError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    match status {
        StatusCode::NOT_FOUND => return Err(RegistryError::NotFound { request: request.name() }),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            return Err(RegistryError::Unauthorized { request: request.name() });
        }
        _ => {}
    }
    let retry_after = retry_after(response.headers());
    let body = body(request, response, MAX_ERROR).await.unwrap_or_default();
    Err(RegistryError::Status {
        request: request.name(),
        code: status.as_u16(),
        message: message(&body),
        retry_after,
    })
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    parse_retry_after(headers.get(RETRY_AFTER)?.to_str().ok()?, SystemTime::now())
}

/// What a registry says about an error, short and harmless to print.
fn message(body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Errors {
        errors: Vec<Problem>,
    }
    #[derive(serde::Deserialize)]
    struct Problem {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let Ok(Errors { errors }) = serde_json::from_slice(body) else { return String::new() };
    let Some(Problem { code, message }) = errors.into_iter().next() else { return String::new() };
    let text = format!(": {code}: {message}");
    text.chars().filter(|letter| !letter.is_control()).take(200).collect()
}

/// The next bytes of an answer.
pub(crate) async fn chunk(request: &str, response: &mut Response) -> Result<Option<Bytes>, RegistryError> {
    let read = tokio::time::timeout(READ_TIMEOUT, response.chunk()).await;
    let stalled = |_| RegistryError::Stalled { request: request.into(), seconds: READ_TIMEOUT.as_secs() };
    read.map_err(stalled)?
        .map_err(|source| RegistryError::Connection { request: request.into(), source: source.without_url() })
}

/// A whole answer of at most `limit` bytes.
pub(crate) async fn body(
    request: &Request<'_>,
    mut response: Response,
    limit: u64,
) -> Result<Bytes, RegistryError> {
    let too_large = || RegistryError::TooLarge { request: request.name(), limit };
    if response.content_length().is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let name = request.name();
    let mut bytes = Vec::new();
    while let Some(more) = chunk(&name, &mut response).await? {
        if (bytes.len() + more.len()) as u64 > limit {
            return Err(too_large());
        }
        bytes.extend_from_slice(&more);
    }
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_registries_are_short_and_harmless() {
        let long = format!(r#"{{"errors":[{{"code":"DENIED","message":"\u001b[31m{}"}}]}}"#, "x".repeat(999));
        let text = message(long.as_bytes());
        assert!(text.starts_with(": DENIED: [31mx") && text.len() == 200, "{text}");
        assert_eq!(message(b"<html>"), "");
        assert_eq!(message(br#"{"errors":[]}"#), "");
    }

    #[test]
    fn errors_name_the_request_without_its_query() {
        let transport = Transport::new("127.0.0.1:5000", None).unwrap();
        let mut request = transport.request(Method::PUT, "team/app", "blobs/uploads/x");
        request.url.set_query(Some("secret=1"));
        assert_eq!(request.name(), "PUT 127.0.0.1:5000/v2/team/app/blobs/uploads/x");
    }

    #[test]
    fn credentials_stay_with_the_registry() {
        let transport = Transport::new("registry.example", None).unwrap();
        assert!(transport.is_ours(&"https://registry.example/v2/a".parse().unwrap()));
        for other in ["http://registry.example/", "https://registry.example:444/", "https://storage.example/"]
        {
            assert!(!transport.is_ours(&other.parse().unwrap()), "{other}");
        }
    }
}
