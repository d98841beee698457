//! `forkd snapshot load`.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use forkd_api::library::{LibraryProgress, Transfer};
use forkd_api::snapshot::LoadSnapshot;
use forkd_client::ClientError;
use forkd_machine::Progress as _;

use super::inspect::show;
use crate::arguments::SnapshotLoadOptions;
use crate::commands::with_daemon;
use crate::copy::written;
use crate::error::CliError;
use crate::exit::Exit;
use crate::progress::Progress;

pub fn run(options: &SnapshotLoadOptions) -> Result<Exit, CliError> {
    let path = options.file.as_path();
    let failed = |source| CliError::Send { path: path.into(), source };
    let path_of_stdin = Path::new("/dev/stdin");
    let file = File::open(if path == Path::new("-") { path_of_stdin } else { path }).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    // A pipe has no size.
    let size = metadata.is_file().then_some(metadata.len());
    let snapshot = with_daemon(&options.daemon, async |client| {
        let progress = Arc::new(Progress::new());
        progress.step(&format!("sending {}", path.display()));
        let shown = Arc::clone(&progress);
        let tell = move |done_bytes: u64| match size {
            Some(total_bytes) => shown.told(&LibraryProgress::Transfer(Transfer { done_bytes, total_bytes })),
            None => shown.detail(&format!("{} MiB", done_bytes >> 20)),
        };
        let mut counted = Counted { from: file, done: 0, tell };
        let archive = written(move |pieces| io::copy(&mut counted, pieces).map(drop));
        let wanted = LoadSnapshot { tag: options.tag.clone() };
        let loaded = client.load_snapshot(&wanted, archive, size, |told| progress.told(&told)).await;
        progress.finish();
        loaded.map_err(|error| match error {
            ClientError::Upload(source) => failed(source),
            error => error.into(),
        })
    })?;
    show(&snapshot, &options.output)?;
    Ok(Exit::Success)
}

/// A reader that reports the bytes read, once per MiB.
struct Counted<R, T> {
    from: R,
    done: u64,
    tell: T,
}

impl<R: Read, T: FnMut(u64)> Read for Counted<R, T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.from.read(buffer)?;
        let before = self.done;
        self.done += length as u64;
        if before >> 20 < self.done >> 20 {
            (self.tell)(self.done);
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mib_is_reported() {
        let bytes = vec![7; (3 << 20) + 5];
        let mut told = Vec::new();
        let mut counted = Counted { from: &bytes[..], done: 0, tell: |done: u64| told.push(done >> 20) };
        assert_eq!(io::copy(&mut counted, &mut io::sink()).unwrap(), bytes.len() as u64);
        assert_eq!(told, [1, 2, 3]);
    }
}
