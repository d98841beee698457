//! Calls with one message in and many out.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use axum::response::Response;
use bytes::Bytes;
use forkd_envd::connect::{ConnectError, STREAM_TYPE, message};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::body::{self, Sender};
use super::client_stream::Messages;
use super::{headers, unary};

/// Reads the one message of the request, and gives back its headers.
pub async fn read_request<M: DeserializeOwned>(request: Request) -> Result<(HeaderMap, M), ConnectError> {
    headers::check_type(request.headers(), STREAM_TYPE)?;
    let limit = headers::timeout(request.headers())?;
    let (parts, body) = request.into_parts();
    let message = unary::within(limit, async {
        let mut messages = Messages::new(body);
        let none = || ConnectError::invalid("the request has no message");
        let message = messages.next::<M>().await?.ok_or_else(none)?;
        // To its end, which may come late: a connection whose request was not read cannot be used again.
        match messages.next::<serde::de::IgnoredAny>().await? {
            None => Ok(message),
            Some(_) => Err(ConnectError::invalid("the request has more than one message")),
        }
    });
    Ok((parts.headers, message.await?))
}

/// The answer, and where to put its messages. `keepalive` is the JSON of the message that fills silence; the request's headers
/// say how often, and when the stream ends.
pub fn respond(headers: &HeaderMap, keepalive: &[u8]) -> Result<(Sender, Response), ConnectError> {
    let deadline = headers::timeout(headers)?.map(|limit| Instant::now() + limit);
    let (sender, body) = body::channel(message(keepalive), headers::keepalive(headers), deadline);
    Ok((sender, stream_response(Body::new(body))))
}

/// An answer that is there at once.
pub(super) fn whole_response(envelopes: Vec<Bytes>) -> Response {
    stream_response(Body::from(envelopes.concat()))
}

fn stream_response(body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(STREAM_TYPE));
    response
}
