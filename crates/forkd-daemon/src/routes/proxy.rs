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

/// Passes a request on to a port of the sandbox, and its answer back: HTTP with any method, and whatever a client and a guest
/// agree on after an upgrade, as WebSockets do.
///
/// forkd's own token stays here. The guest sees `localhost` and the port as its host, and the client's words in `X-Forwarded-*`.
/// Browsers treat what comes as a page of nobody's. An answer of the guest's comes as it is, also with a status of 400 or more;
/// those of the daemon's are ErrorBody.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/proxy/{port}/{*path}",
    tag = "sandboxes",
    operation_id = "proxy",
    params(("id" = String, Path), ("port" = u16, Path, minimum = 1), ("path" = String, Path)),
    responses(
        (status = 101, description = "Bytes of another protocol from now on"),
        (status = 200, description = "What the guest answers, with its own status"),
        AgentErrors,
        (status = 403, description = "A path of the agent's that is the host's own", body = ErrorBody),
        (status = 502, description = "Nobody listens on the port, or its answer is not HTTP", body = ErrorBody),
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

/// Opens a connection to a port of the sandbox and passes bytes in both directions, whatever is spoken.
///
/// The request has the headers `Connection: upgrade` and `Upgrade: tcp`. After the answer with status 101 the connection belongs to the
/// port. Each side may close its direction alone. `forkd port-forward` uses this.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/ports/{port}",
    tag = "sandboxes",
    operation_id = "connect_port",
    params(("id" = String, Path), ("port" = u16, Path, minimum = 1)),
    responses(
        (status = 101, description = "Bytes of the port from now on"),
        (status = 400, description = "The request does not ask for an upgrade to tcp", body = ErrorBody),
        AgentErrors,
        (status = 403, description = "A port of the agent", body = ErrorBody),
        (status = 502, description = "Nothing listens on the port", body = ErrorBody),
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
