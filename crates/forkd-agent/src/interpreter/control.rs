//! The socket to a driver: lines, bounded.

use std::io;

use bytes::{Buf, BytesMut};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

/// The longest line that is taken. Drivers leave out what would not fit, so a longer one is not theirs.
const MAX_LINE: usize = 32 << 20;
const CHUNK: usize = 64 << 10;

#[derive(Debug)]
pub struct Control {
    stream: UnixStream,
    received: BytesMut,
    /// How much of `received` is known to have no line end.
    searched: usize,
}

impl Control {
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, received: BytesMut::new(), searched: 0 }
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
            self.stream.readable().await?;
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
        self.stream.write_all(bytes).await
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
