//! The socket to a driver: lines, bounded.

use std::io;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;

/// The longest line that is taken. Drivers leave out what would not fit, so a longer one is not theirs.
const MAX_LINE: usize = 32 << 20;
const CHUNK: usize = 64 << 10;
/// What may wait for a driver that does not read.
const MAX_QUEUED: usize = 8 << 20;

#[derive(Debug)]
pub struct Control {
    stream: UnixStream,
    /// Not written yet.
    queued: BytesMut,
    received: BytesMut,
    /// How much of `received` is known to have no line end.
    searched: usize,
}

impl Control {
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, queued: BytesMut::new(), received: BytesMut::new(), searched: 0 }
    }

    /// The next line, without its end. Nothing when the driver has closed its side. It may be cancelled.
    pub async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(line) = self.take_line() {
                return Ok(Some(line));
            }
            if self.received.len() > MAX_LINE {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the driver's message is too long"));
            }
            if self.queued.is_empty() {
                self.stream.readable().await?;
            } else {
                self.stream.ready(Interest::READABLE | Interest::WRITABLE).await?;
                self.try_write_queued()?;
            }
            self.received.reserve(CHUNK);
            match self.stream.try_read_buf(&mut self.received) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.flush().await?;
        self.stream.write_all(bytes).await
    }

    /// Sends without waiting: what the driver does not take now goes with the next call, in its place.
    pub fn queue(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.queued.len() + bytes.len() > MAX_QUEUED {
            return Err(io::Error::other(
                "the interpreter does not read its control socket: its queue is full",
            ));
        }
        self.queued.extend_from_slice(bytes);
        self.try_write_queued()
    }

    pub fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    /// Waits until the driver has taken what is queued. It may be cancelled.
    pub async fn flush(&mut self) -> io::Result<()> {
        while !self.queued.is_empty() {
            self.stream.writable().await?;
            self.try_write_queued()?;
        }
        Ok(())
    }

    fn try_write_queued(&mut self) -> io::Result<()> {
        while !self.queued.is_empty() {
            match self.stream.try_write(&self.queued) {
                Ok(written) => self.queued.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.queued = BytesMut::new();
        Ok(())
    }

    fn take_line(&mut self) -> Option<Vec<u8>> {
        let unsearched = self.received.get(self.searched..).unwrap_or_default();
        let Some(end) = unsearched.iter().position(|byte| *byte == b'\n') else {
            self.searched = self.received.len();
            return None;
        };
        let line = self.received.split_to(self.searched + end).to_vec();
        self.received.advance(1);
        self.searched = 0;
        if self.received.is_empty() {
            // A picture may have gone through: an idle agent keeps nothing of it.
            self.received = BytesMut::new();
        }
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_queued_goes_in_its_order_when_the_driver_reads() {
        use tokio::io::AsyncReadExt;
        crate::runtime::new().unwrap().block_on(async {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let mut control = Control::new(ours);
            // More than a socket holds.
            control.queue(&vec![b'a'; 3 << 20]).unwrap();
            assert!(control.has_queued());
            assert!(control.queue(&vec![b'b'; MAX_QUEUED]).is_err());
            control.queue(b"c").unwrap();
            let reading = tokio::spawn(async move {
                let mut all = vec![0; (3 << 20) + 2];
                theirs.read_exact(&mut all).await.unwrap();
                theirs.write_all(b"done\n").await.unwrap();
                all
            });
            let waited = tokio::time::timeout(std::time::Duration::from_millis(1), control.next()).await;
            assert!(waited.is_err(), "there is no answer yet");
            control.write(b"d").await.unwrap();
            assert_eq!(control.next().await.unwrap().unwrap(), b"done");
            assert!(reading.await.unwrap().ends_with(b"aacd"));
        });
    }

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        crate::runtime::new().unwrap().block_on(async {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let mut control = Control::new(ours);
            let large = "x".repeat(300_000);
            let text = format!("one\n\n{large}\nhalf");
            let sending = tokio::spawn(async move {
                for piece in text.as_bytes().chunks(7001) {
                    theirs.write_all(piece).await.unwrap();
                }
            });
            assert_eq!(control.next().await.unwrap().unwrap(), b"one");
            assert_eq!(control.next().await.unwrap().unwrap(), b"");
            assert_eq!(control.next().await.unwrap().unwrap(), large.as_bytes());
            sending.await.unwrap();
            assert_eq!(control.next().await.unwrap(), None);
        });
    }
}
