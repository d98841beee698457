//! A connection's bytes, with a time limit for clients that do not read, and with hyper's own errors in our format.
//!
//! hyper answers what is not HTTP before anybody else sees it, with a status and nothing more. What is written while no
//! answer of the router's is on its way can only be that, and gets a body here. (Garbage that comes in the same breath as a
//! request stays with an empty answer: it may share a write with the answer before.)

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderMap;
use bytes::Bytes;
use forkd_api::error::{ErrorBody, ErrorCode};
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::request_id::{self, RequestId};

/// What the router is doing on a connection.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Requests whose answers hyper has not taken to their end.
    open: AtomicUsize,
    /// From such a request until all of its answer is with the kernel.
    on_their_way: AtomicBool,
}

/// A request that is being answered.
#[derive(Debug)]
pub(super) struct OpenAnswer(Arc<Answers>);

impl Answers {
    pub fn begin(self: &Arc<Self>) -> OpenAnswer {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.on_their_way.store(true, Ordering::Relaxed);
        OpenAnswer(Arc::clone(self))
    }

    /// The connection is no longer HTTP: whatever is written is not hyper's, for ever.
    pub fn upgraded(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.on_their_way.store(true, Ordering::Relaxed);
    }

    /// Whether the client waits for an answer, or for the rest of one.
    pub fn any(&self) -> bool {
        self.on_their_way.load(Ordering::Relaxed)
    }

    /// hyper has nothing left to write.
    fn flushed(&self) {
        if self.open.load(Ordering::Relaxed) == 0 {
            self.on_their_way.store(false, Ordering::Relaxed);
        }
    }
}

impl Drop for OpenAnswer {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of an answer, which is open as long as hyper has this.
#[derive(Debug)]
pub(super) struct AnswerBody {
    body: Body,
    _answer: OpenAnswer,
}

impl AnswerBody {
    pub fn new(body: Body, answer: OpenAnswer) -> AnswerBody {
        AnswerBody { body, _answer: answer }
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream on which a write may wait only so long.
#[derive(Debug)]
pub(super) struct Stream<S> {
    inner: S,
    patience: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
    answers: Arc<Answers>,
    /// What is written instead of an answer of hyper's, and its unwritten rest.
    refusal: Option<(Vec<u8>, usize)>,
}

impl<S> Stream<S> {
    pub fn new(inner: S, patience: Duration, answers: Arc<Answers>) -> Stream<S> {
        Stream { inner, patience, stalled: None, answers, refusal: None }
    }

    /// Lets a write wait, but not for ever.
    fn wait(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let patience = self.patience;
        let stalled =
            self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + patience)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncWrite + Unpin> Stream<S> {
    /// Writes our own answer in place of `buffer`.
    fn poll_refuse(&mut self, context: &mut Context<'_>, buffer: usize) -> Poll<io::Result<usize>> {
        while let Some((text, written)) = &mut self.refusal {
            if *written == text.len() {
                self.refusal = None;
                break;
            }
            match Pin::new(&mut self.inner).poll_write(context, &text[*written..]) {
                Poll::Ready(Ok(count)) => *written += count,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return self.wait(context),
            }
        }
        Poll::Ready(Ok(buffer))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.refusal.is_none() && !self.answers.any() {
            self.refusal = refusal(buffer).map(|text| (text, 0));
        }
        if self.refusal.is_some() {
            return self.poll_refuse(context, buffer.len());
        }
        match Pin::new(&mut self.inner).poll_write(context, buffer) {
            Poll::Pending => self.wait(context),
            ready => {
                self.stalled = None;
                ready
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.inner).poll_flush(context) {
            Poll::Pending => self.wait(context).map_ok(|_| ()),
            ready => {
                self.answers.flushed();
                ready
            }
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

/// What to say instead of an empty answer of hyper's.
fn refusal(answer: &[u8]) -> Option<Vec<u8>> {
    let (text, code) = match answer.strip_prefix(b"HTTP/1.")?.get(2..5)? {
        b"400" => ("not an HTTP request", ErrorCode::Malformed),
        b"414" => ("the path is too long", ErrorCode::Malformed),
        b"431" => ("the headers are too large", ErrorCode::Malformed),
        _ => return None,
    };
    Some(plain_answer(code, text))
}

/// A whole answer, for those who never come as far as the router.
pub(super) fn plain_answer(code: ErrorCode, text: &str) -> Vec<u8> {
    let body = ErrorBody { error: text.to_owned(), code, hint: None, hint_code: None };
    let body = serde_json::to_string(&body).unwrap_or_default();
    let reason =
        axum::http::StatusCode::from_u16(code.status()).ok().and_then(|status| status.canonical_reason());
    format!(
        "HTTP/1.1 {} {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n{}: {}\r\n\r\n{body}",
        code.status(),
        reason.unwrap_or("Error"),
        body.len(),
        request_id::HEADER,
        RequestId::of(&HeaderMap::new()).as_str(),
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn stream<S>(inner: S, busy: bool) -> Stream<S> {
        let answers = Arc::new(Answers::default());
        answers.on_their_way.store(busy, Ordering::Relaxed);
        Stream::new(inner, Duration::from_secs(5), answers)
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_to_somebody_who_does_not_read_fails() {
        let (near, mut far) = tokio::io::duplex(16);
        let mut stream = stream(near, true);
        let begun = Instant::now();
        let error = stream.write_all(&[7; 100]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(begun.elapsed().as_secs(), 5);
        drop(stream);
        let mut read = Vec::new();
        far.read_to_end(&mut read).await.unwrap();
        assert_eq!(read.len(), 16);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_gets_everything() {
        let (near, mut far) = tokio::io::duplex(16);
        let mut stream = stream(near, true);
        let writer = tokio::spawn(async move { stream.write_all(&[7; 100]).await });
        let mut read = [0; 100];
        for chunk in read.chunks_mut(10) {
            tokio::time::sleep(Duration::from_secs(4)).await;
            far.read_exact(chunk).await.unwrap();
        }
        writer.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn only_hypers_own_answers_get_our_shape() {
        for (busy, ours) in [(false, true), (true, false)] {
            // Less room than the answer needs.
            let (near, mut far) = tokio::io::duplex(16);
            let mut stream = stream(near, busy);
            let empty = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
            let writer = tokio::spawn(async move { stream.write_all(empty).await });
            let mut read = String::new();
            far.read_to_string(&mut read).await.unwrap();
            writer.await.unwrap().unwrap();
            assert_eq!(read.contains("\"code\":\"malformed\""), ours, "{read}");
        }
    }
}
