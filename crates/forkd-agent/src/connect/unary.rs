//! Unary calls: JSON in, JSON out.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::Response;
use forkd_envd::connect::{Code, ConnectError, UNARY_TYPE};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::error_response;
use super::{MAX_MESSAGE, headers};

/// Reads the message, calls, answers; all of it within the caller's time limit.
pub async fn unary<M, A, F>(request: Request, call: impl FnOnce(M) -> F) -> Response
where
    M: DeserializeOwned,
    A: Serialize,
    F: Future<Output = Result<A, ConnectError>>,
{
    let answer = async {
        headers::check_type(request.headers(), UNARY_TYPE)?;
        let limit = headers::timeout(request.headers())?;
        within(limit, async {
            let message = parse(&read(request.into_body()).await?)?;
            let answer = call(message).await?;
            serde_json::to_vec(&answer).map_err(|error| ConnectError::new(Code::Internal, error.to_string()))
        })
        .await
    };
    match answer.await {
        Ok(json) => {
            let mut response = Response::new(Body::from(json));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(UNARY_TYPE));
            response
        }
        Err(error) => error_response(&error),
    }
}

/// An empty body is an empty message.
pub(super) fn parse<M: DeserializeOwned>(json: &[u8]) -> Result<M, ConnectError> {
    let json = if json.is_empty() { b"{}" } else { json };
    serde_json::from_slice(json)
        .map_err(|error| ConnectError::invalid(format!("the request is not understood: {error}")))
}

async fn read(body: Body) -> Result<bytes::Bytes, ConnectError> {
    axum::body::to_bytes(body, MAX_MESSAGE).await.map_err(|_| {
        let text = format!("the request is cut off, or has more than {MAX_MESSAGE} bytes");
        ConnectError::new(Code::ResourceExhausted, text)
    })
}

pub(super) async fn within<T>(
    limit: Option<Duration>,
    work: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    let Some(limit) = limit else { return work.await };
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
        let text = format!("not done within {} ms", limit.as_millis());
        Err(ConnectError::new(Code::DeadlineExceeded, text))
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Deserialize)]
    struct Question {
        number: u32,
    }

    async fn ask(body: &str, headers: &[(&str, &str)]) -> (u16, Value) {
        let mut request = Request::builder().method("POST").header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let response = unary(request, |question: Question| async move {
            tokio::time::sleep(Duration::from_millis(question.number.into())).await;
            if question.number == 13 {
                Err(ConnectError::not_found("13"))
            } else {
                Ok(json!({ "is": question.number }))
            }
        })
        .await;
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), 1000).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn answers_and_errors() {
        assert_eq!(ask(r#"{"number":1}"#, &[]).await, (200, json!({"is": 1})));
        assert_eq!(ask(r#"{"number":13}"#, &[]).await, (404, json!({"code": "not_found", "message": "13"})));
        assert_eq!(ask("{", &[]).await.0, 400);
        assert_eq!(ask("", &[]).await.0, 400);
        let late = ask(r#"{"number":50}"#, &[("connect-timeout-ms", "20")]).await;
        assert_eq!((late.0, &late.1["code"]), (504, &json!("deadline_exceeded")));
    }
}
