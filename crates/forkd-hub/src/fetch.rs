//! From blobs to a sink: only the frames that are wanted, each checked before it is given.
//!
//! ```text
//!  blob       | frame | frame | frame | frame | …        8 blobs at a time, of all streams that are wanted
//!  wanted        yes     yes     no      yes
//!  requests   └─ range ──────┘         └ range ┘         a range that breaks off is continued after its last whole frame
//!                 ▼ a thread: SHA-256 of the blob if all of it is wanted, decompress, BLAKE3, sink
//! ```

use std::io;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use forkd_source::digest::{Digest, Stream as Sha256};
use futures_util::stream::{self, StreamExt, TryStreamExt};

use crate::artifact::{BlobReader, BlobSource, SourceError};
use crate::byte_io::ByteSink;
use crate::config::Stream;
use crate::frame::{self, BLOB_FRAMES};
use crate::progress::Tracker;
use crate::table::{Blob, FrameTable};
use crate::unpack::{UnpackError, unpack_frame};
use crate::workers::Workers;

/// Blobs that are transferred at the same time.
pub(crate) const TRANSFERS: usize = 8;

/// Which frames of a stream the caller has already, by number. They are not fetched.
pub type Have<'a> = &'a (dyn Fn(u64) -> bool + Sync);

/// A stream to fetch: its missing frames go to the sink.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    pub stream: &'a Stream,
    pub have: Have<'a>,
    pub sink: &'a dyn ByteSink,
}

impl Wanted<'_> {
    /// Raw bytes of the frames that the caller does not have.
    pub fn missing(&self) -> u64 {
        let size = self.stream.table.size();
        let frames = (0..frame::frame_count(size)).filter(|frame| !(self.have)(*frame));
        frames.map(|number| frame::frame_range(size, number)).map(|range| range.end - range.start).sum()
    }
}

impl std::fmt::Debug for Wanted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wanted").field("stream", &self.stream.name).finish_non_exhaustive()
    }
}

/// A stream was not fetched. What the sink got until then was checked.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("cannot get blob {digest}")]
    Source { digest: Digest, source: SourceError },
    #[error("blob {digest} is damaged")]
    Frame { digest: Digest, source: UnpackError },
    #[error("blob {expected} is damaged: its digest is {found}")]
    Digest { found: Digest, expected: Digest },
    #[error("cannot start the network runtime")]
    Runtime(#[source] io::Error),
    #[error("cannot write {length} bytes at {offset}")]
    Sink { offset: u64, length: usize, source: io::Error },
    #[error("cancelled")]
    Cancelled,
}

/// What a fetch did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Raw bytes given to the sink.
    pub raw: u64,
    /// Compressed bytes of those.
    pub compressed: u64,
}

pub(crate) async fn fetch<'env>(
    source: &impl BlobSource,
    workers: &Workers<'env>,
    wanted: &'env [Wanted<'env>],
    tracker: &Tracker<'_>,
) -> Result<Fetched, FetchError> {
    let blobs = wanted.iter().flat_map(|wanted| {
        let Wanted { stream, have, sink } = *wanted;
        let table = &stream.table;
        table.blobs().iter().zip((0..).step_by(BLOB_FRAMES)).map(move |(blob, first)| {
            let transfer = BlobTransfer { source, workers, table, blob, first, sink, tracker };
            async move { transfer.run(have).await }
        })
    });
    let add = |sum: Fetched, part: Fetched| async move {
        Ok(Fetched { raw: sum.raw + part.raw, compressed: sum.compressed + part.compressed })
    };
    stream::iter(blobs).buffer_unordered(TRANSFERS).try_fold(Fetched::default(), add).await
}

/// One blob on its way.
struct BlobTransfer<'a, 'env, S> {
    source: &'a S,
    workers: &'a Workers<'env>,
    table: &'env FrameTable,
    blob: &'env Blob,
    /// The number of the blob's first frame in the stream.
    first: u64,
    sink: &'env dyn ByteSink,
    tracker: &'a Tracker<'a>,
}

