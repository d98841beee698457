//! Files of the guest as an archive, named by where they will be.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tar::{Builder, EntryType, Header};

use super::pattern;
use super::place::ATTRIBUTE;
use crate::envd::RestError;

const MAX_DEPTH: usize = 200;
const MAX_ATTRIBUTES: usize = 64 << 10;

/// `POST /forkd/pack`.
#[derive(Debug, Deserialize)]
pub struct PackRequest {
    /// Absolute; with patterns.
    sources: Vec<String>,
    /// Absolute; a directory if it ends with a slash, or if there are several files.
    destination: String,
}

/// What to pack: each path with the one that it gets.
#[derive(Debug)]
pub struct Found(Vec<(PathBuf, PathBuf)>);

/// Finds all that a request means, so that what is missing is told before anything is sent.
pub fn find(request: &PackRequest) -> Result<Found, RestError> {
    let mut matched = Vec::new();
    for source in &request.sources {
        let path = Path::new(source);
        if !path.is_absolute() || !request.destination.starts_with('/') {
            return Err(RestError::bad_request("sources and destination must be absolute"));
        }
        let found = pattern::expand(path).map_err(|error| RestError::system(source, &error))?;
        if found.is_empty() {
            return Err(RestError::bad_request(format!("{source} does not exist")));
        }
        matched.extend(found);
    }
    let is_directory = request.destination.ends_with('/') || matched.len() > 1;
    let destination = Path::new(&request.destination);
    let mut found = Vec::new();
    for path in matched {
        // A link that is named means what it points to.
        let path = fs::canonicalize(&path)
            .map(|real| (path.clone(), real))
            .map_err(|error| RestError::system(&path.display().to_string(), &error))?;
        let place = match path.0.file_name() {
            Some(name) if is_directory && !path.1.is_dir() => destination.join(name),
            _ => destination.to_owned(),
        };
        found.push((path.1, place));
    }
    Ok(Found(found))
}

pub fn write(found: &Found, to: &mut impl Write) -> io::Result<()> {
    let mut packer = Packer { archive: Builder::new(to), links: BTreeMap::new() };
    for (path, place) in &found.0 {
        packer.add(path, place, fs::metadata(path)?.dev(), 0)?;
    }
    packer.archive.finish()
}

struct Packer<'a, W: Write> {
    archive: Builder<&'a mut W>,
    /// The first name of files that have several.
    links: BTreeMap<(u64, u64), PathBuf>,
}

impl<W: Write> Packer<'_, W> {
    fn add(&mut self, path: &Path, place: &Path, device: u64, depth: usize) -> io::Result<()> {
        let metadata = fs::symlink_metadata(path)?;
        let kind = metadata.file_type();
        let mut header = header(&metadata);
        let name = name(place);
        if depth > MAX_DEPTH {
            return Err(io::Error::other("directories are nested too deep"));
        }
        if kind.is_socket() {
            return Ok(());
        }
        if !kind.is_dir() && metadata.nlink() > 1 {
            if let Some(first) = self.links.get(&(metadata.dev(), metadata.ino())) {
                header.set_entry_type(EntryType::Link);
                return self.archive.append_link(&mut header, name, first);
            }
            self.links.insert((metadata.dev(), metadata.ino()), name.to_owned());
        }
        let attributes = attributes(path);
        if !attributes.is_empty() {
            self.archive.append_pax_extensions(
                attributes.iter().map(|(name, value)| (name.as_str(), value.as_slice())),
            )?;
        }
        if kind.is_dir() {
            header.set_entry_type(EntryType::Directory);
            self.archive.append_data(&mut header, name, io::empty())?;
            // /proc, /sys and what else is mounted are the guest's and not the disk's.
            if metadata.dev() != device {
                return Ok(());
            }
            let mut entries = fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
            entries.sort_by_key(fs::DirEntry::file_name);
            for entry in entries {
                self.add(&entry.path(), &place.join(entry.file_name()), device, depth + 1)?;
            }
            return Ok(());
        }
        if kind.is_file() {
            header.set_size(metadata.len());
            let content = Exactly { file: File::open(path)?, left: metadata.len() };
            return self.archive.append_data(&mut header, name, content);
        }
        if kind.is_symlink() {
            header.set_entry_type(EntryType::Symlink);
            return self.archive.append_link(&mut header, name, fs::read_link(path)?);
        }
        header.set_entry_type(if kind.is_char_device() {
            EntryType::Char
        } else if kind.is_block_device() {
            EntryType::Block
        } else {
            EntryType::Fifo
        });
        header.set_device_major(rustix::fs::major(metadata.rdev()))?;
        header.set_device_minor(rustix::fs::minor(metadata.rdev()))?;
        self.archive.append_data(&mut header, name, io::empty())
    }
}

