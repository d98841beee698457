//! Answers that a thread writes: bytes as they are made, for a caller that reads them at its own pace.

use std::io::{self, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::Frame;
use tokio::sync::mpsc;

/// Pieces that wait for the caller to read.
const QUEUE: usize = 4;
/// Small writes are collected up to this size.
const PIECE: usize = 256 << 10;

/// The body whose bytes `work` writes, in a thread that may wait. An error of its ends the answer before its end, so that the caller
/// sees that it is not whole. A caller that goes away ends the work, by an error of the writer's.
pub fn body(work: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static) -> Body {
    let (sender, pieces) = mpsc::channel(QUEUE);
    tokio::task::spawn_blocking(move || {
        let mut writer = io::BufWriter::with_capacity(PIECE, Writer(sender.clone()));
        let done = work(&mut writer).and_then(|()| writer.flush());
        // What a writer still has is not to be written behind an error.
        let (_, _) = writer.into_parts();
        if let Err(error) = done {
            let _ = sender.blocking_send(Err(error));
        }
    });
    Body::new(Pieces(pieces))
}

struct Writer(mpsc::Sender<io::Result<Bytes>>);

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes)));
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Pieces(mpsc::Receiver<io::Result<Bytes>>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn all_that_is_written_arrives() {
        let body = body(|to| (0..1000).try_for_each(|number| writeln!(to, "{number}")));
        let text = body.collect().await.unwrap().to_bytes();
        assert_eq!(text.split(|byte| *byte == b'\n').count(), 1001);
    }

    #[tokio::test]
    async fn an_error_ends_it_before_its_end() {
        let body = body(|to| {
            to.write_all(b"half")?;
            Err(io::Error::other("no more"))
        });
        assert!(body.collect().await.is_err());
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_ends_the_work() {
        let (told, heard) = oneshot::channel();
        let body = body(move |to| {
            let result = (0..1000).try_for_each(|_| to.write_all(&[0; PIECE]));
            let _ = told.send(result.is_err());
            result
        });
        drop(body);
        assert!(heard.await.unwrap());
    }
}
