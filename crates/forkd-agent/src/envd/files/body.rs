//! A file, or a part of it, as the body of an answer.

use std::fs::File;
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_core::Stream;
use tokio::sync::mpsc;

use super::CHUNK;
use crate::runtime::blocking;

/// Chunks that wait for the client.
const QUEUE: usize = 1;

/// `length` bytes from where the file stands. A file that becomes shorter breaks the answer off, so that no client takes a part
/// for the whole.
pub fn plain(file: File, length: u64) -> Body {
    body(Source { file, left: length, encoder: None })
}

/// The same, compressed.
pub fn gzip(file: File, length: u64) -> Body {
    body(Source { file, left: length, encoder: Some(GzEncoder::new(Vec::new(), Compression::fast())) })
}

fn body(mut source: Source) -> Body {
    let (sender, receiver) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        loop {
            // The source goes to the thread that may block and comes back with a chunk.
            let Ok((returned, chunk)) = blocking(move || {
                let chunk = source.next();
                (source, chunk)
            })
            .await
            else {
                return;
            };
            source = returned;
            let last = !matches!(chunk, Ok(Some(_)));
            let gone = match chunk.transpose() {
                Some(chunk) => sender.send(chunk).await.is_err(),
                None => true,
            };
            if last || gone {
                return;
            }
        }
    });
    Body::from_stream(Chunks(receiver))
}

#[derive(Debug)]
struct Source {
    file: File,
    left: u64,
    encoder: Option<GzEncoder<Vec<u8>>>,
}

impl Source {
    /// Nothing at the end.
    fn next(&mut self) -> io::Result<Option<Bytes>> {
        while self.left > 0 {
            let chunk = self.read()?;
            let Some(encoder) = &mut self.encoder else { return Ok(Some(chunk.into())) };
            encoder.write_all(&chunk)?;
            if !encoder.get_ref().is_empty() {
                return Ok(Some(std::mem::take(encoder.get_mut()).into()));
            }
        }
        self.encoder.take().map(|encoder| encoder.finish().map(Bytes::from)).transpose()
    }

    fn read(&mut self) -> io::Result<Vec<u8>> {
        let wanted = usize::try_from(self.left).unwrap_or(CHUNK).min(CHUNK);
        let mut chunk = vec![0; wanted];
        let read = loop {
            match self.file.read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        chunk.truncate(read);
        self.left = self.left.saturating_sub(u64::try_from(read).unwrap_or(u64::MAX));
        Ok(chunk)
    }
}

struct Chunks(mpsc::Receiver<io::Result<Bytes>>);

impl Stream for Chunks {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Seek;

    use super::*;

    fn file(contents: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(contents).unwrap();
        file.rewind().unwrap();
        file
    }

    #[tokio::test]
    async fn whole_part_compressed_and_shorter_than_promised() {
        let contents: Vec<u8> = (0..400_000_u32).flat_map(u32::to_le_bytes).collect();
        let all = |body| axum::body::to_bytes(body, usize::MAX);
        let length = u64::try_from(contents.len()).unwrap();
        assert_eq!(all(plain(file(&contents), length)).await.unwrap(), contents);
        assert_eq!(all(plain(file(&contents), 5)).await.unwrap(), contents[..5]);
        let packed = all(gzip(file(&contents), length)).await.unwrap();
        assert!(packed.len() < contents.len());
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut unpacked).unwrap();
        assert_eq!(unpacked, contents);
        assert!(all(plain(file(b"short"), 6)).await.is_err());
    }
}
