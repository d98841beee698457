//! A snapshot that is about to be sent, to a registry or to a file.

use std::io;

use forkd_source::digest::Digest;

use crate::byte_io::ByteSource;
use crate::config::{self, About, Config, ConfigError, Stream};
use crate::frame::{self, BLOB_FRAMES, MAX_STREAM};
use crate::manifest::{self, Annotations, Manifest, ManifestError};
use crate::pack::PackJob;
use crate::role::Role;
use crate::table::{Blob, FrameTable, TableError};

/// What is sent.
#[derive(Debug, Clone, Copy)]
pub struct Snapshot<'a> {
    pub streams: &'a [Outgoing<'a>],
    /// What the receiver must know before it fetches anything.
    pub about: &'a About,
    /// Of the manifest, and of its entry in an index: what a receiver chooses a variant by.
    pub annotations: &'a Annotations,
}

/// One stream that is sent.
#[derive(Clone, Copy)]
pub struct Outgoing<'a> {
    pub role: Role,
    /// Tells streams of one role from each other.
    pub name: &'a str,
    pub source: &'a dyn ByteSource,
    /// The BLAKE3 digests of all frames, if the caller has them. What is read is compared with them.
    pub known: Option<&'a [blake3::Hash]>,
    /// The table of an earlier push or pull. Its blobs are used as far as their frames have the known digests.
    pub remembered: Option<&'a FrameTable>,
}

impl std::fmt::Debug for Outgoing<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outgoing").field("role", &self.role).field("name", &self.name).finish_non_exhaustive()
    }
}

/// A snapshot cannot be sent as it is.
#[derive(Debug, thiserror::Error)]
pub enum OutgoingError {
    #[error("cannot find out how long stream {name:?} is")]
    Length { name: String, source: io::Error },
    #[error("stream {name:?} has {size} bytes, expected at most {MAX_STREAM}")]
    TooLarge { name: String, size: u64 },
    #[error("{found} digests are known for stream {name:?}, expected one for each of its {expected} frames")]
    KnownDigests { name: String, found: usize, expected: u64 },
    #[error("all streams are empty, and an artifact has at least one layer")]
    Empty,
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Table(#[from] TableError),
}

/// A snapshot whose sizes are known and checked.
pub(crate) struct Prepared<'a> {
    snapshot: Snapshot<'a>,
    sizes: Vec<u64>,
}

/// One blob that is to be made.
#[derive(Clone, Copy)]
pub(crate) struct OutgoingBlob<'a> {
    pub job: PackJob<'a>,
    pub stream: usize,
    pub number: u64,
    /// Raw bytes.
    pub raw: u64,
    /// The blob that these frames were the last time.
    pub remembered: Option<&'a Blob>,
}

/// What completes the blobs.
pub(crate) struct Documents {
    pub streams: Vec<Stream>,
    pub config: Vec<u8>,
    pub manifest: Vec<u8>,
    pub manifest_digest: Digest,
}

impl<'a> Prepared<'a> {
    pub fn new(snapshot: Snapshot<'a>) -> Result<Prepared<'a>, OutgoingError> {
        config::check_streams(snapshot.streams.iter().map(|stream| (stream.role, stream.name)))?;
        let mut sizes = Vec::with_capacity(snapshot.streams.len());
        for stream in snapshot.streams {
            let name = || stream.name.to_owned();
            let size = stream.source.length();
            let size = size.map_err(|source| OutgoingError::Length { name: name(), source })?;
            if size > MAX_STREAM {
                return Err(OutgoingError::TooLarge { name: name(), size });
            }
            let expected = frame::frame_count(size);
            if let Some(known) = stream.known
                && known.len() as u64 != expected
            {
                return Err(OutgoingError::KnownDigests { name: name(), found: known.len(), expected });
            }
            sizes.push(size);
        }
        if sizes.iter().all(|size| *size == 0) {
            return Err(OutgoingError::Empty);
        }
        Ok(Prepared { snapshot, sizes })
    }

    /// Raw bytes of all streams.
    pub fn total(&self) -> u64 {
        self.sizes.iter().sum()
    }

    /// All blobs, in order.
    pub fn blobs(&self) -> impl Iterator<Item = OutgoingBlob<'a>> {
        let streams = self.snapshot.streams.iter().zip(&self.sizes).enumerate();
        streams.flat_map(|(index, (stream, size))| {
            let job = PackJob { source: stream.source, size: *size, known: stream.known };
            (0..frame::blob_count(*size)).map(move |number| {
                let range = frame::blob_range(job.size, number);
                OutgoingBlob {
                    job,
                    stream: index,
                    number,
                    raw: range.end - range.start,
                    remembered: remembered(stream, job.size, number),
                }
            })
        })
    }

