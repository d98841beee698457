//! Images: ext4 file systems with what is known of them, by digest and by name.
//!
//! ```text
//! images/
//!   ID/              64 hexadecimal digits: the digest of what the image was made of
//!     base.ext4      sparse; never written to again
//!     metadata.json
//!   names/
//!     python%3A3.12  {"name": "python:3.12", "id": "sha256:ID"}
//!   .tmp-XXXX/       being made or removed; swept when its lock is free
//! ```
//!
//! An image appears whole, by a rename of its directory. Names are files that are replaced whole.
//!
//! A store may have a second one below it that is only read: in the machine, the host's. Its images are found where the
//! store's own names and ids mean nothing, and nothing is ever made or removed there.

mod draft;
mod ext4;
mod metadata;

pub use draft::{BuiltImage, Draft, Finish, Scratch};
pub use ext4::Ext4Error;
pub use forkd_source::name::{Name, NameError};
pub use metadata::{Config, Image, Metadata, Source, default_user, image_id};

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use forkd_host::disk::DiskError;
use forkd_host::tool::MissingTool;
use serde::{Deserialize, Serialize};

use crate::archive::ArchiveError;
use crate::digest::Digest;
use crate::files::{self, FileError};

const BASE: &str = "base.ext4";
const METADATA: &str = "metadata.json";
const NAMES: &str = "names";

