//! Reading a layout: the tar comes in any order, so it is unpacked to a directory first, and every blob is checked on the way.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use forkd_source::archive::{ArchiveEntry, ArchiveError, Kind, Limits, Used, read_entries};
use forkd_source::digest::{Digest, Stream as Sha256};
use tempfile::TempDir;

use super::{BLOBS, INDEX, MARKER, Marker};
use crate::artifact::{self, Artifact, BlobReader, BlobSource, OpenError, Selector, SourceError};
use crate::byte_io::ByteSink;
use crate::config::Stream;
use crate::fetch::{self, FetchError, Fetched, Have, Wanted};
use crate::manifest::MAX_MANIFEST;
use crate::progress::{Progress, Tracker, cancelled};
use crate::workers::with_workers;

const CHUNK: usize = 256 << 10;
/// Entries in one archive, directories too. A stream of 512 GiB has 8192 blobs.
const MAX_ENTRIES: u64 = 1 << 17;
const MAX_MARKER: u64 = 4 << 10;

/// A layout was not read.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error(
        "the archive is refused: {entry:?} is not part of a layout (oci-layout, index.json, blobs/sha256/<64 hex>)"
    )]
    Entry { entry: String },
    #[error("the archive is refused: {entry:?} has {size} bytes, expected at most {limit}")]
    TooLarge { entry: String, size: u64, limit: u64 },
    #[error("the archive is refused: {entry:?} occurs twice")]
    Twice { entry: &'static str },
    #[error("blob {expected} is damaged: its digest is {found}")]
    Digest { found: Digest, expected: Digest },
    #[error("the archive is truncated, or not a layout: it has no {0}")]
    Missing(&'static str),
    #[error("layout version {found:?}, expected 1.x")]
    Version { found: String },
    #[error("cannot use {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("cancelled")]
    Cancelled,
}

/// A layout that was unpacked. Its files go with it.
#[derive(Debug)]
pub struct Layout {
    directory: TempDir,
    /// Sizes by digest.
    blobs: BTreeMap<Digest, u64>,
    index: Vec<u8>,
}

impl Layout {
    /// Unpacks a tar to a new directory in `directory`. All blobs together have at most `limit` bytes. `progress` gets the
    /// bytes of blobs that were read, and no total.
    pub fn unpack(
        archive: impl Read,
        directory: &Path,
        limit: u64,
        progress: &dyn Progress,
    ) -> Result<Layout, LayoutError> {
        let made = tempfile::Builder::new().prefix(".layout-").tempdir_in(directory);
        let made = made.map_err(|source| LayoutError::File { path: directory.into(), source })?;
        let mut layout = Layout { directory: made, blobs: BTreeMap::new(), index: Vec::new() };
        let limits = Limits { total: limit, file: limit, entries: MAX_ENTRIES, path: 255, depth: 8 };
        let tracker = Tracker::without_total(progress);
        let (mut marker, mut index, mut problem) = (None, None, None);
        // The reader has errors of its own; ours wait here until it returns.
        let read = read_entries(archive, &limits, &mut Used::default(), |entry, content| {
            layout.entry(&entry, content, &mut marker, &mut index, &tracker).map_err(|error| {
                problem = Some(error);
                ArchiveError::Cancelled
            })
        });
        match (problem, read) {
            (Some(problem), _) => return Err(problem),
            (None, read) => read?,
        }
        check_marker(&marker.ok_or(LayoutError::Missing(MARKER))?)?;
        layout.index = index.ok_or(LayoutError::Missing(INDEX))?;
        Ok(layout)
    }

    fn entry(
        &mut self,
        entry: &ArchiveEntry,
        content: &mut dyn Read,
        marker: &mut Option<Vec<u8>>,
        index: &mut Option<Vec<u8>>,
        tracker: &Tracker<'_>,
    ) -> Result<(), LayoutError> {
        let name = entry.path.as_path().to_string_lossy().into_owned();
        let hex = name.strip_prefix(BLOBS).and_then(|rest| rest.strip_prefix('/'));
        match (&entry.kind, name.as_str(), hex) {
            // No directory is made, so it does not matter which one it is: oras leaves one of its own.
            (Kind::Directory, ..) => Ok(()),
            (Kind::File { size }, MARKER, _) => small(content, MARKER, *size, MAX_MARKER, marker),
            (Kind::File { size }, INDEX, _) => small(content, INDEX, *size, MAX_MANIFEST, index),
            (Kind::File { size }, _, Some(hex)) => {
                let digest = format!("sha256:{hex}").parse();
                let digest = digest.map_err(|_| LayoutError::Entry { entry: name.clone() })?;
                self.blob(digest, *size, content, tracker)
            }
            _ => Err(LayoutError::Entry { entry: name }),
        }
    }

    fn blob(
        &mut self,
        expected: Digest,
        size: u64,
        content: &mut dyn Read,
        tracker: &Tracker<'_>,
    ) -> Result<(), LayoutError> {
        let path = self.path(expected);
        let failed = |source| LayoutError::File { path: path.clone(), source };
        // A blob that is there twice is the same twice: it is checked again and not written.
        let mut file = match self.blobs.contains_key(&expected) {
            true => None,
            false => Some(File::create_new(&path).map_err(failed)?),
        };
        let mut hash = Sha256::default();
        let mut buffer = vec![0; CHUNK];
        let mut left = size;
        while left > 0 {
            if tracker.is_cancelled() {
                return Err(LayoutError::Cancelled);
            }
            let part = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
            let read = content.read_exact(&mut buffer[..part]);
            read.map_err(|source| ArchiveError::Read { entry: expected.to_string(), source })?;
            hash.bytes(&buffer[..part]);
            if let Some(file) = &mut file {
                file.write_all(&buffer[..part]).map_err(failed)?;
            }
            left -= part as u64;
            tracker.advance(part as u64);
        }
        let found = hash.finish();
        if found != expected {
            return Err(LayoutError::Digest { found, expected });
        }
        self.blobs.insert(expected, size);
        Ok(())
    }

    fn path(&self, digest: Digest) -> PathBuf {
        self.directory.path().join(digest.hex())
    }

    /// Checks manifest and config of the snapshot in it. With several variants, `select` chooses one.
    pub fn open(&self, select: Selector<'_>) -> Result<Artifact, OpenError> {
        // Files are always ready, so nothing waits here.
        futures_util::FutureExt::now_or_never(artifact::open(self, &self.index, select))
            .unwrap_or(Err(OpenError::Cancelled))
    }

    /// Gives the frames of a stream that the caller does not have to a sink.
    pub fn fetch(
        &self,
        stream: &Stream,
        have: Have<'_>,
        sink: &dyn ByteSink,
        progress: &dyn Progress,
    ) -> Result<Fetched, FetchError> {
        self.fetch_all(&[Wanted { stream, have, sink }], progress)
    }

    /// The same of several streams.
    pub fn fetch_all(&self, wanted: &[Wanted<'_>], progress: &dyn Progress) -> Result<Fetched, FetchError> {
        let tracker = Tracker::new(progress, wanted.iter().map(Wanted::missing).sum());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(FetchError::Runtime)?;
        with_workers(|workers| {
            runtime.block_on(async {
                tokio::select! {
                    done = fetch::fetch(self, workers, wanted, &tracker) => done,
                    () = cancelled(progress) => Err(FetchError::Cancelled),
                }
            })
        })
    }
}

fn small(
    content: &mut dyn Read,
    entry: &'static str,
    size: u64,
    limit: u64,
    to: &mut Option<Vec<u8>>,
) -> Result<(), LayoutError> {
    if size > limit {
        return Err(LayoutError::TooLarge { entry: entry.into(), size, limit });
    }
    let mut bytes = vec![0; usize::try_from(size).unwrap_or_default()];
    let read = content.read_exact(&mut bytes);
    read.map_err(|source| ArchiveError::Read { entry: entry.into(), source })?;
    if to.replace(bytes).is_some() { Err(LayoutError::Twice { entry }) } else { Ok(()) }
}

fn check_marker(bytes: &[u8]) -> Result<(), LayoutError> {
    let found = serde_json::from_slice::<Marker>(bytes).map(|marker| marker.image_layout_version);
    let found = found.unwrap_or_default();
    if found.starts_with("1.") {
        return Ok(());
    }
    Err(LayoutError::Version { found: found.chars().take(40).collect() })
}

impl BlobSource for Layout {
    type Reader = FileReader;

    async fn manifest(&self, digest: Digest, limit: u64) -> Result<Bytes, SourceError> {
        let mut reader = self.read(digest, limit, 0..limit.min(MAX_MANIFEST)).await?;
        let mut bytes = Vec::new();
        while let Some(more) = reader.next().await? {
            bytes.extend_from_slice(&more);
        }
        Ok(bytes.into())
    }

    async fn read(&self, digest: Digest, size: u64, range: Range<u64>) -> Result<FileReader, SourceError> {
        if self.blobs.get(&digest) != Some(&size) {
            return Err(SourceError::Missing { digest });
        }
        let file = File::open(self.path(digest));
        let file = file.map_err(|source| SourceError::File { digest, source })?;
        Ok(FileReader { file, digest, range })
    }

    async fn wait(&self, error: SourceError, _: u32) -> Result<(), SourceError> {
        Err(error)
    }
}

/// A part of a blob that is a file.
pub(crate) struct FileReader {
    file: File,
    digest: Digest,
    range: Range<u64>,
}

impl BlobReader for FileReader {
    async fn next(&mut self) -> Result<Option<Bytes>, SourceError> {
        let left = self.range.end.saturating_sub(self.range.start);
        if left == 0 {
            return Ok(None);
        }
        let part = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        let mut buffer = vec![0; part];
        let read = self.file.read_exact_at(&mut buffer, self.range.start);
        read.map_err(|source| SourceError::File { digest: self.digest, source })?;
        self.range.start += part as u64;
        Ok(Some(buffer.into()))
    }
}
