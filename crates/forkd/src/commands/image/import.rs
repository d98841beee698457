//! `forkd image import`.

use std::path::Path;

use forkd_image::archive::Limits;
use forkd_image::images::Name;
use forkd_image::import::{Import, import};

use super::{show, store};
use crate::arguments::ImageImportOptions;
use crate::error::CliError;
use crate::exit::Exit;
use crate::progress::Progress;

pub fn run(options: &ImageImportOptions) -> Result<Exit, CliError> {
    let name = match &options.keep.name {
        Some(name) => name.clone(),
        None => name_of(&options.file)?,
    };
    let wanted = Import {
        file: options.file.clone(),
        name: Some(name),
        min_mib: options.keep.size,
        limits: Limits::default(),
    };
    let progress = Progress::new();
    let image = import(&store()?, &wanted, &progress)?;
    progress.finish();
    show(&image, &options.output)?;
    Ok(Exit::Success)
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