fn header(metadata: &Metadata) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(metadata.mode() & 0o7777);
    header.set_uid(metadata.uid().into());
    header.set_gid(metadata.gid().into());
    header.set_mtime(u64::try_from(metadata.mtime()).unwrap_or(0));
    header.set_size(0);
    header
}

/// The archive's names are relative, and the root is a dot.
fn name(place: &Path) -> &Path {
    let name = place.strip_prefix("/").unwrap_or(place);
    if name.as_os_str().is_empty() { Path::new(".") } else { name }
}

/// Extended attributes that mean something elsewhere: those of users, and capabilities.
fn attributes(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut names = vec![0; MAX_ATTRIBUTES];
    let Ok(length) = rustix::fs::llistxattr(path, &mut names) else { return Vec::new() };
    let names = names[..length].split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok());
    let wanted = names.filter(|name| name.starts_with("user.") || *name == "security.capability");
    let value = |name: &str| {
        let mut value = vec![0; MAX_ATTRIBUTES];
        let length = rustix::fs::lgetxattr(path, name, &mut value).ok()?;
        value.truncate(length);
        Some((format!("{ATTRIBUTE}{name}"), value))
    };
    wanted.filter_map(value).collect()
}

/// A file of a known length. One that becomes shorter would spoil all that follows in the archive.
struct Exactly {
    file: File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = usize::try_from(self.left).unwrap_or(buffer.len()).min(buffer.len());
        let read = self.file.read(&mut buffer[..wanted])?;
        if read == 0 && wanted > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::place::{Dress, place};
    use super::*;

    fn request(sources: &[&Path], destination: &str) -> PackRequest {
        let text = |path: &&Path| path.display().to_string();
        PackRequest { sources: sources.iter().map(text).collect(), destination: destination.into() }
    }

    fn names(archive: &[u8]) -> Vec<String> {
        let mut archive = tar::Archive::new(archive);
        let entries = archive.entries().unwrap();
        entries.map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect()
    }

    fn packed(sources: &[&Path], destination: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&find(&request(sources, destination)).unwrap(), &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_is_packed_is_placed_the_same() {
        let from = tempfile::tempdir().unwrap();
        let path = |name: &str| from.path().join(name);
        fs::create_dir_all(path("d/sub")).unwrap();
        fs::write(path("d/f"), "text").unwrap();
        fs::hard_link(path("d/f"), path("d/sub/again")).unwrap();
        symlink("/x", path("d/link")).unwrap();
        let long = "n".repeat(150);
        fs::write(path("d").join(&long), "long").unwrap();
        let attribute =
            rustix::fs::setxattr(path("d/f"), "user.note", b"kept", rustix::fs::XattrFlags::empty());
        let archive = packed(&[&path("d")], "/to/here");
        let to = tempfile::tempdir().unwrap();
        place(&archive[..], to.path(), &Dress::default()).unwrap();
        let placed = |name: &str| to.path().join("to/here").join(name);
        assert_eq!(fs::read_to_string(placed("sub/again")).unwrap(), "text");
        assert_eq!(fs::metadata(placed("f")).unwrap().nlink(), 2);
        assert_eq!(fs::read_link(placed("link")).unwrap(), Path::new("/x"));
        assert_eq!(fs::read_to_string(placed(&long)).unwrap(), "long");
        // Not every file system of a test has attributes.
        if attribute.is_ok() {
            let mut value = [0; 16];
            let length = rustix::fs::getxattr(placed("f"), "user.note", &mut value).unwrap();
            assert_eq!(&value[..length], b"kept");
        }
    }

    #[test]
    fn destinations_are_those_of_copy() {
        let from = tempfile::tempdir().unwrap();
        let path = |name: &str| from.path().join(name);
        fs::write(path("a.txt"), "a").unwrap();
        fs::write(path("b.txt"), "b").unwrap();
        symlink("a.txt", path("link")).unwrap();
        assert_eq!(names(&packed(&[&path("a.txt")], "/x")), ["x"]);
        assert_eq!(names(&packed(&[&path("a.txt")], "/x/")), ["x/a.txt"]);
        assert_eq!(names(&packed(&[&path("*.txt")], "/x")), ["x/a.txt", "x/b.txt"]);
        assert_eq!(names(&packed(&[&path("link")], "/x/")), ["x/link"]);
        assert_eq!(names(&packed(&[from.path()], "/"))[0], ".");
        let error = find(&request(&[&path("none")], "/x")).unwrap_err();
        assert!(error.to_string().ends_with("none does not exist"), "{error}");
    }
}
