//! Archives on their way to a guest, written by a thread while they are sent.

use std::io::{self, Read, Write};

use bytes::Bytes;
use forkd_engine::transfer::Piece;
use tokio::sync::mpsc;

const CHUNK: usize = 64 << 10;

/// A writer whose bytes go to a channel.
#[derive(Debug)]
pub struct Pieces {
    to: mpsc::Sender<Piece>,
    buffer: Vec<u8>,
}

impl Pieces {
    pub fn new(to: mpsc::Sender<Piece>) -> Pieces {
        Pieces { to, buffer: Vec::new() }
    }

    /// Ends the archive: with an error, if writing it has failed, so that no reader takes a part for the whole.
    pub fn finish<E: std::error::Error>(mut self, written: Result<(), E>) -> Result<(), E> {
        if let Err(error) = &written {
            let _ = self.to.blocking_send(Err(io::Error::other(error.to_string())));
        } else {
            // The receiver that does not take the rest says why.
            let _ = self.flush();
        }
        written
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= CHUNK {
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

/// Copies an archive as it is.
pub fn copy(from: &mut dyn Read, to: &mut Pieces) -> io::Result<()> {
    io::copy(from, to).map(drop)
}
