//! `forkd snapshot load`.

use std::fs::File;
use std::io;
use std::path::Path;

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
    let mut file = File::open(if path == Path::new("-") { path_of_stdin } else { path }).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    // A pipe has no size.
    let size = metadata.is_file().then_some(metadata.len());
    let snapshot = with_daemon(&options.daemon, async |client| {
        let progress = Progress::new();
        progress.step(&format!("sending {}", path.display()));
        let archive = written(move |pieces| io::copy(&mut file, pieces).map(drop));
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