    /// Config and manifest for the blobs, which are in the order of [`Self::blobs`].
    pub fn documents(&self, blobs: Vec<Blob>) -> Result<Documents, OutgoingError> {
        let mut blobs = blobs.into_iter();
        let mut streams = Vec::with_capacity(self.sizes.len());
        for (stream, size) in self.snapshot.streams.iter().zip(&self.sizes) {
            let count = usize::try_from(frame::blob_count(*size)).unwrap_or(usize::MAX);
            let table = FrameTable::new(*size, blobs.by_ref().take(count).collect())?;
            streams.push(Stream { role: stream.role, name: stream.name.to_owned(), table });
        }
        let config = Config::new(self.snapshot.about.clone(), streams)?;
        let bytes = config.encode()?;
        let manifest = Manifest::of_snapshot(&bytes, &config.streams, self.snapshot.annotations.clone());
        let manifest = manifest::encode(&manifest)?;
        let manifest_digest = Digest::of(&manifest);
        Ok(Documents { streams: config.streams, config: bytes, manifest, manifest_digest })
    }
}

/// The blob of the remembered table with the same frames, if the caller knows what they are.
fn remembered<'a>(stream: &Outgoing<'a>, size: u64, number: u64) -> Option<&'a Blob> {
    let (known, table) = (stream.known?, stream.remembered?);
    let blob = table.blobs().get(usize::try_from(number).ok()?)?;
    // Only the last frame of a stream may be short, and its length is not in its digest's table.
    if frame::blob_range(size, number) != frame::blob_range(table.size(), number) {
        return None;
    }
    let first = usize::try_from(number).ok()?.checked_mul(BLOB_FRAMES)?;
    let known = known.get(first..)?.get(..blob.frames().len())?;
    let same = known.iter().zip(blob.frames()).all(|(known, frame)| *known == frame.digest);
    same.then_some(blob)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{noise, stream_of};

    fn outgoing<'a>(bytes: &'a Vec<u8>) -> Outgoing<'a> {
        Outgoing { role: Role::State, name: "a", source: bytes, known: None, remembered: None }
    }

    #[test]
    fn a_remembered_blob_is_used_only_for_the_same_frames() {
        let bytes = noise(3 << 20);
        let table = stream_of(Role::State, "a", &bytes).table;
        let known: Vec<_> = table.frame_digests().collect();
        let other = [known[0], blake3::hash(b"other")];
        let found = |known: Option<&[blake3::Hash]>, size| {
            let stream = Outgoing { known, remembered: Some(&table), ..outgoing(&bytes) };
            remembered(&stream, size, 0).is_some()
        };
        assert!(found(Some(&known), 3 << 20));
        assert!(!found(Some(&known), (3 << 20) - 1), "another length");
        assert!(!found(Some(&other), 3 << 20), "another frame");
        assert!(!found(None, 3 << 20), "nothing is known");
    }

    #[test]
    fn what_cannot_be_sent_is_named() {
        let (empty, bytes) = (Vec::new(), noise(5));
        let prepare = |streams: &[Outgoing<'_>]| {
            let snapshot = Snapshot { streams, about: &About::new(), annotations: &Annotations::new() };
            Prepared::new(snapshot).map(|prepared| prepared.total())
        };
        assert!(matches!(prepare(&[outgoing(&empty)]), Err(OutgoingError::Empty)));
        assert!(matches!(prepare(&[]), Err(OutgoingError::Config(_))));
        let wrong = Outgoing { known: Some(&[]), ..outgoing(&bytes) };
        assert!(matches!(prepare(&[wrong]), Err(OutgoingError::KnownDigests { expected: 1, .. })));
        assert_eq!(prepare(&[outgoing(&bytes)]).unwrap(), 5);
    }
}
