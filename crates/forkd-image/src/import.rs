//! Images from files: a root file system as a tar archive, or an image as `docker save` and OCI tools write it.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::PathBuf;

use crate::archive::{ArchiveError, Limits, Whiteouts, decompressed, unpack};
use crate::files::FileError;
use crate::images::{Config, Draft, Finish, Image, ImageError, ImageStore, Name, Source};
use crate::layout::{self, LayoutError};
use crate::progress::Progress;

#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error("cannot import the image archive {}", file.display())]
    Layout { file: PathBuf, source: LayoutError },
}

impl From<ArchiveError> for ImportError {
    fn from(error: ArchiveError) -> ImportError {
        ImageError::from(error).into()
    }
}

impl From<FileError> for ImportError {
    fn from(error: FileError) -> ImportError {
        ImageError::from(error).into()
    }
}

/// What to import, and how to keep it.
#[derive(Debug, Clone)]
pub struct Import {
    /// As errors and the image's source name it.
    pub file: PathBuf,
    pub name: Option<Name>,
    pub min_mib: Option<u64>,
    pub limits: Limits,
}

/// Imports an archive: tar, tar.gz or tar.zst, told by its bytes.
pub fn import(store: &ImageStore, import: &Import, progress: &dyn Progress) -> Result<Image, ImportError> {
    let file = File::open(&import.file).map_err(FileError::at("open", &import.file))?;
    import_from(store, import, file, progress)
}

/// The same from a file that is open already.
pub fn import_from(
    store: &ImageStore,
    import: &Import,
    mut file: File,
    progress: &dyn Progress,
) -> Result<Image, ImportError> {
    let mut draft = Draft::new(store, import.limits)?;
    let shown = import.file.file_name().unwrap_or(import.file.as_os_str()).to_string_lossy().into_owned();
    progress.step(&format!("unpacking {shown}"));
    let is_layout = layout::is_layout(&first_block(&file)?);
    file.rewind().map_err(FileError::at("read", &import.file))?;
    let config = if is_layout {
        let path = draft.scratch().join("archive");
        let unpacked = unpack(&path, file, &import.limits, progress)?;
        let bad = |source| ImportError::Layout { file: import.file.clone(), source };
        let found = layout::read(&unpacked).map_err(bad)?;
        for (layer, digest) in found.layers {
            draft.layer(layer, Whiteouts::Apply, Some(digest), progress)?;
        }
        found.config
    } else {
        draft.layer(file, Whiteouts::Keep, None, progress)?;
        Config::default()
    };
    let finish = Finish {
        config,
        source: Source::Archive { file: shown },
        min_mib: import.min_mib,
        name: import.name.clone(),
    };
    Ok(draft.finish(finish, progress)?)
}

/// The first header of the archive inside.
fn first_block(file: &File) -> Result<Vec<u8>, ImportError> {
    let mut block = Vec::new();
    let read = decompressed(file)?.take(512).read_to_end(&mut block);
    read.map_err(|source| ArchiveError::Read { entry: String::new(), source })?;
    Ok(block)
}
