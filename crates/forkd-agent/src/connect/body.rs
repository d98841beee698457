//! The body of a streamed answer: what a bounded queue holds, keepalives when it is empty, and an end.
//!
//! ```text
//!  Sender ── queue (a few messages) ──▶ StreamBody ──▶ hyper ──▶ socket
//!     └───── result, once ────────────▶ (after the queue: the end-of-stream envelope)
//! ```
//!
//! The queue is the back-pressure: who fills it waits until the client has read. A client that goes away drops the body, and
//! the next send says so.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use forkd_envd::connect::{Code, ConnectError, end};
use http_body::Frame;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Sleep, sleep_until};

/// Messages that wait for the client. Each has at most a chunk of output.
const QUEUE: usize = 2;

/// The side that has something to say.
#[derive(Debug)]
pub struct Sender {
    queue: mpsc::Sender<Bytes>,
    result: oneshot::Sender<Result<(), ConnectError>>,
}

/// Why a message was not taken.
#[derive(Debug, PartialEq, Eq)]
pub enum Stall {
    /// The client is gone.
    Gone,
    /// The client has not read for as long as the caller was willing to wait.
    Slow,
}

impl Sender {
    /// Queues a message envelope; waits for at most `patience` while the queue is full.
    pub async fn send(&self, envelope: Bytes, patience: Duration) -> Result<(), Stall> {
        let envelope = match self.queue.try_send(envelope) {
            Ok(()) => return Ok(()),
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(Stall::Gone),
            Err(mpsc::error::TrySendError::Full(envelope)) => envelope,
        };
        match tokio::time::timeout(patience, self.queue.send(envelope)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Stall::Gone),
            Err(_) => Err(Stall::Slow),
        }
    }

    /// Ends the stream, after what is queued.
    pub fn finish(self, result: Result<(), ConnectError>) {
        // The client may be gone; then the result is not needed.
        let _ = self.result.send(result);
    }

    pub fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Ready when the client is gone.
    pub async fn closed(&self) {
        self.queue.closed().await;
    }
}

#[derive(Debug)]
pub(super) struct StreamBody {
    queue: mpsc::Receiver<Bytes>,
    result: oneshot::Receiver<Result<(), ConnectError>>,
    keepalive: Bytes,
    interval: Duration,
    next_keepalive: Pin<Box<Sleep>>,
    deadline: Option<Pin<Box<Sleep>>>,
    ended: bool,
}

/// `keepalive` is the message envelope for a silent `interval`. After `deadline` the stream ends with an error.
pub(super) fn channel(
    keepalive: Bytes,
    interval: Duration,
    deadline: Option<Instant>,
) -> (Sender, StreamBody) {
    let (queue, receiver) = mpsc::channel(QUEUE);
    let (result, end) = oneshot::channel();
    let body = StreamBody {
        queue: receiver,
        result: end,
        keepalive,
        interval,
        next_keepalive: Box::pin(sleep_until(Instant::now() + interval)),
        deadline: deadline.map(|deadline| Box::pin(sleep_until(deadline))),
        ended: false,
    };
    (Sender { queue, result }, body)
}

impl StreamBody {
    fn end(&mut self, result: &Result<(), ConnectError>) -> Bytes {
        self.ended = true;
        self.queue.close();
        end(result)
    }

    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<Bytes> {
        let lost = || Err(ConnectError::new(Code::Internal, "the stream was lost inside the agent"));
        let result = ready!(Pin::new(&mut self.result).poll(context)).unwrap_or_else(|_| lost());
        Poll::Ready(self.end(&result))
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Bytes> {
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(context).is_ready()
        {
            let late = ConnectError::new(Code::DeadlineExceeded, "the time limit of the request has passed");
            return Poll::Ready(self.end(&Err(late)));
        }
        match self.queue.poll_recv(context) {
            Poll::Ready(Some(message)) => {
                self.next_keepalive.as_mut().reset(Instant::now() + self.interval);
                return Poll::Ready(message);
            }
            Poll::Ready(None) => return self.poll_end(context),
            Poll::Pending => {}
        }
        ready!(self.next_keepalive.as_mut().poll(context));
        self.next_keepalive.as_mut().reset(Instant::now() + self.interval);
        Poll::Ready(self.keepalive.clone())
    }
}

impl http_body::Body for StreamBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.poll_next(context).map(|bytes| Some(Ok(Frame::data(bytes))))
    }
}

#[cfg(test)]
mod tests {
    use forkd_envd::connect::message;
    use http_body_util::BodyExt;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    fn stream(deadline: Option<Duration>) -> (Sender, StreamBody) {
        let keepalive = message(b"\"alive\"");
        channel(keepalive, Duration::from_secs(50), deadline.map(|after| Instant::now() + after))
    }

    async fn text(body: &mut StreamBody) -> Option<String> {
        let frame = body.frame().await?.unwrap().into_data().unwrap();
        Some(String::from_utf8_lossy(&frame[5..]).into_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn messages_then_the_end() {
        let (sender, mut body) = stream(None);
        sender.send(message(b"1"), PATIENCE).await.unwrap();
        sender.send(message(b"2"), PATIENCE).await.unwrap();
        sender.finish(Ok(()));
        assert_eq!(text(&mut body).await.as_deref(), Some("1"));
        assert_eq!(text(&mut body).await.as_deref(), Some("2"));
        assert_eq!(text(&mut body).await.as_deref(), Some("{}"));
        assert_eq!(text(&mut body).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_filled_and_a_deadline_ends_it() {
        let (_sender, mut body) = stream(Some(Duration::from_secs(120)));
        assert_eq!(text(&mut body).await.as_deref(), Some("\"alive\""));
        assert_eq!(text(&mut body).await.as_deref(), Some("\"alive\""));
        assert!(text(&mut body).await.unwrap().contains("deadline_exceeded"));
        assert_eq!(text(&mut body).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_read_is_slow_and_who_left_is_gone() {
        let (sender, mut body) = stream(None);
        for number in [b"1", b"2"] {
            sender.send(message(number), PATIENCE).await.unwrap();
        }
        assert_eq!(sender.send(message(b"3"), PATIENCE).await, Err(Stall::Slow));
        assert_eq!(text(&mut body).await.as_deref(), Some("1"));
        drop(body);
        assert_eq!(sender.send(message(b"4"), PATIENCE).await, Err(Stall::Gone));
    }

    #[tokio::test]
    async fn a_lost_sender_is_an_error_and_not_a_success() {
        let (sender, mut body) = stream(None);
        drop(sender);
        assert!(text(&mut body).await.unwrap().contains("internal"));
    }
}
