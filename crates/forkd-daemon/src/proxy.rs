//! Forwards requests to a port of a guest, and its answers back.
//!
//! ```text
//!   client ── HTTP ──▶ daemon ── HTTP, over vsock ──▶ whatever listens on the port
//!          ◀═ after 101: bytes both ways, until one of the two has had enough ═▶
//! ```
//!
//! Nothing is collected: both bodies are passed on as they come, and each side waits for the other. Headers that are about one
//! connection stay with it.

use std::net::IpAddr;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    CONNECTION, EXPECT, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::response::Response;
use forkd_api::error::ErrorCode;
use forkd_engine::agent::Agent;
use forkd_engine::dial::dial;
use forkd_envd::port::is_agents;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tracing::Instrument;

use crate::app::Shared;
use crate::error::{Answer, ApiError, PassThrough, chain};
use crate::extract::impatient;
use crate::routes::checks::malformed;

/// What is kept of an answer's head, and of what a guest does not read.
const BUFFER: usize = 64 << 10;
/// How long a guest may think before it begins to answer.
const ANSWER: Duration = Duration::from_secs(600);
/// What paths of the agent's begin with that only the host calls: forkd's own, and E2B's.
const PRIVATE: [&str; 7] = ["forkd", "init", "freeze", "unfreeze", "collapse", "fsfreeze", "fsthaw"];
/// What a client asks for that wants bytes and no HTTP.
const TCP: &[u8] = b"tcp";
/// What is copied at once, after an upgrade.
const PIECE: usize = 16 << 10;

/// Where a request goes.
#[derive(Debug)]
pub struct Destination<'a> {
    pub agent: &'a Agent,
    pub port: u16,
    /// The path and the query that the guest sees.
    pub target: String,
    /// What the guest sees as its own name.
    pub host: HeaderValue,
    pub forwarded: Forwarded,
}

/// What the guest is told about the request that the client has made.
#[derive(Debug, Default)]
pub struct Forwarded {
    pub address: Option<IpAddr>,
    pub encrypted: bool,
    /// What was taken off the path.
    pub prefix: Option<String>,
}

/// Passes a request on, and its answer back.
pub async fn forward(app: &Shared, to: Destination<'_>, mut request: Request) -> Answer<Response> {
    if request.method() == Method::CONNECT {
        return Err(malformed("the method CONNECT is not supported"));
    }
    let path = to.target.split('?').next().unwrap_or_default();
    if is_agents(to.port) && is_private(path) {
        return Err(ApiError::new(ErrorCode::Forbidden, "this path of the agent is reserved for the daemon"));
    }
    let uri: Uri = to.target.parse().map_err(|_| malformed("invalid path"))?;
    let upgrade = wanted_upgrade(request.headers());
    let client = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
    let place = upgrade.is_some().then(|| app.place_for_upgrade()).transpose()?;
    let (parts, body) = request.into_parts();
    let mut outgoing = Request::new(impatient(body, app.limits.guest_time));
    *outgoing.method_mut() = parts.method;
    *outgoing.uri_mut() = uri;
    *outgoing.headers_mut() = request_headers(parts.headers, &to, upgrade);

    let stream = dial(to.agent, to.port).await?;
    let handshake = http1::Builder::new().max_buf_size(BUFFER).handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| broken(&error))?;
    // Ends with the body of the answer, or with what comes after an upgrade.
    tokio::spawn(async move { connection.with_upgrades().await });
    let answered = tokio::time::timeout(ANSWER, sender.send_request(outgoing)).await;
    let answered = answered
        .map_err(|_| ApiError::new(ErrorCode::GuestTimeout, "the guest did not answer in time"))?
        .map_err(|error| broken(&error))?;
    let (mut parts, body) = answered.into_parts();
    if parts.status == StatusCode::SWITCHING_PROTOCOLS {
        let (Some(client), Some(place)) = (client, place) else {
            return Err(ApiError::new(
                ErrorCode::GuestFailed,
                "the guest switched protocols without an upgrade request",
            ));
        };
        let guest = parts.extensions.remove::<OnUpgrade>();
        return switch(app, parts.headers, client, guest, place);
    }
    remove_hop_by_hop(&mut parts.headers);
    let mut response = Response::new(Body::new(body));
    *response.status_mut() = parts.status;
    *response.headers_mut() = parts.headers;
    response.extensions_mut().insert(PassThrough);
    Ok(response)
}

