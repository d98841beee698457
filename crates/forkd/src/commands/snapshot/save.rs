//! `forkd snapshot save`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use forkd_client::Download;
use forkd_machine::Progress as _;

use crate::arguments::SnapshotSaveOptions;
use crate::commands::with_daemon;
use crate::error::CliError;
use crate::exit::Exit;
use crate::progress::Progress;

/// Standard output.
const STDOUT: &str = "-";

pub fn run(options: &SnapshotSaveOptions) -> Result<Exit, CliError> {
    let (tag, path) = (&options.tag, &options.file);
    if path == Path::new(STDOUT) && io::stdout().is_terminal() {
        return Err(CliError::ArchiveToTerminal);
    }
    with_daemon(&options.daemon, async |client| {
        let progress = Progress::new();
        progress.step(&format!("saving snapshot {tag}"));
        let saved = write(client.save_snapshot(tag).await?, path, &progress).await;
        progress.finish();
        saved.map(|()| Exit::Success)
    })
}

async fn write(mut download: Download, path: &Path, progress: &Progress) -> Result<(), CliError> {
    let failed = |source| CliError::Save { path: path.into(), source };
    let mut target = Target::new(path).map_err(failed)?;
    let mut written = 0_u64;
    while let Some(piece) = download.next().await? {
        target.write_all(&piece).map_err(failed)?;
        written += piece.len() as u64;
        progress.detail(&format!("{} MiB", written >> 20));
    }
    target.finish().map_err(failed)
}

/// Where it goes. A file appears under its name when it is whole, and is its owner's alone: it has the memory of a guest.
enum Target {
    Stdout,
    File { file: File, part: PathBuf, path: PathBuf, done: bool },
}

impl Target {
    fn new(path: &Path) -> io::Result<Target> {
        if path == Path::new(STDOUT) {
            return Ok(Target::Stdout);
        }
        let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        name.push(".part");
        let part = path.with_file_name(name);
        match fs::remove_file(&part) {
            // Of an earlier one that was killed.
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
        Ok(Target::File { file, part, path: path.into(), done: false })
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Target::Stdout => io::stdout().write_all(bytes),
            Target::File { file, .. } => file.write_all(bytes),
        }
    }

    fn finish(mut self) -> io::Result<()> {
        match &mut self {
            Target::Stdout => io::stdout().flush(),
            Target::File { file, part, path, done } => {
                file.sync_all()?;
                fs::rename(part, path)?;
                *done = true;
                Ok(())
            }
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Target::File { part, done: false, .. } = self {
            let _ = fs::remove_file(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_appears_when_it_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("snapshot.tar");
        let mut target = Target::new(&path).unwrap();
        target.write_all(b"half").unwrap();
        assert!(!path.exists());
        drop(target);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        fs::write(directory.path().join("snapshot.tar.part"), "of one that was killed").unwrap();
        let mut target = Target::new(&path).unwrap();
        target.write_all(b"whole").unwrap();
        target.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
