//! A file that is being uploaded.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use flate2::write::MultiGzDecoder;
use forkd_envd::files::Written;
use rustix::fs::OFlags;

use super::{CHUNK, written};
use crate::envd::filesystem::{make_parents, own};
use crate::envd::metadata;
use crate::envd::rest::RestError;
use crate::runtime::blocking;
use crate::users::User;

/// How a file comes, and how it is kept.
#[derive(Debug, Clone, Copy, Default)]
pub struct Encoding {
    /// With gzip.
    pub compressed: bool,
    /// It is written beside its place, and takes it at the end. Clients of E2B's see the file while it grows, and what watches it
    /// sees it written; forkd's own callers rather have no half of it.
    pub whole: bool,
}

/// Writes go to the disk in large pieces. A file that did not exist before, and is given up, is removed: a full disk gets its
/// space back.
#[derive(Debug)]
pub struct FileSink {
    buffer: BytesMut,
    output: Option<Output>,
    path: PathBuf,
    unfinished: Unfinished,
    /// The place that the file takes when it is whole.
    replaces: Option<PathBuf>,
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
        encoding: Encoding,
    ) -> Result<Self, RestError> {
        let subject = path.display().to_string();
        let opened = blocking(move || open(path, &user, notes, encoding)).await;
        opened.and_then(|opened| opened).map_err(|error| RestError::system(&subject, &error))
    }

    pub async fn write(&mut self, bytes: &Bytes) -> Result<(), RestError> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() < CHUNK { Ok(()) } else { self.flush().await }
    }

    /// Writes the rest, and keeps the file.
    pub async fn finish(mut self) -> Result<Written, RestError> {
        self.flush().await?;
        if let Some(Output::Compressed(mut decoder)) = self.output.take() {
            let finished = blocking(move || decoder.try_finish()).await.and_then(|finished| finished);
            finished.map_err(|error| wrong(&self.path, &error))?;
        }
        if let (Some(place), Some(beside)) = (self.replaces.take(), self.unfinished.0.clone()) {
            let renamed = blocking(move || std::fs::rename(beside, place)).await.and_then(|renamed| renamed);
            renamed.map_err(|error| wrong(&self.path, &error))?;
        }
        self.unfinished.0 = None;
        Ok(written(&self.path, std::mem::take(&mut self.notes)))
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
    encoding: Encoding,
) -> io::Result<FileSink> {
    make_parents(&path, user)?;
    let (file, unfinished, replaces) = match encoding.whole {
        true => beside(&path)?,
        false => in_place(&path)?,
    };
    // A file that replaces another has a temporary name until the end.
    let name = unfinished.0.as_deref().unwrap_or(&path);
    if !file.metadata()?.is_file() {
        return Err(rustix::io::Errno::INVAL.into());
    }
    own(name, user)?;
    metadata::write(&file, name, &notes)?;
    let output = if encoding.compressed {
        Output::Compressed(Box::new(MultiGzDecoder::new(file)))
    } else {
        Output::Plain(file)
    };
    Ok(FileSink { buffer: BytesMut::new(), output: Some(output), path, unfinished, replaces, notes })
}

type Opened = (File, Unfinished, Option<PathBuf>);

fn in_place(path: &Path) -> io::Result<Opened> {
    let existed = path.symlink_metadata().is_ok();
    // Without waiting: a pipe without a reader is an error and not a thread that is gone.
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file =
        File::options().write(true).create(true).truncate(true).custom_flags(nonblocking).open(path)?;
    Ok((file, Unfinished((!existed).then(|| path.to_owned())), None))
}

/// A new file in the same directory, with the mode of the one that it will replace. A link is written through, as always.
fn beside(path: &Path) -> io::Result<Opened> {
    let place = match path.canonicalize() {
        Ok(place) => place,
        Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
        Err(error) => return Err(error),
    };
    let mode = match place.metadata() {
        Ok(found) if found.is_dir() => return Err(rustix::io::Errno::ISDIR.into()),
        Ok(found) if !found.is_file() => return Err(rustix::io::Errno::INVAL.into()),
        Ok(found) => Some(found.permissions()),
        Err(_) => None,
    };
    let name = format!(".forkd-{:016x}", getrandom::u64()?);
    let new = place.parent().unwrap_or(Path::new("/")).join(name);
    let file = File::options().write(true).create_new(true).open(&new)?;
    let unfinished = Unfinished(Some(new));
    if let Some(mode) = mode {
        file.set_permissions(mode)?;
    }
    Ok((file, unfinished, Some(place)))
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
        with(path, Encoding { compressed, whole: false }).await
    }

    async fn with(path: &Path, encoding: Encoding) -> Result<FileSink, RestError> {
        FileSink::create(path.to_owned(), crate::users::current(), BTreeMap::new(), encoding).await
    }

    #[tokio::test]
    async fn a_file_that_is_to_be_whole_is_not_seen_before() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("file"), directory.path().join("link"));
        let names = || std::fs::read_dir(directory.path()).unwrap().count();
        let whole = Encoding { compressed: false, whole: true };
        let mut new = with(&path, whole).await.unwrap();
        new.write(&Bytes::from_static(b"one")).await.unwrap();
        assert!(!path.exists());
        drop(new);
        assert_eq!(names(), 0);

        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o741)).unwrap();
        symlink(&path, &link).unwrap();
        let mut again = with(&link, whole).await.unwrap();
        again.write(&Bytes::from(vec![b'x'; CHUNK])).await.unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        drop(again);
        assert_eq!((std::fs::read(&path).unwrap(), names()), (b"old".to_vec(), 2));
        let mut again = with(&link, whole).await.unwrap();
        again.write(&Bytes::from_static(b"new")).await.unwrap();
        again.finish().await.unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), names()), (b"new".to_vec(), 2));
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o741);
        assert!(link.is_symlink());
        assert_eq!(with(directory.path(), whole).await.unwrap_err().status(), 400);
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
