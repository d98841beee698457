//! The service over HTTP: one request, one answer, which is a stream of events if there is more to say than the result.

use std::sync::Arc;

use bytes::Bytes;
use forkd_client::Client;
use futures_util::future::BoxFuture;
use http_body_util::Full;
use http_body_util::combinators::BoxBody;
use hyper::http::request::Parts;
use hyper::{Request, Response};
use rmcp::model::Extensions;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};

use crate::{Failure, FindDaemon, McpService, Settings};

/// The most bytes of a request. Files are sent as arguments of `write`.
pub const MAX_BODY: usize = 4 << 20;

/// Answers requests for `/mcp`. Clones are the same one.
#[derive(Clone)]
pub struct HttpService(StreamableHttpService<McpService, NeverSessionManager>);

impl std::fmt::Debug for HttpService {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("HttpService").finish_non_exhaustive()
    }
}

impl HttpService {
    pub fn new(settings: Settings) -> HttpService {
        let service = McpService::new(settings, Arc::new(OfRequest));
        // Without sessions, nothing is kept between requests that would have to be bounded, or be some other caller's. Whoever
        // mounts this has checked hosts and origins: it knows which of them are its own.
        let config = StreamableHttpServerConfig::default()
            .with_legacy_session_mode(false)
            .with_json_response(true)
            .disable_allowed_hosts()
            .with_max_request_body_bytes(MAX_BODY);
        let make = move || Ok(service.clone());
        HttpService(StreamableHttpService::new(make, Arc::new(NeverSessionManager::default()), config))
    }

    /// Answers a request with what this client may do.
    pub async fn answer(
        &self,
        mut request: Request<Full<Bytes>>,
        client: Client,
    ) -> Response<BoxBody<Bytes, std::convert::Infallible>> {
        request.extensions_mut().insert(client);
        self.0.handle(request).await
    }
}

/// The client that came with the request.
#[derive(Debug)]
struct OfRequest;

impl FindDaemon for OfRequest {
    fn find<'a>(&'a self, request: &'a Extensions) -> BoxFuture<'a, Result<Client, Failure>> {
        let client = request.get::<Parts>().and_then(|parts| parts.extensions.get::<Client>()).cloned();
        let found =
            client.ok_or_else(|| Failure::new("Cannot ask the daemon", "the request came without a client"));
        Box::pin(std::future::ready(found))
    }
}
