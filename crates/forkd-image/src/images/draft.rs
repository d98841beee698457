//! An image under construction: layers go in, an image comes out; or nothing is left of it.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::metadata::{FORMAT, default_user, image_id};
use super::{BASE, Config, Image, ImageError, ImageStore, METADATA, Metadata, Name, Source, ext4};
use crate::archive::Bounded;
use crate::archive::{ArchiveError, Contents, Limits, Tree, Used, Whiteouts, apply, decompressed};
use crate::digest::{Digest, Hasher, HashingReader};
use crate::files::{self, FileError, Temporary};
use crate::progress::Progress;
use crate::recipe::Recipe;

/// Maximum size of a file of users.
const MAX_PASSWD: u64 = 4 << 20;

/// What an image is, beside its layers.
#[derive(Debug, Clone)]
pub struct Finish {
    pub config: Config,
    pub source: Source,
    /// The least size of the file system.
    pub min_mib: Option<u64>,
    pub name: Option<Name>,
}

/// An image under construction. Whatever goes wrong, its files go with it.
#[derive(Debug)]
pub struct Draft<'a> {
    store: &'a ImageStore,
    // Closed before the directory that it lies in is removed.
    tree: Tree,
    temporary: Temporary,
    limits: Limits,
    used: Used,
    layers: Vec<Digest>,
}

impl<'a> Draft<'a> {
    /// Begins an image. Fails at once when it could not be finished.
    pub fn new(store: &'a ImageStore, limits: Limits) -> Result<Draft<'a>, ImageError> {
        store.check_user()?;
        for tool in ext4::TOOLS {
            tool.find()?;
        }
        let temporary = Temporary::new(&store.directory)?;
        let path = temporary.path().join("root");
        let tree = Tree::create(&path).map_err(FileError::at("make", &path))?;
        Ok(Draft { store, tree, temporary, limits, used: Used::default(), layers: Vec::new() })
    }

    /// A directory for files on their way into the image. It goes with the draft.
    pub fn scratch(&self) -> &Path {
        self.temporary.path()
    }

    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Lays a layer over those before; compressed or not. Returns the digest of the unpacked archive, which must be
    /// `expected` if that is known.
    pub fn layer(
        &mut self,
        file: impl Read,
        whiteouts: Whiteouts,
        expected: Option<Digest>,
        progress: &dyn Progress,
    ) -> Result<Digest, ImageError> {
        // Headers and padding come on top of the files; small files have more of them than content.
        let left = self.limits.total.saturating_add(self.limits.entries.saturating_mul(2048));
        let archive = Bounded { inner: decompressed(file)?, left };
        let mut archive = HashingReader::new(archive);
        apply(&mut self.tree, &mut archive, whiteouts, &self.limits, &mut self.used, progress)?;
        let unreadable = |source| ArchiveError::Read { entry: String::new(), source };
        let digest = archive.finish().map_err(unreadable)?;
        if let Some(layer) = expected.filter(|expected| *expected != digest) {
            return Err(ImageError::WrongLayer { layer, actual: digest });
        }
        self.layers.push(digest);
        Ok(digest)
    }

    /// Makes the file system, and the image appears.
    pub fn finish(self, finish: Finish, progress: &dyn Progress) -> Result<Image, ImageError> {
        let id = image_id(&self.layers, &finish.config, finish.min_mib)?;
        if let Some(image) = known(self.store, id, finish.name.as_ref())? {
            return Ok(image);
        }
        progress.step("making the file system");
        let contents = self.tree.finish().map_err(FileError::at("finish", self.tree.path()))?;
        let passwd = self.tree.read("etc/passwd", MAX_PASSWD).unwrap_or_default().unwrap_or_default();
        let default_user = default_user(&finish.config, &String::from_utf8_lossy(&passwd));

        let image = self.temporary.path().join("image");
        fs::create_dir(&image).map_err(FileError::at("make", &image))?;
        let base = image.join(BASE);
        let (size, digest) = ext4::make(self.tree.path(), &contents, finish.min_mib, &base, progress)?;
        if progress.is_cancelled() {
            return Err(ArchiveError::Cancelled.into());
        }
        let metadata =
            describe(id, finish.source, self.layers, finish.config, default_user, size, &contents, digest);
        publish(self.store, &self.temporary, &image, &metadata, finish.name.as_ref())
    }
}

/// An image that a build has made, beside its file system.
#[derive(Debug, Clone)]
pub struct BuiltImage {
    /// Stands for everything that went into the file system.
    pub key: Digest,
    pub config: Config,
    /// What a parent needs beyond the image.
    pub recipe: Option<Recipe>,
    /// The user of processes if the configuration names no user.
    pub default_user: String,
    pub name: Option<Name>,
}

impl BuiltImage {
    /// Known before there is a file system.
    fn id(&self) -> Result<Digest, ImageError> {
        let hasher = Hasher::new("forkd build").part(self.key.hex().as_bytes());
        let mut hasher = hasher.part(&serde_json::to_vec(&self.config)?);
        if let Some(recipe) = &self.recipe {
            hasher = hasher.part(&serde_json::to_vec(recipe)?);
        }
        Ok(hasher.finish())
    }

