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
use http_body::Frame;
use serde_json::json;

/// Flag, and four bytes of length.
const HEAD: usize = 5;
const END_OF_STREAM: u8 = 2;

/// How a stream is made of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    /// Connect's envelopes: what is missing of the one that has begun.
    Envelopes { head: [u8; HEAD], seen: usize, left: u64 },
    /// Lines of JSON.
    Lines { at_begin: bool },
}

impl Framing {
    fn of(response: &Response, path: &str) -> Option<Framing> {
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
        if kind.starts_with("application/connect+") {
            return Some(Framing::Envelopes { head: [0; HEAD], seen: 0, left: 0 });
        }
        (path == "/execute" && response.status().is_success()).then_some(Framing::Lines { at_begin: true })
    }

    fn pass(&mut self, mut bytes: &[u8]) {
        match self {
            Framing::Lines { at_begin } => {
                if let Some(last) = bytes.last() {
                    *at_begin = *last == b'\n';
                }
            }
            Framing::Envelopes { head, seen, left } => {
                while !bytes.is_empty() {
                    if *seen == HEAD && *left == 0 {
                        *seen = 0;
                    }
                    if *seen < HEAD {
                        let taken = bytes.len().min(HEAD - *seen);
                        let (now, rest) = bytes.split_at(taken);
                        head[*seen..*seen + taken].copy_from_slice(now);
                        (*seen, bytes) = (*seen + taken, rest);
                        if *seen == HEAD {
                            *left = u64::from(u32::from_be_bytes([head[1], head[2], head[3], head[4]]));
                        }
                    } else {
                        let taken = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                        (*left, bytes) = (*left - taken as u64, &bytes[taken..]);
                    }
                }
            }
        }
    }

    /// Whether another message may follow. After a stream's own last one, none does.
    fn is_between(&self) -> bool {
        match self {
            Framing::Lines { at_begin } => *at_begin,
            Framing::Envelopes { head, seen, left } => {
                *seen == 0 || (*seen == HEAD && *left == 0 && head[0] & END_OF_STREAM == 0)
            }
        }
    }

    fn last(&self, reason: &str) -> Bytes {
        match self {
            Framing::Lines { .. } => {
                let error = json!({
                    "type": "error", "name": "SandboxEnded", "value": reason, "traceback": reason
                });
                format!("{error}\n{}\n", json!({ "type": "end_of_execution" })).into()
            }
            Framing::Envelopes { .. } => {
                let error = json!({ "error": { "code": "unavailable", "message": reason } }).to_string();
                let length = u32::try_from(error.len()).unwrap_or(0).to_be_bytes();
                [&[END_OF_STREAM][..], &length, error.as_bytes()].concat().into()
            }
        }
    }
}

/// A stream from a guest.
struct Stream {
    body: Body,
    framing: Framing,
    sandbox: SandboxHandle,
    state: State,
}

enum State {
    Passing,
    /// It has broken off, and it is being found out why.
    Asking(axum::Error, Pin<Box<dyn Future<Output = Option<String>> + Send>>),
    Over,
}

/// Adds the reason to an answer, if its sandbox ends before it does.
pub(super) fn with_last_words(response: Response, path: &str, sandbox: &SandboxHandle) -> Response {
    let Some(framing) = Framing::of(&response, path) else { return response };
    let sandbox = sandbox.clone();
    response.map(|body| Body::new(Stream { body, framing, sandbox, state: State::Passing }))
}

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        loop {
            match std::mem::replace(&mut self.state, State::Over) {
                State::Over => return Poll::Ready(None),
                State::Passing => match Pin::new(&mut self.body).poll_frame(context) {
                    Poll::Pending => {
                        self.state = State::Passing;
                        return Poll::Pending;
                    }
                    Poll::Ready(Some(Err(error))) if self.framing.is_between() => {
                        let sandbox = self.sandbox.clone();
                        let asking = Box::pin(async move { sandbox.end_after_failure().await });
                        self.state = State::Asking(error, asking);
                    }
                    Poll::Ready(Some(Ok(frame))) => {
                        if let Some(bytes) = frame.data_ref() {
                            self.framing.pass(bytes);
                        }
                        self.state = State::Passing;
                        return Poll::Ready(Some(Ok(frame)));
                    }
                    Poll::Ready(other) => return Poll::Ready(other),
                },
                State::Asking(error, mut asking) => {
                    let Poll::Ready(reason) = asking.as_mut().poll(context) else {
                        self.state = State::Asking(error, asking);
                        return Poll::Pending;
                    };
                    let Some(reason) = reason else { return Poll::Ready(Some(Err(error))) };
                    let reason = EngineError::EndedMeanwhile(reason).to_string();
                    tracing::debug!(code = ?ErrorCode::SandboxEnded, %reason, "a stream was cut off");
                    return Poll::Ready(Some(Ok(Frame::data(self.framing.last(&reason)))));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelopes() -> Framing {
        Framing::Envelopes { head: [0; HEAD], seen: 0, left: 0 }
    }

    #[test]
    fn a_last_message_comes_between_two_and_not_after_the_last() {
        let mut framing = envelopes();
        assert!(framing.is_between());
        let message = [&[0, 0, 0, 0, 3][..], b"abc"].concat();
        // In pieces of every size.
        for size in 1..=message.len() {
            for piece in message.chunks(size) {
                framing.pass(piece);
            }
            assert!(framing.is_between(), "{size}");
        }
        framing.pass(&message[..4]);
        assert!(!framing.is_between(), "in a head");
        framing.pass(&message[4..7]);
        assert!(!framing.is_between(), "in a message");
        framing.pass(&message[7..]);
        assert!(framing.is_between());
        framing.pass(&[END_OF_STREAM, 0, 0, 0, 2]);
        framing.pass(b"{}");
        assert!(!framing.is_between(), "it has ended");
        let mut lines = Framing::Lines { at_begin: true };
        lines.pass(b"{\"a\":");
        assert!(!lines.is_between());
        lines.pass(b"1}\n");
        assert!(lines.is_between());
    }

    #[test]
    fn last_messages_are_those_of_their_protocol() {
        let last = envelopes().last("it \"ended\"");
        let (head, body) = last.split_at(HEAD);
        assert_eq!(head[0], END_OF_STREAM);
        assert_eq!(u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize, body.len());
        let body: serde_json::Value = serde_json::from_slice(body).unwrap();
        assert_eq!(body["error"]["message"], "it \"ended\"");
        let lines = Framing::Lines { at_begin: true }.last("x");
        assert_eq!(lines.iter().filter(|byte| **byte == b'\n').count(), 2);
    }
}
