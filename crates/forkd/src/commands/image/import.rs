//! `forkd image import`.

use std::fs::File;
use std::io;
use std::path::Path;

use forkd_api::library::{Image, ImportImage};
use forkd_client::{Client, ClientError};
use forkd_machine::Progress as _;
use forkd_source::name::Name;

use super::show;
use crate::arguments::ImageImportOptions;
use crate::copy::written;
use crate::error::CliError;
use crate::exit::Exit;
use crate::library;
use crate::progress::Progress;

pub fn run(options: &ImageImportOptions) -> Result<Exit, CliError> {
    let (file, size) = (&options.file, options.keep.size);
    let name = match &options.keep.name {
        Some(name) => name.clone(),
        None => name_of(file)?,
    };
    let wanted = ImportImage { name: name.to_string(), size_mib: size };
    let image = library::change(&options.daemon, async |client, progress| {
        send(client, &wanted, file, progress).await
    })?;
    show(&image, &options.output)?;
    Ok(Exit::Success)
}

async fn send(
    client: &Client,
    wanted: &ImportImage,
    path: &Path,
    progress: &Progress,
) -> Result<Image, CliError> {
    let failed = |source| CliError::Send { path: path.into(), source };
    let mut file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    // A pipe has no size.
    let size = metadata.is_file().then_some(metadata.len());
    progress.step(&format!("sending {}", path.display()));
    let archive = written(move |pieces| io::copy(&mut file, pieces).map(drop));
    client.import_image(wanted, archive, size, |told| progress.told(&told)).await.map_err(|error| match error
    {
        ClientError::Upload(source) => failed(source),
        error => error.into(),
    })
}

/// The file's name without its endings.
fn name_of(file: &Path) -> Result<Name, CliError> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let endings = [".tar.gz", ".tar.zst", ".tgz", ".tar"];
    let stem = endings.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(&name);
    stem.parse().map_err(|_| CliError::NameNeeded(stem.chars().take(80).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_s_name_is_the_image_s() {
        let name = |file: &str| name_of(Path::new(file)).map(|name| name.to_string());
        assert_eq!(name("/tmp/alpine-3.20.tar.gz").unwrap(), "alpine-3.20:latest");
        assert_eq!(name("root.tar").unwrap(), "root:latest");
        assert!(name("/tmp/a b.tar").is_err());
        assert!(name("/").is_err());
    }
}
