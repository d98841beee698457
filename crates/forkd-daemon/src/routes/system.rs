//! The daemon itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::LazyLock;

use axum::Extension;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn;
use axum::response::IntoResponse;
use forkd_api::error::ErrorCode;
use forkd_api::system::{Health, Problem, ProblemList, TcpPort, Version};
use forkd_api::token::{self, Scope};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::Shared;
use crate::auth::Caller;
use crate::error::{Answer, ApiError};
use crate::extract::Json;
use crate::{auth, housekeeping, metrics};

const PEM: &str = "application/x-pem-file";

pub(super) fn routes() -> OpenApiRouter<Shared> {
    let problems =
        OpenApiRouter::new().routes(routes!(problems)).route_layer(from_fn(auth::require(Scope::Admin)));
    OpenApiRouter::new()
        .merge(problems)
        .routes(routes!(health))
        .routes(routes!(version))
        .routes(routes!(caller))
        .routes(routes!(ca))
        .routes(routes!(metrics_text))
        .routes(routes!(document))
}

/// Reports whether the daemon accepts requests.
///
/// Needs no token.
#[utoipa::path(
    get,
    path = "/healthz",
    tag = "system",
    operation_id = "health",
    security(()),
    responses(
        (status = 200, description = "The daemon is ready", body = Health),
        (status = 503, description = "The daemon is stopping", body = forkd_api::error::ErrorBody),
    )
)]
async fn health(State(app): State<Shared>) -> Answer<Json<Health>> {
    if app.is_stopping() {
        return Err(ApiError::new(ErrorCode::Unavailable, "the daemon is stopping"));
    }
    Ok(Json(Health { ok: true }))
}

/// Returns the version of the daemon.
#[utoipa::path(
    get,
    path = "/version",
    tag = "system",
    operation_id = "version",
    responses((status = 200, description = "The versions of the daemon and the API", body = Version))
)]
async fn version(State(app): State<Shared>) -> Json<Version> {
    Json(Version {
        emulated: app.library.emulated,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        api: forkd_api::PREFIX.trim_start_matches('/').to_owned(),
        tcp: app.tcp.get().map(|address| TcpPort {
            url: url(app.tls, *address),
            needs_token: auth::tcp_needs_token(&app.tokens, address.ip().is_loopback()),
        }),
    })
}

/// The URL at which this host reaches what listens at an address.
fn url(tls: bool, address: SocketAddr) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let scheme = if tls { "https" } else { "http" };
    format!("{scheme}://{}", SocketAddr::new(ip, address.port()))
}

/// Returns the caller's identity and what its token allows.
#[utoipa::path(
    get,
    path = "/v1/caller",
    tag = "system",
    operation_id = "caller",
    responses((status = 200, description = "The name, scope, project and limits of the caller", body = token::Caller))
)]
async fn caller(Extension(caller): Extension<Caller>) -> Json<token::Caller> {
    let Caller { name, scope, project, limits } = caller;
    Json(token::Caller { name, scope, project: project.to_string(), limits })
}

/// Returns the certificate of the daemon's CA, in PEM.
///
/// Needs no token. Clients that trust it can use TLS on the daemon's port: `https://localhost:8889`,
/// `https://8000-<id>.localhost:8889`.
#[utoipa::path(
    get,
    path = "/v1/ca",
    tag = "system",
    operation_id = "ca",
    security(()),
    responses(
        (status = 200, description = "The certificate", body = String, content_type = PEM),
        (status = 404, description = "The daemon has no CA: it uses --tls-cert, or no TLS",
            body = forkd_api::error::ErrorBody),
    )
)]
async fn ca(State(app): State<Shared>) -> Answer<impl IntoResponse> {
    let certificate = app.ca.get().cloned().ok_or_else(|| {
        ApiError::new(
            ErrorCode::NotFound,
            "the daemon has no CA: it was started with --tls-cert, or without TCP",
        )
    })?;
    Ok(([(CONTENT_TYPE, PEM)], certificate))
}

/// Lists the files of the daemon that it cannot read.
///
/// Needs the scope admin, since the paths are those of the host.
#[utoipa::path(
    get,
    path = "/v1/problems",
    tag = "system",
    operation_id = "problems",
    responses(
        (status = 200, description = "Each problem with its reason; empty without problems", body = ProblemList),
        (status = 403, description = "The token's scope is not admin", body = forkd_api::error::ErrorBody),
    )
)]
async fn problems(State(app): State<Shared>) -> Json<ProblemList> {
    let problems = app
        .engine
        .unreadable()
        .into_iter()
        .map(|unreadable| Problem { path: unreadable.path.display().to_string(), reason: unreadable.reason });
    Json(ProblemList { problems: problems.collect() })
}

/// Returns metrics for Prometheus.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "system",
    operation_id = "metrics",
    responses((
        status = 200,
        description = "In the OpenMetrics text format",
        body = String,
        content_type = "application/openmetrics-text"
    ))
)]
async fn metrics_text(State(app): State<Shared>) -> Answer<impl IntoResponse> {
    housekeeping::gauge(&app);
    let text = app.metrics.text().map_err(|error| ApiError::internal(&error))?;
    Ok(([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text))
}

/// Returns this document.
///
/// Needs no token.
#[utoipa::path(
    get,
    path = "/openapi.json",
    tag = "system",
    operation_id = "openapi",
    security(()),
    responses((status = 200, description = "The API, in OpenAPI 3.1", body = serde_json::Value))
)]
async fn document() -> Answer<impl IntoResponse> {
    static TEXT: LazyLock<Result<String, serde_json::Error>> = LazyLock::new(|| super::document().to_json());
    let text = TEXT.as_ref().map_err(|error| ApiError::internal(error))?;
    Ok(([(CONTENT_TYPE, "application/json")], text.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_is_one_that_this_host_can_use() {
        for (tls, address, expected) in [
            (false, "127.0.0.1:8889", "http://127.0.0.1:8889"),
            (false, "0.0.0.0:80", "http://127.0.0.1:80"),
            (true, "[::]:1", "https://[::1]:1"),
            (true, "192.0.2.1:443", "https://192.0.2.1:443"),
        ] {
            assert_eq!(url(tls, address.parse().unwrap()), expected);
        }
    }
}
