//! HTTP for the exporter: the client that registries are asked with, too.

use std::time::Duration;

use bytes::BytesMut;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use reqwest::redirect::Policy;

/// What a collector says about spans that it did not take. More is not needed.
const MAX_ANSWER: usize = 64 << 10;

#[derive(Debug)]
pub struct Client(reqwest::Client);

impl Client {
    pub fn new(limit: Duration) -> reqwest::Result<Client> {
        // The first choice of a process is final, and fine too.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // Headers of the request may be secrets, which are for the collector alone.
        let client = reqwest::Client::builder().redirect(Policy::none()).timeout(limit).build()?;
        Ok(Client(client))
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let mut answer = self.0.execute(request.try_into()?).await?;
        let mut body = BytesMut::new();
        while let Some(piece) = answer.chunk().await? {
            if body.len() + piece.len() > MAX_ANSWER {
                return Err(format!("the collector's answer is larger than {MAX_ANSWER} bytes").into());
            }
            body.extend_from_slice(&piece);
        }
        let mut response = Response::new(body.freeze());
        *response.status_mut() = answer.status();
        *response.headers_mut() = std::mem::take(answer.headers_mut());
        Ok(response)
    }
}

#[async_trait::async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        self.send(request).await.map_err(|error| {
            // The exporter passes on only that there was one. An address may have a password in it.
            let error: HttpError = match error.downcast::<reqwest::Error>() {
                Ok(error) => error.without_url().into(),
                Err(error) => error,
            };
            tracing::debug!(error = &*error as &dyn std::error::Error, "the collector was not reached");
            error
        })
    }
}