fn broken(error: &hyper::Error) -> ApiError {
    ApiError::new(ErrorCode::GuestFailed, "the process on the port sent an invalid HTTP response")
        .detail(chain(error))
}

/// Both sides agree on another protocol: bytes are passed on from now on.
fn switch(
    app: &Shared,
    headers: HeaderMap,
    client: OnUpgrade,
    guest: Option<OnUpgrade>,
    place: OwnedSemaphorePermit,
) -> Answer<Response> {
    let guest = guest.ok_or_else(|| {
        ApiError::new(ErrorCode::GuestFailed, "the guest answered 101 without switching protocols")
    })?;
    let protocol = headers.get(UPGRADE).cloned();
    let guest = async { guest.await.ok().map(TokioIo::new) };
    tunnel(app, client, guest, place);
    let mut headers = headers;
    remove_hop_by_hop(&mut headers);
    Ok(switching(headers, protocol))
}

/// Makes the connection of a request one to a port of the guest, whatever is spoken there.
pub async fn connect(app: &Shared, agent: &Agent, port: u16, mut request: Request) -> Answer<Response> {
    let protocol =
        wanted_upgrade(request.headers()).filter(|wanted| wanted.as_bytes().eq_ignore_ascii_case(TCP));
    let protocol = protocol.ok_or_else(|| {
        malformed("this path needs the headers \"Connection: upgrade\" and \"Upgrade: tcp\"")
    })?;
    if is_agents(port) {
        return Err(ApiError::new(
            ErrorCode::Forbidden,
            format!("port {port} is reserved for the agent: use the API"),
        ));
    }
    let place = app.place_for_upgrade()?;
    let client = hyper::upgrade::on(&mut request);
    let guest = dial(agent, port).await?;
    tunnel(app, client, async { Some(guest) }, place);
    Ok(switching(HeaderMap::new(), Some(protocol)))
}

/// Passes bytes on between a client and a guest, until both have closed or one is gone.
fn tunnel<G: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    app: &Shared,
    client: OnUpgrade,
    guest: impl Future<Output = Option<G>> + Send + 'static,
    place: OwnedSemaphorePermit,
) {
    let app = app.clone();
    let tunnel = async move {
        let _place = place;
        let _counted = app.metrics.connection();
        let (Ok(client), Some(mut guest)) = tokio::join!(client, guest) else { return };
        let mut client = TokioIo::new(client);
        tokio::select! {
            _ = tokio::io::copy_bidirectional_with_sizes(&mut client, &mut guest, PIECE, PIECE) => {}
            () = app.stopping() => {}
        }
    };
    tokio::spawn(tunnel.in_current_span());
}

/// The answer after which the connection is no longer HTTP.
fn switching(mut headers: HeaderMap, protocol: Option<HeaderValue>) -> Response {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    protocol.map(|protocol| headers.insert(UPGRADE, protocol));
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *response.headers_mut() = headers;
    response.extensions_mut().insert(PassThrough);
    response
}

/// The protocol that a client asks for instead of HTTP.
fn wanted_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asks = tokens(headers).any(|token| token.eq_ignore_ascii_case("upgrade"));
    headers.get(UPGRADE).filter(|_| asks).cloned()
}

/// What `Connection` names.
fn tokens(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// Takes out what is about one connection: what `Connection` names, and what always is.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = tokens(headers).filter_map(|token| token.parse().ok()).collect();
    let always = [
        CONNECTION,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
    ];
    for name in named.into_iter().chain(always) {
        headers.remove(name);
    }
}