impl<S: BlobSource> BlobTransfer<'_, '_, S> {
    async fn run(&self, have: Have<'_>) -> Result<Fetched, FetchError> {
        let frames = self.blob.frames();
        let wanted: Vec<bool> = (self.first..).take(frames.len()).map(|frame| !have(frame)).collect();
        let mut digest = wanted.iter().all(|wanted| *wanted).then(Sha256::default);
        let mut fetched = Fetched::default();
        for run in runs(&wanted) {
            let part = self.fetch_run(run, &mut digest).await?;
            fetched.raw += part.raw;
            fetched.compressed += part.compressed;
        }
        if let Some(digest) = digest {
            let (found, expected) = (digest.finish(), self.blob.digest());
            if found != expected {
                return Err(FetchError::Digest { found, expected });
            }
        }
        Ok(fetched)
    }

    /// Fetches frames that follow each other, with as many requests as it takes.
    async fn fetch_run(
        &self,
        mut run: Range<usize>,
        digest: &mut Option<Sha256>,
    ) -> Result<Fetched, FetchError> {
        let mut fetched = Fetched::default();
        let mut attempts = 0;
        while run.start < run.end {
            let before = run.start;
            match self.request(&mut run, digest, &mut fetched).await {
                Ok(()) => {}
                Err(FetchError::Source { digest, source }) => {
                    // A registry that sends a frame each time is slow, not broken.
                    attempts = if run.start > before { 1 } else { attempts + 1 };
                    let waited = self.source.wait(source, attempts).await;
                    waited.map_err(|source| FetchError::Source { digest, source })?;
                }
                Err(other) => return Err(other),
            }
        }
        Ok(fetched)
    }

    /// One request. `run` begins after the last frame that came whole.
    async fn request(
        &self,
        run: &mut Range<usize>,
        digest: &mut Option<Sha256>,
        fetched: &mut Fetched,
    ) -> Result<(), FetchError> {
        let failed = |source| FetchError::Source { digest: self.blob.digest(), source };
        let offset = |frame: usize| {
            self.blob.frames()[..frame].iter().map(|frame| u64::from(frame.compressed)).sum::<u64>()
        };
        let range = offset(run.start)..offset(run.end);
        let mut reader =
            self.source.read(self.blob.digest(), self.blob.size(), range).await.map_err(failed)?;
        let mut buffer = BytesMut::new();
        while run.start < run.end {
            let needed = self.blob.frames()[run.start].compressed as usize;
            while buffer.len() < needed {
                let Some(more) = reader.next().await.map_err(failed)? else {
                    return Err(failed(SourceError::Truncated { digest: self.blob.digest() }));
                };
                buffer.extend_from_slice(&more);
            }
            let raw = self.frame(run.start, buffer.split_to(needed).freeze(), digest).await?;
            run.start += 1;
            fetched.raw += raw;
            fetched.compressed += needed as u64;
            self.tracker.advance(raw);
        }
        Ok(())
    }

    /// Checks a frame and gives it to the sink; returns its raw bytes.
    async fn frame(
        &self,
        index: usize,
        compressed: Bytes,
        digest: &mut Option<Sha256>,
    ) -> Result<u64, FetchError> {
        let (table, sink, frame) = (self.table, self.sink, self.blob.frames()[index]);
        let number = self.first + index as u64;
        let mut hash = digest.take();
        let job = move || {
            if let Some(hash) = &mut hash {
                hash.bytes(&compressed);
            }
            let write = |raw: &[u8], offset: u64| {
                let written = sink.write_at(raw, offset);
                written.map(|()| raw.len() as u64).map_err(|source| FetchError::Sink {
                    offset,
                    length: raw.len(),
                    source,
                })
            };
            (unpack_frame(table, number, frame, &compressed, write), hash)
        };
        let (result, hash) = self.workers.run(job).await;
        *digest = hash;
        result.map_err(|source| FetchError::Frame { digest: self.blob.digest(), source })?
    }
}

/// The runs of `true`.
fn runs(wanted: &[bool]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (index, _) in wanted.iter().enumerate().filter(|(_, wanted)| **wanted) {
        match runs.last_mut() {
            Some(last) if last.end == index => last.end += 1,
            _ => runs.push(index..index + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wanted_frames_are_asked_for_together() {
        let runs = |wanted: &[u8]| runs(&wanted.iter().map(|wanted| *wanted == 1).collect::<Vec<_>>());
        assert!(runs(&[]).is_empty());
        assert!(runs(&[0, 0]).is_empty());
        assert_eq!(runs(&[1, 1, 0, 1, 0]), [0..2, 3..4]);
        assert_eq!(runs(&[0, 1, 1]), std::slice::from_ref(&(1..3)));
    }
}
