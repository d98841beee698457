//! The Model Context Protocol: `forkd-mcp`'s service, which asks this daemon as any other client does.
//!
//! ```text
//!   POST /mcp ──▶ gate ──▶ serve ──▶ forkd-mcp ──▶ forkd-client ──▶ a pipe ──▶ connection ──▶ gate ──▶ /v1/...
//! ```
//!
//! What a caller may do is decided by the second gate, with the caller's own token and address, so that scopes, projects, limits
//! and the audit log are those of the API. A token with the scope read passes the first one: the service lists only what it may use.

use std::sync::Arc;

use axum::Extension;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use forkd_client::{Address, Client, Secret};
use forkd_mcp::{HttpService, MAX_BODY};
use http_body_util::Full;
use tokio::io::duplex;

use crate::app::Shared;
use crate::auth::{self, Peer};
use crate::error::{Answer, PassThrough};
use crate::extract::read;
use crate::server::connection;

pub(crate) const PATH: &str = "/mcp";
/// How much of a request or an answer waits in a pipe.
const PIPE: usize = 64 << 10;

struct Mcp {
    app: Shared,
    service: HttpService,
    /// All that the daemon answers, except this.
    own: Router,
}

pub(super) fn routes(app: &Shared, own: Router) -> Router {
    let service = HttpService::new(app.mcp.clone());
    let mcp = Arc::new(Mcp { app: app.clone(), service, own });
    Router::new().route(PATH, any(serve)).with_state(mcp)
}

async fn serve(
    State(mcp): State<Arc<Mcp>>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Answer<Response> {
    // A token is no reason to trust the page that has it, and no client of the protocol is a page of this host.
    auth::refuse_other_origins(request.headers())?;
    let (parts, body) = request.into_parts();
    let body = read(body, MAX_BODY, mcp.app.limits.body_time).await?;
    let client = client(&mcp, peer, &parts.headers);
    let answer = mcp.service.answer(Request::from_parts(parts, Full::new(body)), client).await;
    let mut response = answer.map(Body::new).into_response();
    // Errors have the protocol's shape.
    response.extensions_mut().insert(PassThrough);
    Ok(response)
}

/// A client of this daemon that asks as the caller does.
fn client(mcp: &Arc<Mcp>, peer: Peer, headers: &HeaderMap) -> Client {
    let token = auth::shown_token(headers).and_then(|token| Secret::new(token.expose()));
    let address = match peer {
        // The file's path says nothing to the caller, who has it.
        Peer::Unix { .. } => Address::Unix("/".into()),
        Peer::Tcp { tls, .. } => address(tls, headers),
    };
    let mcp = Arc::clone(mcp);
    Client::in_process(address, token, move || {
        let (client, server) = duplex(PIPE);
        tokio::spawn(connection::serve(server, peer.clone(), mcp.app.clone(), mcp.own.clone()));
        Box::new(client)
    })
}

/// Where the caller takes the daemon to be, which is where ports of sandboxes are reached.
fn address(tls: bool, headers: &HeaderMap) -> Address {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let scheme = if tls { "https" } else { "http" };
    let usual = || Address::Tcp { tls, host: "localhost".into(), port: if tls { 443 } else { 80 } };
    // Without a port, a client means the protocol's.
    let named = match host.rsplit_once(':') {
        Some((_, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => format!("{scheme}://{host}"),
        _ => format!("{scheme}://{host}:{}", if tls { 443 } else { 80 }),
    };
    named.parse().unwrap_or_else(|_| usual())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn the_address_is_the_callers() {
        for (tls, host, expected) in [
            (false, "127.0.0.1:8889", "http://127.0.0.1:8889"),
            (true, "forkd.example", "https://forkd.example:443"),
            (false, "[::1]:1", "http://[::1]:1"),
            (false, "[::1]", "http://[::1]:80"),
            (false, "a b", "http://localhost:80"),
            (true, "", "https://localhost:443"),
        ] {
            let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_str(host).unwrap())]);
            assert_eq!(address(tls, &headers).to_string(), expected, "{host}");
        }
    }
}
