//! Bytes between a thread that may wait and a task that may not.

use std::io::{self, Read, Write};

use bytes::{Buf, Bytes};
use forkd_client::Upload;
use tokio::sync::mpsc;

const PIECE: usize = 64 << 10;
/// Pieces that wait to be sent.
const QUEUE: usize = 8;

/// A writer whose bytes go to a task.
#[derive(Debug)]
pub struct Pieces {
    to: mpsc::Sender<io::Result<Bytes>>,
    buffer: Vec<u8>,
}

impl Pieces {
    pub fn new(to: mpsc::Sender<io::Result<Bytes>>) -> Pieces {
        Pieces { to, buffer: Vec::with_capacity(PIECE) }
    }

    /// Sends the rest; or, if writing has failed, the error, so that no reader takes a part for the whole.
    pub fn finish(mut self, written: io::Result<()>) {
        let end = written.and_then(|()| self.flush());
        if let Err(error) = end {
            // A receiver that has gone reports its own error.
            let _ = self.to.blocking_send(Err(error));
        }
    }
}

/// What a thread writes, to be sent meanwhile.
pub fn written(write: impl FnOnce(&mut Pieces) -> io::Result<()> + Send + 'static) -> Upload {
    let (sender, upload) = mpsc::channel(QUEUE);
    std::thread::spawn(move || {
        let mut pieces = Pieces::new(sender);
        let written = write(&mut pieces);
        pieces.finish(written);
    });
    upload
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let piece = Bytes::from(std::mem::take(&mut self.buffer));
        self.to.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// A reader whose bytes come from a task. A task that goes away before it said that this is the end was stopped.
#[derive(Debug)]
pub struct Taken {
    from: mpsc::Receiver<Option<Bytes>>,
    piece: Bytes,
    is_over: bool,
}

impl Taken {
    pub fn new(from: mpsc::Receiver<Option<Bytes>>) -> Taken {
        Taken { from, piece: Bytes::new(), is_over: false }
    }
}

impl Read for Taken {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() && !self.is_over {
            match self.from.blocking_recv() {
                Some(Some(piece)) => self.piece = piece,
                Some(None) => self.is_over = true,
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        let length = self.piece.len().min(buffer.len());
        if let Some(part) = buffer.get_mut(..length) {
            self.piece.copy_to_slice(part);
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_taken_and_errors_are_passed_on() {
        let (sender, mut receiver) = mpsc::channel(64);
        let mut pieces = Pieces::new(sender.clone());
        pieces.write_all(&vec![b'x'; PIECE + 5]).unwrap();
        pieces.finish(Ok(()));
        Pieces::new(sender).finish(Err(io::Error::other("no")));
        let mut bytes = 0;
        let mut errors = 0;
        while let Some(piece) = receiver.blocking_recv() {
            piece.map_or_else(|_| errors += 1, |piece| bytes += piece.len());
        }
        assert_eq!((bytes, errors), (PIECE + 5, 1));
    }

    #[test]
    fn an_end_that_was_not_said_is_none() {
        let (sender, receiver) = mpsc::channel(4);
        sender.blocking_send(Some("abc".into())).unwrap();
        sender.blocking_send(None).unwrap();
        let mut text = String::new();
        Taken::new(receiver).read_to_string(&mut text).unwrap();
        assert_eq!(text, "abc");
        let (sender, receiver) = mpsc::channel(4);
        sender.blocking_send(Some("abc".into())).unwrap();
        drop(sender);
        assert!(Taken::new(receiver).read_to_string(&mut text).is_err());
    }
}
