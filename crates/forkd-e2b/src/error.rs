//! Errors as E2B's clients read them.
//!
//! ```json
//! {"code": 404, "message": "there is no sandbox \"i1\""}
//! ```
//!
//! `code` is always the status: the JavaScript client looks at nothing else. Handlers fail with [`forkd_daemon::error::ApiError`] as all
//! do; the gate gives their answers this shape. Clients repeat requests that fail in a way that may pass, so they are told where
//! that is of no use.

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use forkd_api::error::ErrorCode;
use forkd_api::hint::HintCode;
use serde::Serialize;

use forkd_daemon::error::Failure;

const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");
/// Seconds until room may have been made.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("2");

/// The body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Body {
    pub code: u16,
    pub message: String,
}

impl Body {
    pub fn of(code: ErrorCode, message: impl Into<String>) -> Body {
        Body { code: status(code).as_u16(), message: message.into() }
    }
}

/// E2B knows no 507: what is lacking may be there later.
fn status(code: ErrorCode) -> StatusCode {
    match code {
        ErrorCode::NoMemory | ErrorCode::NoDisk => StatusCode::SERVICE_UNAVAILABLE,
        code => StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

/// Whether the same request may succeed in a moment; `None` if clients know by themselves.
fn should_retry(code: ErrorCode) -> Option<bool> {
    match code {
        ErrorCode::NoMemory | ErrorCode::NoDisk => Some(true),
        // The token's own limit, or a guest that does not come up: both are the same in a moment.
        ErrorCode::TooMany | ErrorCode::GuestFailed | ErrorCode::GuestTimeout | ErrorCode::UpstreamFailed => {
            Some(false)
        }
        _ => None,
    }
}

/// What failed and what to do about it, in one line: there is no other place for it.
pub(crate) fn message(text: &str, hint_code: Option<HintCode>, hint: Option<&str>) -> String {
    match hint_code.and_then(in_words_of_e2b).or(hint) {
        Some(hint) => format!("{text}: {hint}"),
        None => text.to_owned(),
    }
}

/// Hints that name something of forkd's own API, as users of E2B's clients can follow them.
fn in_words_of_e2b(hint: HintCode) -> Option<&'static str> {
    Some(match hint {
        HintCode::ListSandboxes => "Sandbox.list() lists the existing sandboxes",
        HintCode::ListSnapshots | HintCode::ListImages => HintCode::NameTemplate.text(),
        HintCode::LookAtConsole => "its console may say why: forkd logs, on the daemon's host",
        HintCode::LookAtEnd => "forkd inspect says why, on the daemon's host",
        HintCode::NetworkOfSnapshot => "leave out the network, or use a template that has one",
        HintCode::NeedsToken => {
            "E2B_API_KEY has the key; make one on the daemon's host: forkd token create NAME --scope run"
        }
        _ => return None,
    })
}

/// Gives an answer that failed this shape. Others pass as they are.
pub(crate) fn dress(response: Response) -> Response {
    let Some(failure) = response.extensions().get::<Failure>().cloned() else { return response };
    let body = Body::of(failure.code, message(&failure.text, failure.hint_code, failure.hint.as_deref()));
    let mut dressed = (status(failure.code), Json(body)).into_response();
    for (name, value) in response.headers() {
        if !name.as_str().starts_with("content-") {
            dressed.headers_mut().insert(name, value.clone());
        }
    }
    if let Some(retry) = should_retry(failure.code) {
        let headers = dressed.headers_mut();
        headers.insert(SHOULD_RETRY, HeaderValue::from_static(if retry { "true" } else { "false" }));
        if retry {
            headers.insert(header::RETRY_AFTER, RETRY_AFTER);
        }
    }
    dressed.extensions_mut().insert(failure);
    dressed
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use serde_json::{Value, json};

    use super::*;
    use forkd_daemon::error::ApiError;

    async fn dressed(error: ApiError) -> (Response, Value) {
        let (parts, body) = dress(error.into_response()).into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        (Response::from_parts(parts, axum::body::Body::empty()), serde_json::from_slice(&bytes).unwrap())
    }

    #[tokio::test]
    async fn the_code_is_the_status() {
        for code in [
            ErrorCode::Malformed,
            ErrorCode::Unauthorized,
            ErrorCode::NotFound,
            ErrorCode::WrongState,
            ErrorCode::TooMany,
            ErrorCode::Internal,
            ErrorCode::NoMemory,
            ErrorCode::NoDisk,
            ErrorCode::GuestTimeout,
        ] {
            let error = ApiError::new(code, "it failed").hint(HintCode::MakeAgain);
            let (response, body) = dressed(error).await;
            let message = "it failed: remove it and make it again";
            assert_eq!(body, json!({"code": response.status().as_u16(), "message": message}));
            assert!(response.extensions().get::<Failure>().is_some(), "it is still counted");
        }
    }

    #[test]
    fn hints_are_those_of_users_of_e2b_s_clients() {
        let said = |code: HintCode| message("x", Some(code), Some(code.text()));
        assert_eq!(said(HintCode::ListSandboxes), "x: Sandbox.list() lists the existing sandboxes");
        assert_eq!(said(HintCode::MakeAgain), "x: remove it and make it again");
        assert_eq!(message("x", None, None), "x");
    }

    #[tokio::test]
    async fn clients_are_told_what_to_repeat() {
        let (full, _) = dressed(ApiError::new(ErrorCode::NoMemory, "full")).await;
        assert_eq!(full.status(), 503);
        assert_eq!(
            (&full.headers()["should-retry"], &full.headers()["retry-after"]),
            (&"true".parse().unwrap(), &RETRY_AFTER)
        );
        let (limit, _) = dressed(ApiError::new(ErrorCode::TooMany, "limit")).await;
        assert_eq!(limit.headers()["should-retry"], "false");
        let (gone, _) = dressed(ApiError::new(ErrorCode::NotFound, "gone")).await;
        assert!(!gone.headers().contains_key("should-retry"));
    }

    #[tokio::test]
    async fn what_did_not_fail_passes() {
        let fine = dress((StatusCode::CREATED, "fine").into_response());
        assert_eq!(fine.status(), 201);
        assert_eq!(fine.into_body().collect().await.unwrap().to_bytes(), "fine");
    }
}
