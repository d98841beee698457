//! Calls with many messages in and one out.

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use forkd_envd::connect::{Code, ConnectError, Decoder, Frame, STREAM_TYPE, end, message};
use http_body_util::BodyExt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::error_response;
use super::{MAX_MESSAGE, headers, server_stream, unary};

/// The messages of a request, as they come.
#[derive(Debug)]
pub struct Messages {
    body: Body,
    decoder: Decoder,
}

impl Messages {
    pub(super) fn new(body: Body) -> Self {
        Self { body, decoder: Decoder::new(MAX_MESSAGE) }
    }

    /// Waits for the next message; nothing after the last.
    pub async fn next<M: DeserializeOwned>(&mut self) -> Result<Option<M>, ConnectError> {
        loop {
            // After an end, nothing more is decoded.
            if let Some(Frame::Message(json)) = self.decoder.next_frame()? {
                return unary::parse(&json).map(Some);
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.decoder.push(frame.data_ref().map_or(&[], |data| data.as_ref())),
                Some(Err(error)) => {
                    return Err(ConnectError::invalid(format!("the request broke off: {error}")));
                }
                None => return self.decoder.finish().map(|()| None),
            }
        }
    }
}

/// Calls with the request's messages and answers with one.
pub async fn client_stream<A, F>(request: Request, call: impl FnOnce(Messages) -> F) -> Response
where
    A: Serialize,
    F: Future<Output = Result<A, ConnectError>>,
{
    let limit = match headers::check_type(request.headers(), STREAM_TYPE)
        .and_then(|()| headers::timeout(request.headers()))
    {
        Ok(limit) => limit,
        Err(error) => return error_response(&error),
    };
    let answer = unary::within(limit, async {
        let answer = call(Messages::new(request.into_body())).await?;
        serde_json::to_vec(&answer).map_err(|error| ConnectError::new(Code::Internal, error.to_string()))
    });
    server_stream::whole_response(match answer.await {
        Ok(json) => vec![message(&json), end(&Ok(()))],
        Err(error) => vec![end(&Err(error))],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn sum(body: Vec<u8>) -> String {
        let request = Request::builder().header("content-type", STREAM_TYPE).body(Body::from(body)).unwrap();
        let response = client_stream(request, |mut messages| async move {
            let mut sum = 0;
            while let Some(number) = messages.next::<u32>().await? {
                sum += number;
            }
            Ok(sum)
        })
        .await;
        assert_eq!(response.status(), 200);
        String::from_utf8_lossy(&axum::body::to_bytes(response.into_body(), 1000).await.unwrap()).into_owned()
    }

    #[tokio::test]
    async fn many_messages_one_answer() {
        let body = [message(b"1"), message(b"41")].concat();
        assert_eq!(sum(body).await, "\0\0\0\0\x0242\x02\0\0\0\x02{}");
        let cut = message(b"1")[..4].to_vec();
        assert!(sum(cut).await.contains("invalid_argument"));
    }
}
