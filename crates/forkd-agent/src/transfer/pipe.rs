//! Between connections, which are waited for by tasks, and archives, which are read and written by threads that block.

use std::io::{self, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use futures_core::Stream;
use tokio::sync::mpsc;

const CHUNK: usize = 64 << 10;

/// What a client sends.
#[derive(Debug)]
pub struct Reader {
    chunks: mpsc::Receiver<io::Result<Bytes>>,
    current: Bytes,
}

impl Reader {
    pub fn new(chunks: mpsc::Receiver<io::Result<Bytes>>) -> Self {
        Self { chunks, current: Bytes::new() }
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.chunks.blocking_recv() {
                Some(chunk) => self.current = chunk?,
                None => return Ok(0),
            }
        }
        let length = self.current.len().min(buffer.len());
        self.current.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

/// What a client is sent.
#[derive(Debug)]
pub struct Writer {
    chunks: mpsc::Sender<io::Result<Bytes>>,
    buffer: Vec<u8>,
}

impl Writer {
    pub fn new(chunks: mpsc::Sender<io::Result<Bytes>>) -> Self {
        Self { chunks, buffer: Vec::new() }
    }

    /// Sends the rest. After an error the body breaks off, so that no reader takes a part for the whole.
    pub fn finish(mut self, result: io::Result<()>) {
        let last = result.and_then(|()| self.flush());
        if let Err(error) = last {
            let _ = self.chunks.blocking_send(Err(error));
        }
    }
}

impl Write for Writer {
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
        let chunk = std::mem::take(&mut self.buffer).into();
        self.chunks.blocking_send(Ok(chunk)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

#[derive(Debug)]
pub struct Chunks(pub mpsc::Receiver<io::Result<Bytes>>);

impl Stream for Chunks {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_written_is_read_and_a_break_is_seen() {
        let data: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
        let (sender, receiver) = mpsc::channel(1);
        let written = data.clone();
        let writer = tokio::task::spawn_blocking(move || {
            let mut writer = Writer::new(sender);
            let result = writer.write_all(&written);
            writer.finish(result.and(Err(io::ErrorKind::InvalidData.into())));
        });
        let read = tokio::task::spawn_blocking(move || {
            let mut read = Vec::new();
            let result = Reader::new(receiver).read_to_end(&mut read);
            (read, result)
        });
        let (read, result) = read.await.unwrap();
        writer.await.unwrap();
        // The last part is not sent after an error.
        assert!(read.len() > data.len() / 2 && data.starts_with(&read));
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
