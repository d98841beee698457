//! Writing a layout, in one pass: also to a pipe.

use std::collections::HashSet;
use std::io::{self, Write};

use forkd_source::digest::Digest;

use super::{BLOBS, INDEX, MARKER, Marker, TAG};
use crate::config::Stream;
use crate::manifest::{self, Descriptor, INDEX_TYPE, Index, MANIFEST_TYPE, ManifestError};
use crate::outgoing::{OutgoingError, Prepared, Snapshot};
use crate::pack::PackError;
use crate::progress::{Progress, Tracker};
use crate::role::ARTIFACT_TYPE;

/// A layout was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error(transparent)]
    Snapshot(#[from] OutgoingError),
    #[error("cannot pack stream {name:?}")]
    Pack { name: String, source: PackError },
    #[error("cannot write {entry}")]
    Write { entry: String, source: io::Error },
    #[error("cancelled")]
    Cancelled,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Of the manifest.
    pub digest: Digest,
    /// With the tables to remember.
    pub streams: Vec<Stream>,
    /// Compressed bytes of the streams, equal blobs once.
    pub compressed: u64,
}

/// Writes a snapshot as a tar, with the tag if there is one. Blobs are made and written one by one.
pub fn write(
    to: impl Write,
    snapshot: Snapshot<'_>,
    tag: Option<&str>,
    progress: &dyn Progress,
) -> Result<Written, WriteError> {
    let prepared = Prepared::new(snapshot)?;
    let tracker = Tracker::new(progress, prepared.total());
    let mut archive = Archive { tar: tar::Builder::new(to), written: HashSet::new() };
    let syntax = |error| WriteError::Snapshot(ManifestError::Syntax(error).into());

    let marker = serde_json::to_vec(&Marker { image_layout_version: "1.0.0".into() }).map_err(syntax)?;
    archive.entry(MARKER, &marker)?;
    let mut blobs = Vec::new();
    let mut compressed = 0;
    for blob in prepared.blobs() {
        let packed = blob.job.blob_in_parallel(blob.number, &|| tracker.is_cancelled());
        let packed = packed.map_err(|source| match source {
            PackError::Cancelled => WriteError::Cancelled,
            source => WriteError::Pack { name: snapshot.streams[blob.stream].name.into(), source },
        })?;
        if archive.blob(packed.blob.digest(), &packed.bytes)? {
            compressed += packed.blob.size();
        }
        blobs.push(packed.blob);
        tracker.advance(blob.raw);
    }
    let documents = prepared.documents(blobs)?;
    archive.blob(Digest::of(&documents.config), &documents.config)?;
    archive.blob(documents.manifest_digest, &documents.manifest)?;

    let size = documents.manifest.len() as u64;
    let mut entry = Descriptor::new(MANIFEST_TYPE, documents.manifest_digest, size);
    entry.artifact_type = Some(ARTIFACT_TYPE.into());
    entry.annotations = snapshot.annotations.clone();
    if let Some(tag) = tag {
        entry.annotations.insert(TAG.into(), tag.into());
    }
    let index = Index {
        schema_version: 2,
        media_type: INDEX_TYPE.into(),
        artifact_type: None,
        manifests: vec![entry],
    };
    archive.entry(INDEX, &manifest::encode(&index).map_err(OutgoingError::from)?)?;
    archive.finish()?;
    Ok(Written { digest: documents.manifest_digest, streams: documents.streams, compressed })
}

struct Archive<W: Write> {
    tar: tar::Builder<W>,
    written: HashSet<Digest>,
}

impl<W: Write> Archive<W> {
    /// Writes a blob unless it is there; says whether it was written.
    fn blob(&mut self, digest: Digest, bytes: &[u8]) -> Result<bool, WriteError> {
        let is_new = self.written.insert(digest);
        if is_new {
            self.entry(&format!("{BLOBS}/{}", digest.hex()), bytes)?;
        }
        Ok(is_new)
    }

    fn entry(&mut self, name: &str, bytes: &[u8]) -> Result<(), WriteError> {
        // Nothing of this host, and no time: equal snapshots are equal files.
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o644);
        header.set_size(bytes.len() as u64);
        let written = self.tar.append_data(&mut header, name, bytes);
        written.map_err(|source| WriteError::Write { entry: name.into(), source })
    }

    fn finish(self) -> Result<(), WriteError> {
        let finished = self.tar.into_inner().and_then(|mut to| to.flush());
        finished.map_err(|source| WriteError::Write { entry: "the end of the archive".into(), source })
    }
}
