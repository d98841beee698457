//! The directory beside a Dockerfile, as far as it may be copied from: confined to it, without what `.dockerignore` names.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};

use crate::archive::exactly;
use crate::digest::{Digest, Hasher, HashingReader};
use crate::ignore::{Ignore, IgnoreError, matcher};

/// No Dockerfile is longer.
pub const MAX_DOCKERFILE: u64 = 4 << 20;
/// The file beside a Dockerfile that says what a parent needs beyond its image.
pub const RECIPE: &str = "forkd.toml";

const MAX_IGNORE: u64 = 1 << 20;
const MAX_ENTRIES: usize = 1_000_000;
const MAX_DEPTH: usize = 200;

#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    #[error("cannot read {path:?} of the build context {}", root.display())]
    Read { root: PathBuf, path: String, source: io::Error },
    #[error(transparent)]
    Ignore(#[from] IgnoreError),
    #[error("{0:?} leads out of the build context")]
    Outside(String),
    #[error("{0:?} is not in the build context, or .dockerignore excludes it")]
    Missing(String),
    #[error("{0:?} is not a pattern")]
    Pattern(String),
    #[error("{0:?} is neither a file, a directory nor a link")]
    OddType(String),
    #[error("{0:?} in the build context has a name that is not UTF-8")]
    Name(String),
    #[error("the build context has more than {MAX_ENTRIES} files or {MAX_DEPTH} levels")]
    TooLarge,
}

/// What a path of the context is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ItemKind {
    File { size: u64, digest: Digest },
    Directory,
    Symlink(String),
}

/// Something to place in an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Below the context.
    pub source: String,
    /// Absolute, in the image.
    pub destination: String,
    pub kind: ItemKind,
    /// Permissions.
    pub mode: u32,
    /// An archive that is unpacked to the destination instead of placed there.
    pub unpacks: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Node {
    File(u32),
    Directory(u32),
    Symlink,
    Odd,
}

/// A build context.
#[derive(Debug)]
pub struct Context {
    root: OwnedFd,
    path: PathBuf,
    nodes: BTreeMap<String, Node>,
}