/// The fewest digits of an id that are taken for one.
const SHORTEST_ID: usize = 4;

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("there is no image {0:?}; run `forkd image ls`")]
    Unknown(String),
    #[error("{0:?} matches more than one image id; give more digits")]
    Ambiguous(String),
    #[error(
        "making an image needs root, to set the owners of its files: run this as root (sudo forkd image …)"
    )]
    NeedsRoot,
    #[error(
        "{0:?} is in the shared library, which is read-only here; remove it on the host that keeps the library"
    )]
    Shared(String),
    #[error("layer {layer} does not match its digest: its content has the digest {actual}")]
    WrongLayer { layer: Digest, actual: Digest },
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error(transparent)]
    Ext4(#[from] Ext4Error),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error(transparent)]
    Tool(#[from] MissingTool),
    #[error("cannot write metadata")]
    Json(#[from] serde_json::Error),
}

/// The images of one forkd home.
#[derive(Debug, Clone)]
pub struct ImageStore {
    directory: PathBuf,
    /// A store that is only read.
    shared: Option<PathBuf>,
}

#[derive(Debug, Serialize, Deserialize)]
struct NameFile {
    name: Name,
    id: Digest,
}

/// What goes when something is removed.
#[derive(Debug, Clone)]
pub struct Removal {
    pub image: Image,
    /// The names that go.
    pub names: Vec<Name>,
    /// Whether the image goes too.
    pub whole: bool,
}

impl ImageStore {
    /// The store below forkd's home. Nothing is made until an image is.
    pub fn new(home: &Path) -> ImageStore {
        ImageStore { directory: home.join("images"), shared: None }
    }

    /// Whether this user can make images at all.
    pub fn check_user(&self) -> Result<(), ImageError> {
        if rustix::process::geteuid().is_root() { Ok(()) } else { Err(ImageError::NeedsRoot) }
    }

    /// With the images of another library below, which are only read.
    pub fn with_shared(self, library: &Path) -> ImageStore {
        ImageStore { shared: Some(library.join("images")), ..self }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// All images, those with names first and by name.
    pub fn list(&self) -> Result<Vec<Image>, ImageError> {
        let mut names: BTreeMap<Digest, Vec<String>> = BTreeMap::new();
        for entry in self.names()? {
            names.entry(entry.id).or_default().push(entry.name.to_string());
        }
        names.values_mut().for_each(|names| names.sort());
        let mut images = Vec::new();
        for id in self.ids()? {
            images.extend(self.load(id, names.remove(&id).unwrap_or_default())?);
        }
        images.sort_by(|a, b| {
            (a.names.is_empty(), &a.names, a.id()).cmp(&(b.names.is_empty(), &b.names, b.id()))
        });
        Ok(images)
    }

    /// The image that a name, an id or the beginning of an id means.
    pub fn find(&self, text: &str) -> Result<Image, ImageError> {
        let unknown = || ImageError::Unknown(text.chars().take(200).collect());
        let id = match text.parse::<Name>().ok().map(|name| self.named(&name)).transpose()?.flatten() {
            Some(id) => id,
            None => self.by_prefix(text)?.ok_or_else(unknown)?,
        };
        self.get(id)?.ok_or_else(unknown)
    }

    /// The image with this id.
    pub fn get(&self, id: Digest) -> Result<Option<Image>, ImageError> {
        let names = self.names()?.into_iter().filter(|entry| entry.id == id);
        let mut names: Vec<String> = names.map(|entry| entry.name.to_string()).collect();
        names.sort();
        Ok(self.load(id, names)?)
    }

    /// What a name means.
    pub fn named(&self, name: &Name) -> Result<Option<Digest>, FileError> {
        if let Some(id) = self.named_here(name)? {
            return Ok(Some(id));
        }
        let Some(directory) = self.shared.as_ref().map(|shared| shared.join(NAMES)) else { return Ok(None) };
        match files::is_listed(&directory, &name.encoded())? {
            true => Ok(files::read_json::<NameFile>(&directory.join(name.encoded()))?.map(|file| file.id)),
            false => Ok(None),
        }
    }

    fn named_here(&self, name: &Name) -> Result<Option<Digest>, FileError> {
        Ok(files::read_json::<NameFile>(&self.name_path(name))?.map(|file| file.id))
    }

    /// Lets a name mean an image, whatever it meant before.
    pub fn name(&self, name: &Name, id: Digest) -> Result<(), ImageError> {
        let directory = self.directory.join(NAMES);
        fs::create_dir_all(&directory).map_err(FileError::at("make", &directory))?;
        Ok(files::write_json(&self.name_path(name), &NameFile { name: name.clone(), id })?)
    }

    /// What [`ImageStore::remove`] would remove for a text: names of the image, and whether the image itself.
    pub fn removal(&self, text: &str) -> Result<Removal, ImageError> {
        let image = self.find(text)?;
        let name = text.parse::<Name>().ok();
        let is_name = match &name {
            Some(name) => self.named(name)? == Some(image.id()),
            None => false,
        };
        let mut names = Vec::new();
        for candidate in &image.names {
            if let Ok(parsed) = candidate.parse::<Name>()
                && (!is_name || name.as_ref() == Some(&parsed))
                && self.named_here(&parsed)? == Some(image.id())
            {
                names.push(parsed);
            }
        }
        if names.is_empty() && (is_name || image.shared) {
            return Err(ImageError::Shared(text.chars().take(200).collect()));
        }
        let is_last = !is_name || names.len() == image.names.len();
        Ok(Removal { whole: is_last && !image.shared, names, image })
    }

    /// Removes a name and, when that was its last, the image; given an id, the image with all its names. Returns the bytes
    /// that the disk has back.
    pub fn remove(&self, text: &str) -> Result<u64, ImageError> {
        let Removal { image, names, whole } = self.removal(text)?;
        for name in &names {
            let path = self.name_path(name);
            fs::remove_file(&path).map_err(FileError::at("remove", &path))?;
        }
        if !whole {
            return Ok(0);
        }
        files::remove_directory(&image.path)?;
        Ok(image.disk)
    }

    fn name_path(&self, name: &Name) -> PathBuf {
        self.directory.join(NAMES).join(name.encoded())
    }

    /// The store's own directory, and then the one that is only read.
    fn directories(&self) -> impl Iterator<Item = &PathBuf> {
        std::iter::once(&self.directory).chain(&self.shared)
    }

    /// Every name once: the store's own meaning of it wins.
    fn names(&self) -> Result<Vec<NameFile>, FileError> {
        let mut names = BTreeMap::new();
        for directory in self.directories() {
            let directory = directory.join(NAMES);
            for file in files::names(&directory)? {
                if let Some(entry) = files::read_json::<NameFile>(&directory.join(file))? {
                    names.entry(entry.name.to_string()).or_insert(entry);
                }
            }
        }
        Ok(names.into_values().collect())
    }

    /// The ids of all images. Names are not read for it: one image may have thousands.
    pub fn ids(&self) -> Result<BTreeSet<Digest>, FileError> {
        let mut ids = BTreeSet::new();
        for directory in self.directories() {
            let names = files::names(directory)?;
            ids.extend(names.iter().filter_map(|name| format!("sha256:{name}").parse::<Digest>().ok()));
        }
        Ok(ids)
    }

    fn by_prefix(&self, text: &str) -> Result<Option<Digest>, ImageError> {
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        if digits.len() < SHORTEST_ID {
            return Ok(None);
        }
        let ids = self.ids()?;
        let mut matching = ids.into_iter().filter(|id| id.hex().starts_with(digits));
        match (matching.next(), matching.next()) {
            (Some(_), Some(_)) => Err(ImageError::Ambiguous(digits.into())),
            (first, _) => Ok(first),
        }
    }

    fn load(&self, id: Digest, names: Vec<String>) -> Result<Option<Image>, FileError> {
        if let Some(image) = load_from(&self.directory, id, names.clone(), false)? {
            return Ok(Some(image));
        }
        match &self.shared {
            Some(shared) if files::is_listed(shared, &id.hex())? => load_from(shared, id, names, true),
            _ => Ok(None),
        }
    }

    /// The image with this id, if it is the store's own.
    fn own(&self, id: Digest) -> Result<Option<Image>, FileError> {
        load_from(&self.directory, id, Vec::new(), false)
    }
}

fn load_from(
    directory: &Path,
    id: Digest,
    names: Vec<String>,
    shared: bool,
) -> Result<Option<Image>, FileError> {
    let path = directory.join(id.hex());
    let Some(metadata) = files::read_json::<Metadata>(&path.join(METADATA))? else { return Ok(None) };
    let base = path.join(BASE);
    let disk = match fs::metadata(&base) {
        Ok(file) => file.blocks() * 512,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(FileError::at("read", &base)(error)),
    };
    Ok(Some(Image { names, disk, path, shared, metadata }))
}

#[cfg(test)]
mod tests;
