//! `forkd cp`: as cp would, with one side in a sandbox.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use forkd_api::file::FileKind;
use forkd_client::{Client, ClientError, Download};
use tokio::sync::{mpsc, oneshot};

use super::with_daemon;
use crate::arguments::CpOptions;
use crate::copy::{Taken, merge, pack, unpack, written};
use crate::error::CliError;
use crate::exit::Exit;
use crate::signals::Signals;

/// Pieces that wait to be written.
const QUEUE: usize = 8;

/// One side of a copy.
#[derive(Debug, PartialEq, Eq)]
enum Side<'a> {
    Here(&'a Path),
    There { sandbox: &'a str, path: &'a str },
}

pub fn run(options: &CpOptions) -> Result<Exit, CliError> {
    let (from, to) = (side(&options.from)?, side(&options.to)?);
    if matches!((&from, &to), (Side::Here(_), Side::Here(_)) | (Side::There { .. }, Side::There { .. })) {
        return Err(CliError::CopySides);
    }
    if options.user.is_some() && matches!(to, Side::Here(_)) {
        return Err(CliError::CopyUser);
    }
    with_daemon(&options.daemon, async |client| {
        let mut signals = Signals::new()?;
        let copying = async {
            match (from, to) {
                (Side::Here(here), Side::There { sandbox, path }) => {
                    send(&client, here, sandbox, path, options.user.as_deref()).await
                }
                (Side::There { sandbox, path }, Side::Here(here)) => {
                    fetch(&client, sandbox, path, here).await
                }
                _ => Err(CliError::CopySides),
            }
        };
        tokio::select! {
            copied = copying => copied.map(|()| Exit::Success),
            asked = signals.end() => Err(CliError::Interrupted(asked.status())),
        }
    })
}

/// `SANDBOX:/PATH`, unless it looks like a path already: `./a:b` is one.
fn side(text: &str) -> Result<Side<'_>, CliError> {
    match text.split_once(':') {
        Some((sandbox, path)) if !sandbox.is_empty() && !sandbox.contains('/') => match path.starts_with('/')
        {
            true => Ok(Side::There { sandbox, path }),
            false => Err(CliError::CopyRelative),
        },
        _ => Ok(Side::Here(Path::new(text))),
    }
}

/// Where something goes in a sandbox: the directory, and its name there.
fn place<'a>(path: &'a str, is_directory: bool, name: &'a str) -> (&'a str, &'a str) {
    match path.rsplit_once('/') {
        Some((directory, name)) if !is_directory && !name.is_empty() => {
            (if directory.is_empty() { "/" } else { directory }, name)
        }
        _ => (path, name),
    }
}

async fn send(
    client: &Client,
    here: &Path,
    sandbox: &str,
    path: &str,
    user: Option<&str>,
) -> Result<(), CliError> {
    let failed = |source| CliError::Copy { path: here.into(), source };
    // `.` has a name, too.
    let real = fs::canonicalize(here).map_err(failed)?;
    let name = here.file_name().or_else(|| real.file_name()).and_then(OsStr::to_str).unwrap_or("root");
    let is_directory = match client.file_info(sandbox, path).await {
        Ok(info) => info.kind == FileKind::Directory,
        Err(error) if error.is_not_found() => false,
        Err(error) => return Err(error.into()),
    };
    let (directory, name) = place(path, is_directory, name);
    let (source, packed) = (here.to_owned(), PathBuf::from(name));
    let upload = written(move |pieces| pack(&source, &packed, pieces));
    client.write_archive(sandbox, directory, user, upload).await.map_err(|error| match error {
        ClientError::Upload(source) => failed(source),
        error => error.into(),
    })
}

async fn fetch(client: &Client, sandbox: &str, path: &str, here: &Path) -> Result<(), CliError> {
    let path = match path.trim_end_matches('/') {
        "" => "/",
        path => path,
    };
    let name = path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(sandbox);
    let ends_as_directory = here.as_os_str().as_encoded_bytes().ends_with(b"/");
    let target = if here.is_dir() || ends_as_directory { here.join(name) } else { here.to_owned() };
    let failed = |source| CliError::Copy { path: target.clone(), source };
    // On the same file system, so that what is unpacked can be moved.
    let beside = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let download = client.read_archive(sandbox, path).await?;
    let scratch = tempfile::Builder::new().prefix(".forkd-cp-").tempdir_in(beside).map_err(failed)?;
    let (pieces, taken) = mpsc::channel(QUEUE);
    let (unpacked, mut tree) = oneshot::channel();
    let (into, own) = (scratch.path().to_owned(), name.to_owned());
    thread::spawn(move || unpacked.send(unpack(Taken::new(taken), &into, &own)));
    // An archive that is refused is not read to its end.
    let received = tokio::select! {
        received = receive(download, pieces) => {
            received?;
            tree.await
        }
        tree = &mut tree => tree,
    };
    let tree = received.map_err(|_| failed(std::io::ErrorKind::UnexpectedEof.into()))??;
    merge(&tree, &target).map_err(failed)
}

async fn receive(
    mut download: Download,
    pieces: mpsc::Sender<Option<bytes::Bytes>>,
) -> Result<(), ClientError> {
    loop {
        let piece = download.next().await?;
        let is_last = piece.is_none();
        // Who takes no more says why.
        if pieces.send(piece).await.is_err() || is_last {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_is_here_or_there() {
        assert_eq!(side("i1:/a:b").unwrap(), Side::There { sandbox: "i1", path: "/a:b" });
        for here in ["a", "./i1:/a", "/i1:a", ":/a"] {
            assert_eq!(side(here).unwrap(), Side::Here(Path::new(here)));
        }
        assert!(side("i1:a").is_err() && side("i1:").is_err());
    }

    #[test]
    fn what_is_copied_goes_into_directories_or_gets_a_name() {
        assert_eq!(place("/srv", true, "x"), ("/srv", "x"));
        assert_eq!(place("/srv/", false, "x"), ("/srv/", "x"));
        assert_eq!(place("/srv/y", false, "x"), ("/srv", "y"));
        assert_eq!(place("/y", false, "x"), ("/", "y"));
        assert_eq!(place("/", false, "x"), ("/", "x"));
    }
}