impl Context {
    /// Lists the directory. Contents are read when something is copied.
    pub fn open(path: &Path) -> Result<Context, ContextError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let failed = |errno: rustix::io::Errno| ContextError::Read {
            root: path.into(),
            path: ".".into(),
            source: errno.into(),
        };
        let root = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(failed)?;
        let mut context = Context { root, path: path.into(), nodes: BTreeMap::new() };
        let ignore = match context.read(".dockerignore", MAX_IGNORE) {
            Ok(text) => Ignore::parse(&String::from_utf8_lossy(&text))?,
            Err(ContextError::Missing(_)) => Ignore::default(),
            Err(error) => return Err(error),
        };
        let mut nodes = BTreeMap::new();
        context.list(context.root.as_fd(), "", 0, &ignore, &mut nodes)?;
        context.nodes = nodes;
        Ok(context)
    }

    fn list(
        &self,
        directory: BorrowedFd<'_>,
        prefix: &str,
        depth: usize,
        ignore: &Ignore,
        nodes: &mut BTreeMap<String, Node>,
    ) -> Result<(), ContextError> {
        let failed = |errno: rustix::io::Errno| self.failed(prefix, errno.into());
        for entry in rustix::fs::Dir::read_from(directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let text =
                name.to_str().ok_or_else(|| ContextError::Name(name.to_string_lossy().into_owned()))?;
            let path = if prefix.is_empty() { text.to_owned() } else { format!("{prefix}/{text}") };
            let is_excluded = ignore.excludes(&path);
            let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
            let mode = stat.st_mode & 0o7777;
            let node = match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => Node::File(mode),
                FileType::Directory => Node::Directory(mode),
                FileType::Symlink => Node::Symlink,
                _ => Node::Odd,
            };
            if !is_excluded {
                nodes.insert(path.clone(), node);
            }
            if nodes.len() > MAX_ENTRIES || depth > MAX_DEPTH {
                return Err(ContextError::TooLarge);
            }
            if matches!(node, Node::Directory(_)) && (!is_excluded || ignore.takes_back()) {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let inner = rustix::fs::openat(directory, name, flags, Mode::empty()).map_err(failed)?;
                self.list(inner.as_fd(), &path, depth + 1, ignore, nodes)?;
            }
        }
        Ok(())
    }

    /// Whether something of this path can be copied.
    pub fn has(&self, path: &str) -> bool {
        self.nodes.contains_key(path)
    }

    /// Takes a directory and what is in it out of the context. It can still be read.
    pub fn leave_out(&mut self, directory: &str) {
        let Some(directory) = plain(directory).filter(|directory| !directory.is_empty()) else { return };
        let inside = format!("{directory}/");
        self.nodes.retain(|path, _| *path != directory && !path.starts_with(&inside));
    }

    /// What a source of `COPY` or `ADD` places in the image. `destination` is absolute; it is a directory if it ends with a
    /// slash, or if there are several sources.
    pub fn select(
        &self,
        source: &str,
        destination: &str,
        is_directory: bool,
        unpacks: bool,
    ) -> Result<Vec<Item>, ContextError> {
        let pattern = plain(source).ok_or_else(|| ContextError::Outside(source.into()))?;
        let found: Vec<String> = if pattern.is_empty() {
            vec![String::new()]
        } else if pattern.contains(['*', '?', '[', '\\']) {
            let matcher = matcher(&pattern).ok_or_else(|| ContextError::Pattern(source.into()))?;
            self.nodes.keys().filter(|path| matcher.is_match(path)).cloned().collect()
        } else {
            // Links on the way are followed, inside the context; the listing has only what is not behind one.
            self.nodes.get_key_value(&pattern).map(|(path, _)| path.clone()).into_iter().collect()
        };
        if found.is_empty() {
            return Err(ContextError::Missing(source.into()));
        }
        let is_directory = is_directory || found.len() > 1;
        let base = destination.trim_end_matches('/');
        let mut items = Vec::new();
        for path in found {
            match self.nodes.get(&path) {
                None | Some(Node::Directory(_)) => self.below(&path, base, &mut items)?,
                Some(node) => {
                    let name = path.rsplit('/').next().unwrap_or(&path);
                    let to = if is_directory { format!("{base}/{name}") } else { base.to_owned() };
                    let mut item = self.item(&path, to, *node, true)?;
                    item.unpacks = unpacks && self.is_archive(&path)?;
                    if item.unpacks {
                        item.destination = base.to_owned();
                    }
                    items.push(item);
                }
            }
        }
        Ok(items)
    }

    /// Everything in a directory, the directory itself first.
    fn below(&self, directory: &str, base: &str, items: &mut Vec<Item>) -> Result<(), ContextError> {
        let prefix = if directory.is_empty() { String::new() } else { format!("{directory}/") };
        let inside = self.nodes.range(prefix.clone()..).take_while(|(path, _)| path.starts_with(&prefix));
        if let Some(node) = self.nodes.get(directory) {
            items.push(self.item(directory, base.to_owned(), *node, false)?);
        }
        for (path, node) in inside {
            items.push(self.item(path, format!("{base}/{}", &path[prefix.len()..]), *node, false)?);
        }
        Ok(())
    }

    fn item(&self, path: &str, destination: String, node: Node, follows: bool) -> Result<Item, ContextError> {
        let (kind, mode) = match node {
            Node::File(mode) => (self.file(path)?, mode),
            Node::Directory(mode) => (ItemKind::Directory, mode),
            // A link that is named itself means what it points to.
            Node::Symlink if follows => (self.file(path)?, 0o644),
            Node::Symlink => {
                let target = rustix::fs::readlinkat(&self.root, path, Vec::new());
                let target = target.map_err(|errno| self.failed(path, errno.into()))?;
                let target = target.into_string().map_err(|_| ContextError::Name(path.into()))?;
                (ItemKind::Symlink(target), 0o777)
            }
            Node::Odd => return Err(ContextError::OddType(path.into())),
        };
        Ok(Item { source: path.into(), destination, kind, mode, unpacks: false })
    }

    fn file(&self, path: &str) -> Result<ItemKind, ContextError> {
        let file = self.open_file(path)?;
        let size = file.metadata().map_err(|error| self.failed(path, error))?.len();
        let digest =
            HashingReader::new(file.take(size)).finish().map_err(|error| self.failed(path, error))?;
        Ok(ItemKind::File { size, digest })
    }

    /// Opens a file of the context. Links that stay inside are followed.
    pub fn open_file(&self, path: &str) -> Result<File, ContextError> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let file = match rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve) {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::XDEV | rustix::io::Errno::LOOP) => {
                return Err(ContextError::Outside(path.into()));
            }
            Err(rustix::io::Errno::NOENT) => return Err(ContextError::Missing(path.into())),
            Err(errno) => return Err(self.failed(path, errno.into())),
        };
        let is_file = file.metadata().map_err(|error| self.failed(path, error))?.is_file();
        if is_file { Ok(file) } else { Err(ContextError::OddType(path.into())) }
    }

    /// Reads a small file of the context, also one that `.dockerignore` excludes.
    pub fn read(&self, path: &str, max: u64) -> Result<Vec<u8>, ContextError> {
        let mut content = Vec::new();
        let file = self.open_file(path)?;
        file.take(max + 1).read_to_end(&mut content).map_err(|error| self.failed(path, error))?;
        if content.len() as u64 > max {
            return Err(self.failed(path, io::ErrorKind::FileTooLarge.into()));
        }
        Ok(content)
    }

    /// Whether `ADD` unpacks a file: a tar archive, compressed or not.
    fn is_archive(&self, path: &str) -> Result<bool, ContextError> {
        let mut start = Vec::new();
        let inner = crate::archive::decompressed(self.open_file(path)?);
        let inner = inner.map_err(|error| self.failed(path, io::Error::other(error)))?;
        // Damaged or none: either way not an archive.
        let _ = inner.take(512).read_to_end(&mut start);
        Ok(start.get(257..262) == Some(b"ustar"))
    }

    fn failed(&self, path: &str, source: io::Error) -> ContextError {
        let path = if path.is_empty() { ".".into() } else { path.to_owned() };
        ContextError::Read { root: self.path.clone(), path, source }
    }

    /// Writes the whole context as a tar archive, in which everything is root's. `more` are files with their contents, also in
    /// place of the context's own.
    pub fn write_whole(&self, more: &[(String, Vec<u8>)], to: impl Write) -> Result<(), ContextError> {
        let mut archive = tar::Builder::new(to);
        let header = |mode: u32, kind: tar::EntryType, size: u64| {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mode(mode);
            header.set_mtime(0);
            header.set_size(size);
            header
        };
        for (path, node) in self.nodes.iter().filter(|(path, _)| more.iter().all(|(other, _)| other != *path))
        {
            let failed = |error| self.failed(path, error);
            match node {
                Node::Directory(mode) => {
                    let mut header = header(*mode, tar::EntryType::Directory, 0);
                    archive.append_data(&mut header, path, io::empty()).map_err(failed)?;
                }
                Node::File(mode) => {
                    let file = self.open_file(path)?;
                    let size = file.metadata().map_err(failed)?.len();
                    let mut header = header(*mode, tar::EntryType::Regular, size);
                    archive.append_data(&mut header, path, exactly(file, size)).map_err(failed)?;
                }
                Node::Symlink => {
                    let target = rustix::fs::readlinkat(&self.root, path, Vec::new());
                    let target = target.map_err(|errno| failed(errno.into()))?;
                    let mut header = header(0o777, tar::EntryType::Symlink, 0);
                    let target = OsStr::from_bytes(target.to_bytes());
                    archive.append_link(&mut header, path, target).map_err(failed)?;
                }
                // It could not be copied anyway.
                Node::Odd => {}
            }
        }
        for (path, content) in more {
            let mut header = header(0o644, tar::EntryType::Regular, content.len() as u64);
            let failed = |error| self.failed(path, error);
            archive.append_data(&mut header, path, &content[..]).map_err(failed)?;
        }
        archive.into_inner().and_then(|mut to| to.flush()).map_err(|error| self.failed("", error))
    }

    /// Writes items as a tar archive of paths below `/`, all owned by `owner`. Archives to unpack are written as they are.
    pub fn write_tar(&self, items: &[Item], owner: (u32, u32), to: impl Write) -> Result<(), ContextError> {
        let mut archive = tar::Builder::new(to);
        for item in items {
            let failed = |error| self.failed(&item.source, error);
            let mut header = tar::Header::new_gnu();
            header.set_uid(owner.0.into());
            header.set_gid(owner.1.into());
            header.set_mode(item.mode);
            header.set_mtime(0);
            header.set_size(0);
            let path = item.destination.trim_start_matches('/');
            let path = if path.is_empty() { "." } else { path };
            match &item.kind {
                ItemKind::File { size, .. } => {
                    header.set_size(*size);
                    let file = self.open_file(&item.source)?;
                    archive.append_data(&mut header, path, file.take(*size)).map_err(failed)?;
                }
                ItemKind::Directory => {
                    header.set_entry_type(tar::EntryType::Directory);
                    archive.append_data(&mut header, path, io::empty()).map_err(failed)?;
                }
                ItemKind::Symlink(target) => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    archive.append_link(&mut header, path, target).map_err(failed)?;
                }
            }
        }
        archive.into_inner().and_then(|mut to| to.flush()).map_err(|error| self.failed("", error))
    }
}

/// The digest of what items place in an image: names, kinds, modes and contents; times do not count.
pub fn items_digest(items: &[Item]) -> Digest {
    let add = |hasher: Hasher, item: &Item| {
        let hasher = hasher.part(item.destination.as_bytes()).part(&item.mode.to_le_bytes());
        let hasher = hasher.part(&[u8::from(item.unpacks)]);
        match &item.kind {
            ItemKind::File { digest, .. } => hasher.part(b"file").part(digest.hex().as_bytes()),
            ItemKind::Directory => hasher.part(b"directory"),
            ItemKind::Symlink(target) => hasher.part(b"link").part(target.as_bytes()),
        }
    };
    items.iter().fold(Hasher::new("items"), add).finish()
}

/// A source as a path below the context: without `.` and slashes around; `None` if it climbs out.
fn plain(source: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in source.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}
