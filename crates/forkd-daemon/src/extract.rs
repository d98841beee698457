//! What handlers take from a request, with refusals in our shape.
//!
//! Handlers use these instead of axum's own: a body is bounded in size and in time here, and what is wrong with a request is
//! said in words. [`Upload`] is for bodies that are larger than memory should be.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRef, FromRequest, FromRequestParts, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use forkd_api::error::ErrorCode;
use forkd_api::hint::HintCode;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, Sleep};

use crate::app::Shared;
use crate::error::{ApiError, chain};

/// A JSON body, in both directions.
#[derive(Debug, Clone, Copy)]
pub struct Json<T>(pub T);

/// The query of a path.
#[derive(Debug, Clone, Copy)]
pub struct Query<T>(pub T);

/// The parameters of a path.
#[derive(Debug, Clone, Copy)]
pub struct Path<T>(pub T);

/// A body that is read piece by piece. Its size is the handler's to bound; a pause between two pieces is bounded here.
#[derive(Debug)]
pub struct Upload(pub Body);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

impl<S: Sync, T: DeserializeOwned> FromRequest<S> for Json<T>
where
    Shared: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Json<T>, ApiError> {
        let app = Shared::from_ref(state);
        if !is_json(request.headers()) {
            return Err(ApiError::new(
                ErrorCode::UnsupportedMediaType,
                "the content-type is not application/json",
            )
            .hint(HintCode::SendJson));
        }
        let bytes = read(request.into_body(), app.limits.json_bytes, app.limits.body_time).await?;
        let value = serde_json::from_slice(&bytes);
        value.map(Json).map_err(|error| {
            ApiError::new(ErrorCode::Malformed, format!("invalid request body: {error}"))
                .hint(HintCode::ReadApi)
        })
    }
}

impl<S: Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Query<T>, ApiError> {
        let query = axum::extract::Query::try_from_uri(&parts.uri);
        query.map(|axum::extract::Query(value)| Query(value)).map_err(|error| {
            ApiError::new(ErrorCode::Malformed, format!("invalid query: {}", error.body_text()))
                .hint(HintCode::ReadApi)
        })
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Path<T>, ApiError> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(value)) => Ok(Path(value)),
            Err(error) if error.status() == StatusCode::INTERNAL_SERVER_ERROR => {
                Err(ApiError::internal(&error))
            }
            Err(error) => Err(ApiError::new(ErrorCode::Malformed, error.body_text())),
        }
    }
}

impl<S: Sync> FromRequest<S> for Upload
where
    Shared: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Upload, ApiError> {
        let app = Shared::from_ref(state);
        Ok(Upload(impatient(request.into_body(), app.limits.body_time)))
    }
}

/// The type must be said. Web pages may send forms and plain text to anybody, but not JSON.
fn is_json(headers: &HeaderMap) -> bool {
    let essence = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .map(|text| text.split(';').next().unwrap_or("").trim());
    essence.is_some_and(|essence| {
        let essence = essence.to_ascii_lowercase();
        essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
    })
}

/// Reads a whole body, at most so large, in at most this time.
pub async fn read(body: Body, limit: usize, time: Duration) -> Result<Bytes, ApiError> {
    let too_large = || ApiError::new(ErrorCode::TooLarge, format!("the body is larger than {limit} bytes"));
    // What is said to be too large is not waited for.
    if body.size_hint().lower() > u64::try_from(limit).unwrap_or(u64::MAX) {
        return Err(too_large());
    }
    match tokio::time::timeout(time, Limited::new(body, limit).collect()).await {
        Err(_) => Err(stalled(time)),
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => {
            Err(ApiError::new(ErrorCode::Malformed, "the connection closed before the end of the body")
                .detail(chain(&*error)))
        }
    }
}

fn stalled(time: Duration) -> ApiError {
    ApiError::new(
        ErrorCode::RequestTimeout,
        format!("timed out reading the body after {} s", time.as_secs_f32()),
    )
}

/// A body that fails when nothing comes for too long.
pub(crate) fn impatient(body: Body, patience: Duration) -> Body {
    Body::new(Impatient::new(body, patience))
}

#[derive(Debug)]
struct Impatient {
    body: Body,
    patience: Duration,
    deadline: Pin<Box<Sleep>>,
}

impl Impatient {
    fn new(body: Body, patience: Duration) -> Impatient {
        Impatient { body, patience, deadline: Box::pin(tokio::time::sleep(patience)) }
    }
}

impl http_body::Body for Impatient {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            let next = Instant::now() + self.patience;
            self.deadline.as_mut().reset(next);
            return Poll::Ready(frame);
        }
        ready!(self.deadline.as_mut().poll(context));
        Poll::Ready(Some(Err(axum::Error::new(stalled(self.patience)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_json_is_json() {
        let with = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_str(text).unwrap());
            is_json(&headers)
        };
        for good in ["application/json", "Application/JSON; charset=utf-8", "application/problem+json"] {
            assert!(with(good), "{good}");
        }
        for bad in ["", "text/plain", "application/jsonp", "text/json", "application/x-www-form-urlencoded"] {
            assert!(!with(bad), "{bad}");
        }
        assert!(!is_json(&HeaderMap::new()));
    }

    /// A body that never ends.
    struct Endless(bool);

    impl http_body::Body for Endless {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            if std::mem::replace(&mut self.0, true) {
                return Poll::Pending;
            }
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"{")))))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_is_bounded_in_size_and_time() {
        let time = Duration::from_secs(10);
        assert_eq!(read(Body::from("12345"), 5, time).await.unwrap(), "12345");
        assert_eq!(read(Body::from("123456"), 5, time).await.unwrap_err().code(), ErrorCode::TooLarge);
        let half = read(Body::new(Endless(false)), 5, time).await;
        assert_eq!(half.unwrap_err().code(), ErrorCode::RequestTimeout);
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_may_be_long_but_not_stand_still() {
        let mut body = Impatient::new(Body::new(Endless(false)), Duration::from_secs(10));
        assert!(body.frame().await.unwrap().is_ok());
        assert!(body.frame().await.unwrap().is_err());
    }
}
