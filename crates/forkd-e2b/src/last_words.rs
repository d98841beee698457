//! Streams that a sandbox's end cuts off get a last message with the reason, where their protocol has one.
//!
//! ```text
//!   process.Process/Start and the like   flag 2, length, {"error": {"code": "unavailable", "message": …}}
//!   /execute of the interpreter          {"type": "error", …}, then {"type": "end_of_execution"}
//! ```
//!
//! Only between two messages: in the middle of one, the rest of the stream could not be read, and it breaks off as it did.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use bytes::Bytes;
use forkd_api::error::ErrorCode;
use forkd_engine::{EngineError, SandboxHandle};
use forkd_envd::connect::{Code, ConnectError, Tracker, end};
use forkd_envd::interpreter::{CodeError, EXECUTE, Line};
use http_body::Frame;

/// How a stream is made of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    /// Connect's envelopes.
    Envelopes(Tracker),
    /// Lines of JSON.
    Lines { at_begin: bool },
}

impl Framing {
    fn of(response: &Response, path: &str) -> Option<Framing> {
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
        if kind.starts_with("application/connect+") {
            return Some(Framing::Envelopes(Tracker::default()));
        }
        (path == EXECUTE && response.status().is_success()).then_some(Framing::Lines { at_begin: true })
    }

    fn pass(&mut self, bytes: &[u8]) {
        match self {
            Framing::Lines { at_begin } => {
                if let Some(last) = bytes.last() {
                    *at_begin = *last == b'\n';
                }
            }
            Framing::Envelopes(tracker) => tracker.pass(bytes),
        }
    }

    /// Whether another message may follow. After a stream's own last one, none does.
    fn is_between(&self) -> bool {
        match self {
            Framing::Lines { at_begin } => *at_begin,
            Framing::Envelopes(tracker) => tracker.is_between(),
        }
    }

    fn last(&self, reason: &str) -> Bytes {
        match self {
            Framing::Lines { .. } => {
                let error =
                    CodeError { name: "SandboxEnded".into(), value: reason.into(), traceback: reason.into() };
                [Line::Error(error).encode(), Line::EndOfExecution.encode()].concat().into()
            }
            Framing::Envelopes(_) => end(&Err(ConnectError::new(Code::Unavailable, reason))),
        }
    }
}

/// A stream from a guest.
struct Stream {
    body: Body,
    framing: Framing,
    sandbox: SandboxHandle,
    state: StreamState,
}

enum StreamState {
    Passing,
    /// It has broken off, and it is being found out why.
    Asking(axum::Error, Pin<Box<dyn Future<Output = Option<String>> + Send>>),
    Over,
}

/// Adds the reason to an answer, if its sandbox ends before it does.
pub(super) fn with_last_words(response: Response, path: &str, sandbox: &SandboxHandle) -> Response {
    let Some(framing) = Framing::of(&response, path) else { return response };
    let sandbox = sandbox.clone();
    response.map(|body| Body::new(Stream { body, framing, sandbox, state: StreamState::Passing }))
}

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        loop {
            match std::mem::replace(&mut self.state, StreamState::Over) {
                StreamState::Over => return Poll::Ready(None),
                StreamState::Passing => match Pin::new(&mut self.body).poll_frame(context) {
                    Poll::Pending => {
                        self.state = StreamState::Passing;
                        return Poll::Pending;
                    }
                    Poll::Ready(Some(Err(error))) if self.framing.is_between() => {
                        let sandbox = self.sandbox.clone();
                        let asking = Box::pin(async move { sandbox.end_after_failure().await });
                        self.state = StreamState::Asking(error, asking);
                    }
                    Poll::Ready(Some(Ok(frame))) => {
                        if let Some(bytes) = frame.data_ref() {
                            self.framing.pass(bytes);
                        }
                        self.state = StreamState::Passing;
                        return Poll::Ready(Some(Ok(frame)));
                    }
                    Poll::Ready(other) => return Poll::Ready(other),
                },
                StreamState::Asking(error, mut asking) => {
                    let Poll::Ready(reason) = asking.as_mut().poll(context) else {
                        self.state = StreamState::Asking(error, asking);
                        return Poll::Pending;
                    };
                    let Some(reason) = reason else { return Poll::Ready(Some(Err(error))) };
                    let reason = EngineError::EndedMeanwhile(reason).to_string();
                    tracing::debug!(code = ?ErrorCode::SandboxEnded, %reason, "a stream ended before its last message");
                    return Poll::Ready(Some(Ok(Frame::data(self.framing.last(&reason)))));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_line_comes_between_two() {
        let mut lines = Framing::Lines { at_begin: true };
        lines.pass(b"{\"a\":");
        assert!(!lines.is_between());
        lines.pass(b"1}\n");
        assert!(lines.is_between());
    }

    #[test]
    fn last_messages_are_those_of_their_protocol() {
        let last = Framing::Envelopes(Tracker::default()).last("it \"ended\"");
        let text = r#"{"error":{"code":"unavailable","message":"it \"ended\""}}"#;
        let length = u32::try_from(text.len()).unwrap().to_be_bytes();
        assert_eq!(last, [&[2][..], &length, text.as_bytes()].concat());
        let lines = Framing::Lines { at_begin: true }.last("x");
        assert_eq!(lines.iter().filter(|byte| **byte == b'\n').count(), 2);
    }
}
