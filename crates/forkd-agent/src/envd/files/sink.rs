//! A file that is being uploaded.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use flate2::write::MultiGzDecoder;
use rustix::fs::OFlags;

use super::{CHUNK, Written};
use crate::envd::filesystem::{make_parents, own};
use crate::envd::metadata;
use crate::envd::rest::RestError;
use crate::runtime::blocking;
use crate::users::User;

/// Writes go to the disk in large pieces. A file that did not exist before, and is given up, is removed: a full disk gets its
/// space back.
#[derive(Debug)]
pub struct FileSink {
    buffer: BytesMut,
    output: Option<Output>,
    path: PathBuf,
    unfinished: Unfinished,
    notes: BTreeMap<String, String>,
}

#[derive(Debug)]
enum Output {
    Plain(File),
    Compressed(Box<MultiGzDecoder<File>>),
}

/// Removes its file when it is dropped, if it has one.
#[derive(Debug)]
struct Unfinished(Option<PathBuf>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl FileSink {
    /// Makes or empties the file, with the directories above it; all that is new belongs to the user.
    pub async fn create(
        path: PathBuf,
        user: User,
        notes: BTreeMap<String, String>,
        compressed: bool,
    ) -> Result<Self, RestError> {
        let subject = path.display().to_string();
        let opened = blocking(move || open(path, &user, notes, compressed)).await;
        opened.and_then(|opened| opened).map_err(|error| RestError::system(&subject, &error))
    }

    pub async fn write(&mut self, bytes: &Bytes) -> Result<(), RestError> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() < CHUNK { Ok(()) } else { self.flush().await }
    }

    /// Writes what is left, and keeps the file.
    pub async fn finish(mut self) -> Result<Written, RestError> {
        self.flush().await?;
        if let Some(Output::Compressed(mut decoder)) = self.output.take() {
            let finished = blocking(move || decoder.try_finish()).await.and_then(|finished| finished);
            finished.map_err(|error| wrong(&self.path, &error))?;
        }
        self.unfinished.0 = None;
        Ok(Written::new(&self.path, std::mem::take(&mut self.notes)))
    }

    async fn flush(&mut self) -> Result<(), RestError> {
        let (Some(mut output), chunk) = (self.output.take(), self.buffer.split()) else { return Ok(()) };
        let written = blocking(move || {
            let written = match &mut output {
                Output::Plain(file) => file.write_all(&chunk),
                Output::Compressed(decoder) => decoder.write_all(&chunk),
            };
            written.map(|()| output)
        });
        let output = written.await.and_then(|written| written).map_err(|error| wrong(&self.path, &error))?;
        self.output = Some(output);
        Ok(())
    }
}

fn open(
    path: PathBuf,
    user: &User,
    notes: BTreeMap<String, String>,
    compressed: bool,
) -> io::Result<FileSink> {
    make_parents(&path, user)?;
    let existed = path.symlink_metadata().is_ok();
    // Without waiting: a pipe that nobody reads is an error and not a thread that is gone.
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file =
        File::options().write(true).create(true).truncate(true).custom_flags(nonblocking).open(&path)?;
    let unfinished = Unfinished((!existed).then(|| path.clone()));
    if !file.metadata()?.is_file() {
        return Err(rustix::io::Errno::INVAL.into());
    }
    own(&path, user)?;
    metadata::write(&file, &path, &notes)?;
    let output = if compressed {
        Output::Compressed(Box::new(MultiGzDecoder::new(file)))
    } else {
        Output::Plain(file)
    };
    Ok(FileSink { buffer: BytesMut::new(), output: Some(output), path, unfinished, notes })
}

fn wrong(path: &Path, error: &io::Error) -> RestError {
    match error.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            RestError::bad_request(format!("{}: the body is not gzip: {error}", path.display()))
        }
        _ => RestError::system(&path.display().to_string(), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn sink(path: &Path, compressed: bool) -> Result<FileSink, RestError> {
        FileSink::create(path.to_owned(), crate::users::current(), BTreeMap::new(), compressed).await
    }

    #[tokio::test]
    async fn plain_and_compressed_and_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/deep/file");
        let mut plain = sink(&path, false).await.unwrap();
        plain.write(&Bytes::from_static(b"longer text")).await.unwrap();
        assert_eq!(plain.finish().await.unwrap().name, "file");
        assert_eq!(std::fs::read(&path).unwrap(), b"longer text");
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(b"short").unwrap();
        let mut compressed = sink(&path, true).await.unwrap();
        compressed.write(&encoder.finish().unwrap().into()).await.unwrap();
        compressed.finish().await.unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"short");
    }

    #[tokio::test]
    async fn what_is_given_up_leaves_nothing_new() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        drop(sink(&path, false).await.unwrap());
        assert!(!path.exists());
        let mut damaged = sink(&path, true).await.unwrap();
        damaged.write(&Bytes::from_static(b"this is not gzip at all")).await.unwrap();
        assert_eq!(damaged.finish().await.unwrap_err().status(), 400);
        assert!(!path.exists());
        std::fs::write(&path, "old").unwrap();
        drop(sink(&path, false).await.unwrap());
        assert!(path.exists());
        assert_eq!(sink(directory.path(), false).await.unwrap_err().status(), 400);
    }
}