fn request_headers(mut headers: HeaderMap, to: &Destination<'_>, upgrade: Option<HeaderValue>) -> HeaderMap {
    remove_hop_by_hop(&mut headers);
    // It was waited for here, if at all.
    headers.remove(EXPECT);
    let host = headers.insert(HOST, to.host.clone());
    let mut tell = |name: &'static str, value: Option<HeaderValue>| match value {
        Some(value) => drop(headers.insert(name, value)),
        // Only those who were asked know.
        None => drop(headers.remove(name)),
    };
    let text = |text: String| HeaderValue::try_from(text).ok();
    let Forwarded { address, encrypted, prefix } = &to.forwarded;
    tell("forwarded", None);
    tell("x-forwarded-host", host);
    tell("x-forwarded-for", address.and_then(|address| text(address.to_string())));
    tell("x-forwarded-proto", Some(HeaderValue::from_static(if *encrypted { "https" } else { "http" })));
    tell("x-forwarded-prefix", prefix.clone().and_then(text));
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
    headers
}

/// Whether a path is one of those on the agent's ports that only the host calls, however it is written.
fn is_private(path: &str) -> bool {
    let (mut first, mut segments) = (None, Vec::new());
    let decoded = decoded(path);
    for segment in decoded.split(['/', '\\']).map(str::trim).filter(|segment| !["", "."].contains(segment)) {
        first = first.or(Some(segment));
        match segment {
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    // With `..` followed and without it.
    let both = [first, segments.first().copied()];
    both.into_iter().flatten().any(|first| PRIVATE.iter().any(|private| first.eq_ignore_ascii_case(private)))
}

/// Without %XX, also where it was written twice.
fn decoded(path: &str) -> String {
    let once = |text: String, _| percent_decode_str(&text).decode_utf8_lossy().into_owned();
    (0..3).fold(path.to_owned(), once)
}

#[cfg(test)]
mod tests {
    use forkd_engine::guest::Guest;
    use proptest::prelude::*;

    use super::*;

    fn headers(list: &[(&str, &str)]) -> HeaderMap {
        let one = |(name, value): &(&str, &str)| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
        };
        list.iter().map(one).collect()
    }

    #[test]
    fn what_is_about_one_connection_stays_there() {
        let agent = Agent::new(Guest::new("/nowhere"));
        let to = Destination {
            agent: &agent,
            port: 80,
            target: "/".into(),
            host: HeaderValue::from_static("localhost:80"),
            forwarded: Forwarded {
                address: Some([10, 0, 0, 1].into()),
                encrypted: true,
                prefix: Some("/v1/x".into()),
            },
        };
        let sent = headers(&[
            ("host", "example.org"),
            ("connection", "close, X-Mine"),
            ("x-mine", "1"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("expect", "100-continue"),
            ("x-forwarded-for", "6.6.6.6"),
            ("forwarded", "for=6.6.6.6"),
            ("accept", "*/*"),
        ]);
        let expected = headers(&[
            ("host", "localhost:80"),
            ("accept", "*/*"),
            ("x-forwarded-host", "example.org"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-prefix", "/v1/x"),
        ]);
        assert_eq!(request_headers(sent, &to, None), expected);
        let asked = headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]);
        let upgrade = wanted_upgrade(&asked);
        assert_eq!(upgrade.as_ref().unwrap(), "websocket");
        let passed = request_headers(asked, &to, upgrade);
        assert_eq!(
            (&passed["connection"], &passed["upgrade"]),
            (&"upgrade".parse().unwrap(), &"websocket".parse().unwrap())
        );
        assert_eq!(wanted_upgrade(&headers(&[("upgrade", "websocket")])), None);
    }

    #[test]
    fn the_host_s_own_paths_are_known_however_they_are_written() {
        for private in [
            "/forkd/identity",
            "/forkd/",
            "/forkd",
            "//forkd/close",
            "/./forkd/x",
            "/x/../forkd/x",
            "/%66orkd/x",
            "/%2566orkd/x",
            "/FORKD/x",
            "/%2fforkd/x",
            "/\\forkd/x",
            "/init",
            "/init?x",
        ] {
            assert!(is_private(private.split('?').next().unwrap()), "{private}");
        }
        for public in ["/", "", "/health", "/files", "/forkdx", "/x/forkd/", "/initial", "/%zz"] {
            assert!(!is_private(public), "{public}");
        }
    }

    proptest! {
        #[test]
        fn any_path_may_come(path in "\\PC{0,64}", plain in "[a-z./%-]{0,32}") {
            let _ = is_private(&path);
            let private = format!("/forkd/{plain}");
            prop_assert!(is_private(&private), "{}", private);
        }
    }
}
