//! Ports of a sandbox, by path.

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::CONTENT_SECURITY_POLICY;
use axum::middleware::from_fn;
use axum::response::Response;
use axum::routing::any;
use forkd_api::error::ErrorBody;
use forkd_api::token::Scope;
use forkd_engine::SandboxHandle;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::Shared;
use crate::auth::{self, Caller, Peer};
use crate::during::during;
use crate::error::{Answer, ApiError};
use crate::extract::Path;
use crate::proxy::{Destination, Forwarded, connect, forward};
use crate::routes::checks::malformed;
use crate::routes::responses::AgentErrors;

/// A page of a guest's comes from the daemon's own address here. Without this, a browser would let it do what the daemon's pages
/// may, and on the loopback that is everything.
const FOREIGN: &str = "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts";
/// How many segments are before the guest's path: `/v1/sandboxes/{id}/proxy/{port}/`.
const SEGMENTS: usize = 6;

pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(proxy))
        .routes(routes!(tunnel))
        .route("/v1/sandboxes/{id}/proxy/{port}/{*path}", any(proxy))
        .route("/v1/sandboxes/{id}/proxy/{port}/", any(root))
        .route("/v1/sandboxes/{id}/proxy/{port}", any(root))
        .route_layer(from_fn(auth::require(Scope::Run)))
}

/// Proxies a request to a port of the sandbox: HTTP with any method, and other protocols after an upgrade, such as WebSockets.
///
/// The proxy removes forkd's token. The guest sees `localhost` and the port as its host, and the original values in
/// `X-Forwarded-*`. Browsers put the response into an opaque origin. A response of the guest is passed through unchanged, also with
/// a status of 400 or more; errors of the daemon are ErrorBody.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/proxy/{port}/{*path}",
    tag = "sandboxes",
    operation_id = "proxy",
    params(("id" = String, Path), ("port" = u16, Path, minimum = 1), ("path" = String, Path)),
    responses(
        (status = 101, description = "Switched to another protocol"),
        (status = 200, description = "The guest's response, with its own status"),
        AgentErrors,
        (status = 403, description = "A path of the agent that is reserved for the daemon", body = ErrorBody),
        (status = 502, description = "No process listens on the port, or its response is not HTTP", body = ErrorBody),
        (status = 503, description = "The daemon has too many open connections", body = ErrorBody),
        (status = 504, description = "The guest did not answer in time", body = ErrorBody),
    )
)]
async fn proxy(
    State(app): State<Shared>,
    Path((id, port, _)): Path<(String, u16, String)>,
    Extension(peer): Extension<Peer>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answer<Response> {
    let sandbox = app.sandbox(&caller, &id)?;
    pass(&app, &sandbox, port, &peer, request).await
}

/// Opens a TCP connection to a port of the sandbox and forwards bytes in both directions.
///
/// The request needs the headers `Connection: upgrade` and `Upgrade: tcp`. After the response with status 101, the connection
/// carries the bytes of the port. Each side can close its direction separately. `forkd port-forward` uses this.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/ports/{port}",
    tag = "sandboxes",
    operation_id = "connect_port",
    params(("id" = String, Path), ("port" = u16, Path, minimum = 1)),
    responses(
        (status = 101, description = "The bytes of the connection"),
        (status = 400, description = "The request is not an upgrade to tcp", body = ErrorBody),
        AgentErrors,
        (status = 403, description = "The port is reserved for the agent", body = ErrorBody),
        (status = 502, description = "No process listens on the port", body = ErrorBody),
        (status = 503, description = "The daemon has too many open connections", body = ErrorBody),
    )
)]
async fn tunnel(
    State(app): State<Shared>,
    Path((id, port)): Path<(String, u16)>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answer<Response> {
    let sandbox = app.sandbox(&caller, &id)?;
    check_port(port)?;
    let agent = sandbox.awake_agent().await?;
    during(&sandbox, connect(&app, agent, port, request)).await
}

fn check_port(port: u16) -> Answer<()> {
    match port {
        0 => Err(malformed("port is 0, expected 1 to 65535")),
        _ => Ok(()),
    }
}

/// The same for the guest's root.
async fn root(
    State(app): State<Shared>,
    Path((id, port)): Path<(String, u16)>,
    Extension(peer): Extension<Peer>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answer<Response> {
    let sandbox = app.sandbox(&caller, &id)?;
    pass(&app, &sandbox, port, &peer, request).await
}

async fn pass(
    app: &Shared,
    sandbox: &SandboxHandle,
    port: u16,
    peer: &Peer,
    mut request: Request,
) -> Answer<Response> {
    check_port(port)?;
    let agent = sandbox.awake_agent().await?;
    let path = request.uri().path();
    // As it was written: what is decoded cannot be told from what was not encoded.
    let rest = path.splitn(SEGMENTS + 1, '/').nth(SEGMENTS).unwrap_or_default();
    let prefix = path.strip_suffix(rest).unwrap_or(path).trim_end_matches('/').to_owned();
    let target = match request.uri().query() {
        Some(query) => format!("/{rest}?{query}"),
        None => format!("/{rest}"),
    };
    auth::keep_tokens(request.headers_mut());
    let host =
        HeaderValue::try_from(format!("localhost:{port}")).map_err(|error| ApiError::internal(&error))?;
    let address = match peer {
        Peer::Tcp { address, .. } => Some(address.ip()),
        Peer::Unix { .. } => None,
    };
    let forwarded = Forwarded { address, encrypted: peer.speaks_tls(), prefix: Some(prefix) };
    let to = Destination { agent, port, target, host, forwarded };
    let mut response = during(sandbox, forward(app, to, request)).await?;
    response.headers_mut().append(CONTENT_SECURITY_POLICY, HeaderValue::from_static(FOREIGN));
    Ok(response)
}
