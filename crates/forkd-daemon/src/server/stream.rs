//! A connection's bytes, with patience for those who do not read, and with our shape for what hyper says by itself.
//!
//! hyper answers what is not HTTP before anybody else sees it, with a status and nothing more. Such an answer to the first
//! request of a connection can be told with certainty, since nothing else has been written to it, and gets a body here. Later
//! ones stay empty: an answer might be in the same write.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use forkd_api::error::{ErrorBody, ErrorCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// A stream on which a write may wait only so long.
#[derive(Debug)]
pub(super) struct Stream<S> {
    inner: S,
    patience: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
    /// Whether a request has come as far as the router.
    served: Arc<AtomicBool>,
    /// What is written instead of an answer of hyper's, and what is left of it.
    refusal: Option<(Vec<u8>, usize)>,
}

impl<S> Stream<S> {
    pub fn new(inner: S, patience: Duration, served: Arc<AtomicBool>) -> Stream<S> {
        Stream { inner, patience, stalled: None, served, refusal: None }
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
        if self.refusal.is_none() && !self.served.load(Ordering::Relaxed) {
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
            ready => ready,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

/// What to say instead of an empty answer of hyper's.
fn refusal(answer: &[u8]) -> Option<Vec<u8>> {
    let (text, code) = match answer.strip_prefix(b"HTTP/1.")?.get(2..5)? {
        b"400" => ("this is not HTTP", ErrorCode::Malformed),
        b"414" => ("the path is too long", ErrorCode::Malformed),
        b"431" => ("the headers are too large", ErrorCode::Malformed),
        _ => return None,
    };
    Some(plain_answer(code, text))
}

/// A whole answer, for those who never come as far as the router.
pub(super) fn plain_answer(code: ErrorCode, text: &str) -> Vec<u8> {
    let body = ErrorBody { error: text.to_owned(), code, hint: None };
    let body = serde_json::to_string(&body).unwrap_or_default();
    let reason =
        axum::http::StatusCode::from_u16(code.status()).ok().and_then(|status| status.canonical_reason());
    format!(
        "HTTP/1.1 {} {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        code.status(),
        reason.unwrap_or("Error"),
        body.len(),
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn stream<S>(inner: S, served: bool) -> Stream<S> {
        Stream::new(inner, Duration::from_secs(5), Arc::new(AtomicBool::new(served)))
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
        for (served, ours) in [(false, true), (true, false)] {
            // Less room than the answer needs.
            let (near, mut far) = tokio::io::duplex(16);
            let mut stream = stream(near, served);
            let empty = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
            let writer = tokio::spawn(async move { stream.write_all(empty).await });
            let mut read = String::new();
            far.read_to_string(&mut read).await.unwrap();
            writer.await.unwrap().unwrap();
            assert_eq!(read.contains("\"code\":\"malformed\""), ours, "{read}");
        }
    }
}
