//! What a request fails with: one type for handlers, one shape on the wire.
//!
//! An [`ApiError`] has two messages. The text and the hint go to the caller; the detail goes to the log, once, under the
//! request's id. Every answer of 400 and above has the shape of [`ErrorBody`]: those that handlers make, those of the frame
//! around them, and those of extractors, which `shape` replaces. Only what a guest has answered through a proxy passes as
//! it is, with [`PassThrough`] on it.

use std::error::Error;
use std::fmt;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
pub(crate) use forkd_proto::causes::with_causes as chain;

use forkd_api::error::{ErrorBody, ErrorCode};
use forkd_api::hint::HintCode;

/// A request that failed.
#[derive(Debug)]
pub struct ApiError {
    body: ErrorBody,
    detail: Option<String>,
}

/// What a handler returns.
pub type Answer<T> = Result<T, ApiError>;

/// Remains on an answer that was an [`ApiError`], for metrics and the log.
#[derive(Debug, Clone)]
pub struct Failure {
    pub code: ErrorCode,
    pub text: String,
    pub hint: Option<String>,
    pub hint_code: Option<HintCode>,
    pub detail: Option<String>,
}

/// On an answer that is not ours: its status and body go to the caller as they came from a guest.
#[derive(Debug, Clone, Copy)]
pub struct PassThrough;

impl ApiError {
    /// The text is for the caller: what failed, in one sentence, without the code's meaning repeated.
    pub fn new(code: ErrorCode, text: impl Into<String>) -> ApiError {
        let body = ErrorBody { error: text.into(), code, hint: None, hint_code: None };
        ApiError { body, detail: None }
    }

    /// The daemon's own fault. The caller learns nothing about the host from it.
    pub fn internal(error: &dyn Error) -> ApiError {
        ApiError::new(ErrorCode::Internal, "the daemon failed").hint(HintCode::DaemonLog).detail(chain(error))
    }

    /// What the caller can do about it.
    pub fn hint(self, hint: HintCode) -> ApiError {
        self.hint_in_words(hint, hint.text())
    }

    /// The same, in words that know more than the code does.
    pub fn hint_in_words(mut self, hint: HintCode, text: impl Into<String>) -> ApiError {
        self.body.hint_code = Some(hint);
        self.body.hint = Some(text.into());
        self
    }

    /// What only the log gets.
    pub fn detail(mut self, detail: impl Into<String>) -> ApiError {
        self.detail = Some(detail.into());
        self
    }

    /// For an error that is part of an answer: what the gate would log is logged here.
    pub fn logged(self) -> ErrorBody {
        let detail = self.detail.as_deref().unwrap_or("");
        match self.body.code.status() {
            500.. => tracing::error!(text = %self.body.error, %detail, "part of the request failed"),
            _ => tracing::debug!(text = %self.body.error, %detail, "part of the request was refused"),
        }
        self.body
    }

    pub fn code(&self) -> ErrorCode {
        self.body.code
    }

    pub fn body(&self) -> &ErrorBody {
        &self.body
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.body.error)
    }
}

impl Error for ApiError {}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let ErrorBody { code, error: text, hint, hint_code } = self.body.clone();
        let failure = Failure { code, text, hint, hint_code, detail: self.detail };
        let mut response = (status(failure.code), Json(self.body)).into_response();
        if failure.code == ErrorCode::Unauthorized {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(failure);
        response
    }
}

fn status(code: ErrorCode) -> StatusCode {
    StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Gives an answer that failed the shape, if it has another one. Its headers stay (`Allow`, for one), except those about
/// the body that is replaced.
pub fn shape(response: Response) -> Response {
    let extensions = response.extensions();
    let fine = response.status().as_u16() < 400;
    if fine || extensions.get::<Failure>().is_some() || extensions.get::<PassThrough>().is_some() {
        return response;
    }
    let (code, text) = standard(response.status());
    let mut shaped = ApiError::new(code, text).into_response();
    for (name, value) in response.headers() {
        if !shaped.headers().contains_key(name) && !name.as_str().starts_with("content-") {
            shaped.headers_mut().insert(name, value.clone());
        }
    }
    shaped
}

/// What stands for a status that came without a code.
fn standard(status: StatusCode) -> (ErrorCode, &'static str) {
    match status.as_u16() {
        401 => (ErrorCode::Unauthorized, "a token is needed"),
        403 => (ErrorCode::Forbidden, "not allowed"),
        404 => (ErrorCode::NotFound, "there is no such path"),
        405 => (ErrorCode::MethodNotAllowed, "this path does not have this method"),
        408 => (ErrorCode::RequestTimeout, "timed out reading the request"),
        409 => (ErrorCode::WrongState, "not possible in the current state"),
        413 => (ErrorCode::TooLarge, "the request's body is too large"),
        415 => (ErrorCode::UnsupportedMediaType, "unsupported content type"),
        429 => (ErrorCode::TooMany, "too many requests"),
        503 => (ErrorCode::Unavailable, "the daemon cannot do this now"),
        400..=499 => (ErrorCode::Malformed, "invalid request"),
        _ => (ErrorCode::Internal, "the daemon failed"),
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn body(response: Response) -> (u16, ErrorBody) {
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap())
    }

    #[tokio::test]
    async fn the_detail_stays_here() {
        let error = std::io::Error::other("/secret/path");
        let (status, body) = body(ApiError::internal(&error).into_response()).await;
        assert_eq!((status, body.code), (500, ErrorCode::Internal));
        assert!(!serde_json::to_string(&body).unwrap().contains("secret"));
    }

    #[tokio::test]
    async fn any_failure_gets_the_shape_and_keeps_its_status_where_a_code_has_it() {
        for status in [400, 401, 403, 404, 405, 408, 409, 413, 415, 429, 500, 503] {
            let plain = (StatusCode::from_u16(status).unwrap(), [("allow", "GET")], "text").into_response();
            let shaped = shape(plain);
            assert_eq!(shaped.headers()["content-type"], "application/json");
            assert_eq!(shaped.headers()["allow"], "GET");
            let (is, body) = body(shaped).await;
            assert_eq!((is, body.code.status()), (status, status));
        }
        assert_eq!(body(shape(StatusCode::IM_A_TEAPOT.into_response())).await.0, 400);
        assert_eq!(body(shape(StatusCode::BAD_GATEWAY.into_response())).await.0, 500);
    }

    #[tokio::test]
    async fn what_a_guest_answers_passes() {
        let mut response = (StatusCode::NOT_FOUND, "the guest's").into_response();
        response.extensions_mut().insert(PassThrough);
        let bytes = shape(response).into_body().collect().await.unwrap().to_bytes();
        assert_eq!(bytes, "the guest's");
    }
}
