//! Answers that are streams: a line of JSON for each thing to say, as it comes.
//!
//! A task writes the lines and waits while the client is slow to read them. It ends with the answer: a client that goes away
//! ends what it has asked for.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use bytes::Bytes;
use http_body::Frame;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tracing::Instrument;

use crate::trace::RequestTrace;

/// The type of the stream.
pub const NDJSON: &str = "application/x-ndjson";

/// Lines that wait for the client to read.
const QUEUE: usize = 16;

/// Where lines are written.
#[derive(Debug, Clone)]
pub struct Lines(mpsc::Sender<Bytes>);

/// The reader has gone.
#[derive(Debug, Clone, Copy)]
pub struct Gone;

impl Lines {
    pub async fn write(&self, line: &impl Serialize) -> Result<(), Gone> {
        // Types of the API are maps with text keys: they can be written.
        let mut text = serde_json::to_vec(line).map_err(|_| Gone)?;
        text.push(b'\n');
        self.0.send(text.into()).await.map_err(|_| Gone)
    }
}

/// Whether a client asks for a stream.
pub fn is_wanted(headers: &HeaderMap) -> bool {
    accepts(headers, NDJSON)
}

/// Whether a client names this type among those that it accepts.
pub fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let types = accepted.flat_map(|value| value.split(','));
    types.map(|one| one.split(';').next().unwrap_or("").trim()).any(|one| one.eq_ignore_ascii_case(kind))
}

/// The answer whose lines `work` writes.
pub fn answer<F: Future<Output = ()> + Send + 'static>(work: impl FnOnce(Lines) -> F) -> Response {
    let (sender, lines) = mpsc::channel(QUEUE);
    let work = RequestTrace::current().scope(work(Lines(sender)));
    let task = tokio::spawn(work.in_current_span()).abort_handle();
    let mut response = Response::new(Body::new(Stream { lines, task }));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(NDJSON));
    response
}

struct Stream {
    lines: mpsc::Receiver<Bytes>,
    task: AbortHandle,
}

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.lines.poll_recv(context).map(|line| line.map(|line| Ok(Frame::data(line))))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn a_stream_comes_to_who_asks_for_one() {
        let asks = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_str(text).unwrap());
            is_wanted(&headers)
        };
        for yes in ["application/x-ndjson", "application/json, Application/X-NDJSON;q=0.9"] {
            assert!(asks(yes), "{yes}");
        }
        for no in ["*/*", "application/json", "", "text/x-ndjson"] {
            assert!(!asks(no), "{no}");
        }
        assert!(!is_wanted(&HeaderMap::new()));
    }

    #[tokio::test]
    async fn lines_come_one_by_one_and_end_with_the_work() {
        let response = answer(|lines| async move {
            for number in 0..100 {
                lines.write(&number).await.unwrap();
            }
        });
        let text = response.into_body().collect().await.unwrap().to_bytes();
        let numbers: String = (0..100).map(|number| format!("{number}\n")).collect();
        assert_eq!(text, numbers);
    }

    #[tokio::test]
    async fn who_goes_away_ends_the_work() {
        let (alive, mut ended) = oneshot::channel::<()>();
        let response = answer(|lines| async move {
            let _alive = alive;
            while lines.write(&1).await.is_ok() {}
        });
        assert!(ended.try_recv().is_err());
        drop(response);
        // The other end is dropped.
        assert!(ended.await.is_err());
    }
}