    /// Of another file system that the same build has made.
    fn id_of(&self, disk: &Digest) -> Result<Digest, ImageError> {
        let hasher = Hasher::new("forkd build anew").part(self.id()?.hex().as_bytes());
        Ok(hasher.part(disk.hex().as_bytes()).finish())
    }
}

/// When an image was made, or made again. One whose time cannot be read is the oldest.
fn used(image: &Image) -> Option<SystemTime> {
    fs::metadata(image.path.join(METADATA)).and_then(|file| file.modified()).ok()
}

/// The image is the newest of its build.
fn touch(image: &Image) -> Result<(), ImageError> {
    let path = image.path.join(METADATA);
    let touched =
        File::options().append(true).open(&path).and_then(|file| file.set_modified(SystemTime::now()));
    Ok(touched.map_err(FileError::at("change", &path))?)
}

/// A directory on the store's disk for files that are on their way. It goes with this value; what a process that was killed has left is
/// removed by the next one that makes one.
#[derive(Debug)]
pub struct Scratch(Temporary);

impl Scratch {
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl ImageStore {
    pub fn scratch(&self) -> Result<Scratch, ImageError> {
        Ok(Scratch(Temporary::new(&self.directory)?))
    }

    /// The image of a build if it is there already; under its new name too.
    pub fn find_built(&self, built: &BuiltImage) -> Result<Option<Image>, ImageError> {
        let source = Source::Build { key: built.key };
        let mut same = Vec::new();
        for id in self.ids()? {
            same.extend(self.load(id, Vec::new())?.filter(|image| {
                let Metadata { source: of, config, recipe, .. } = &image.metadata;
                (of, config, recipe) == (&source, &built.config, &built.recipe)
            }));
        }
        // One that was made anew is used from then on. The others stay for the snapshots that stand on them.
        match same.iter().max_by_key(|image| used(image)) {
            Some(newest) => known(self, newest.id(), built.name.as_ref()),
            None => Ok(None),
        }
    }

    /// Takes a file system that a build has made, in a file on the same disk, which is moved.
    pub fn adopt(&self, base: &Path, built: BuiltImage) -> Result<Image, ImageError> {
        // A shared one was not found good enough before.
        if self.own(built.id()?)?.is_some()
            && let Some(image) = known(self, built.id()?, built.name.as_ref())?
        {
            return Ok(image);
        }
        self.adopt_anew(base, built)
    }

    /// The same for a build that was made anew. An image of the same build stays as it is, since snapshots may stand on it.
    pub fn adopt_anew(&self, base: &Path, built: BuiltImage) -> Result<Image, ImageError> {
        let temporary = Temporary::new(&self.directory)?;
        let image = temporary.path().join("image");
        fs::create_dir(&image).map_err(FileError::at("make", &image))?;
        let inside = image.join(BASE);
        fs::rename(base, &inside).map_err(FileError::at("move", base))?;
        let digest = ext4::dig_and_hash(&inside).map_err(FileError::at("read", &inside))?;
        let id = match self.own(built.id()?)? {
            Some(other) if other.metadata.digest != digest => built.id_of(&digest)?,
            _ => built.id()?,
        };
        if let Some(image) = self.own(id)? {
            touch(&image)?;
            return Ok(known(self, id, built.name.as_ref())?.unwrap_or(image));
        }
        let size = fs::metadata(&inside).map_err(FileError::at("read", &inside))?.len();
        let source = Source::Build { key: built.key };
        let default_user = match &built.config.user {
            Some(user) if !user.is_empty() => user.clone(),
            _ => built.default_user,
        };
        let contents = Contents::default();
        let mut metadata =
            describe(id, source, Vec::new(), built.config, default_user, size, &contents, digest);
        metadata.recipe = built.recipe;
        publish(self, &temporary, &image, &metadata, built.name.as_ref())
    }
}

/// The image if it is there already, under its new name too.
fn known(store: &ImageStore, id: Digest, name: Option<&Name>) -> Result<Option<Image>, ImageError> {
    if store.load(id, Vec::new())?.is_none() {
        return Ok(None);
    }
    if let Some(name) = name {
        store.name(name, id)?;
    }
    store.get(id)
}

#[expect(clippy::too_many_arguments, reason = "one for each field that is not the same for all images")]
fn describe(
    id: Digest,
    source: Source,
    layers: Vec<Digest>,
    config: Config,
    default_user: String,
    size: u64,
    contents: &Contents,
    digest: Digest,
) -> Metadata {
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let (content, inodes) = (contents.bytes, contents.inodes);
    Metadata {
        format: FORMAT,
        id,
        source,
        created,
        layers,
        config,
        recipe: None,
        default_user,
        size,
        content,
        inodes,
        digest,
    }
}

fn publish(
    store: &ImageStore,
    temporary: &Temporary,
    image: &Path,
    metadata: &Metadata,
    name: Option<&Name>,
) -> Result<Image, ImageError> {
    files::write_json(&image.join(METADATA), metadata)?;
    // Someone else may have made the same image meanwhile, which is as good.
    temporary.publish(image, &store.directory.join(metadata.id.hex()))?;
    if let Some(name) = name {
        store.name(name, metadata.id)?;
    }
    store.get(metadata.id)?.ok_or_else(|| ImageError::Unknown(metadata.id.to_string()))
}
