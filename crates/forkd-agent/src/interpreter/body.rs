//! The body of an `/execute` answer: lines as they come, keepalives in silence.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use forkd_envd::interpreter::Line;
use http_body::Frame;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep};

/// Lines that wait for the client. Each has at most a chunk of output.
const QUEUE: usize = 4;
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Every line is a frame, which hyper writes as one chunk. It ends with the sender.
#[derive(Debug)]
pub struct Lines {
    queue: mpsc::Receiver<Bytes>,
    silence: Pin<Box<Sleep>>,
}

pub fn channel() -> (mpsc::Sender<Bytes>, Lines) {
    let (sender, queue) = mpsc::channel(QUEUE);
    (sender, Lines { queue, silence: Box::pin(sleep(KEEPALIVE)) })
}

impl http_body::Body for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let line = match self.queue.poll_recv(context) {
            Poll::Ready(line) => line,
            Poll::Pending => match self.silence.as_mut().poll(context) {
                Poll::Ready(()) => Some(Line::Keepalive.encode()),
                Poll::Pending => return Poll::Pending,
            },
        };
        self.silence.as_mut().reset(Instant::now() + KEEPALIVE);
        Poll::Ready(line.map(|line| Ok(Frame::data(line))))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn silence_is_filled_every_five_seconds() {
        let (sender, mut lines) = channel();
        let begun = Instant::now();
        let frame = lines.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!((frame, begun.elapsed().as_secs()), (Line::Keepalive.encode(), 5));
        sender.send(Bytes::from_static(b"x\n")).await.unwrap();
        let frame = lines.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!((&frame[..], begun.elapsed().as_secs()), (&b"x\n"[..], 5));
        drop(sender);
        assert!(lines.frame().await.is_none());
    }
}
