//! An archive, laid over the files that are there as `COPY` does.
//!
//! | entry | what it does |
//! |---|---|
//! | a directory where one is, or a link to one | nothing: what is there keeps its owner and mode |
//! | anything else where a directory is | is refused |
//! | anything else | replaces what is there, a link as the link that it is |
//!
//! Directories on the way that are missing are made. Links on the way are followed, as every program in the guest would.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, UTIME_OMIT, XattrFlags};
use tar::{Entry, EntryType};

use crate::envd::RestError;

/// The prefix of extended attributes in pax records.
pub const ATTRIBUTE: &str = "SCHILY.xattr.";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// What holds for all entries, whatever the archive says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dress {
    pub owner: Option<Owner>,
    /// Of files and directories.
    pub mode: Option<u32>,
}

const ROOT: Owner = Owner { uid: 0, gid: 0 };

pub fn place(archive: impl Read, into: &Path, wanted: &Dress) -> Result<(), RestError> {
    let mut archive = tar::Archive::new(archive);
    let unreadable = |error: io::Error| RestError::bad_request(format!("the archive: {error}"));
    // What is placed in a directory changes its time, so new ones get theirs at the end.
    let mut directories = Vec::new();
    for entry in archive.entries().map_err(unreadable)? {
        let mut entry = entry.map_err(unreadable)?;
        let name = PathBuf::from(OsStr::from_bytes(&entry.path_bytes()));
        let failed = |error: io::Error| RestError::system(&name.display().to_string(), &error);
        let target = below(into, &name).ok_or_else(|| climbs(&name))?;
        if place_one(&mut entry, &target, into, wanted).map_err(failed)? {
            directories.push((target, entry.header().mtime().unwrap_or(0)));
        }
    }
    for (path, time) in directories.iter().rev() {
        touch(path, *time).map_err(|error| RestError::system(&path.display().to_string(), &error))?;
    }
    Ok(())
}

fn climbs(name: &Path) -> RestError {
    RestError::bad_request(format!("{} is outside of the archive", name.display()))
}

/// Nothing for names with `..`.
fn below(into: &Path, name: &Path) -> Option<PathBuf> {
    let mut path = into.to_owned();
    for component in name.components() {
        match component {
            Component::Normal(name) => path.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}

/// Says whether a new directory was made.
fn place_one<R: Read>(
    entry: &mut Entry<'_, R>,
    target: &Path,
    into: &Path,
    wanted: &Dress,
) -> io::Result<bool> {
    let kind = entry.header().entry_type();
    if matches!(kind, EntryType::XGlobalHeader) {
        return Ok(false);
    }
    let is_directory = matches!(kind, EntryType::Directory);
    if is_directory && target.is_dir() {
        return Ok(false);
    }
    if let Some(parent) = target.parent() {
        make_directories(parent, wanted.owner.unwrap_or(ROOT))?;
    }
    let is_file = matches!(kind, EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse);
    // A file takes the place of what is there when it is whole.
    make_room(target, is_directory, is_file)?;
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    match kind {
        EntryType::Directory => fs::create_dir(target)?,
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
            let unfinished = Unfinished(target.with_file_name(format!(".forkd-{}", unique()?)));
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&unfinished.0)?;
            let (size, copied) = (entry.size(), io::copy(entry, &mut file)?);
            if copied != size {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            fs::rename(&unfinished.0, target)?;
        }
        EntryType::Symlink => {
            let link = entry.link_name_bytes().ok_or_else(|| invalid("a link without a target"))?;
            symlink(OsStr::from_bytes(&link), target)?;
        }
        EntryType::Link => {
            let link = entry.link_name_bytes().ok_or_else(|| invalid("a link without a target"))?;
            let source = below(into, Path::new(OsStr::from_bytes(&link)));
            fs::hard_link(source.ok_or_else(|| invalid("a link to a path outside of the archive"))?, target)?;
            return Ok(false);
        }
        EntryType::Char => make_node(target, FileType::CharacterDevice, entry.header())?,
        EntryType::Block => make_node(target, FileType::BlockDevice, entry.header())?,
        EntryType::Fifo => rustix::fs::mknodat(CWD, target, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?,
        other => return Err(invalid(&format!("an entry of the type {:?}", char::from(other.as_byte())))),
    }
    dress(entry, target, wanted)?;
    Ok(is_directory)
}

fn make_node(target: &Path, kind: FileType, header: &tar::Header) -> io::Result<()> {
    let (major, minor) = (header.device_major()?.unwrap_or(0), header.device_minor()?.unwrap_or(0));
    let device = rustix::fs::makedev(major, minor);
    Ok(rustix::fs::mknodat(CWD, target, kind, Mode::from_raw_mode(0o600), device)?)
}

/// A file that is being written: removed, unless it has another name by then.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn unique() -> io::Result<String> {
    Ok(format!("{:016x}", getrandom::u64()?))
}

/// Takes away what an entry replaces, except what the rename of a file replaces.
fn make_room(target: &Path, for_directory: bool, for_file: bool) -> io::Result<()> {
    match fs::symlink_metadata(target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(_) if for_directory => {
            Err(io::Error::new(io::ErrorKind::NotADirectory, "it exists and is not a directory"))
        }
        Ok(found) if found.is_dir() => Err(io::Error::new(
            io::ErrorKind::IsADirectory,
            "it is a directory; to copy into it, end the destination with a slash",
        )),
        Ok(_) if for_file => Ok(()),
        Ok(_) => fs::remove_file(target),
    }
}

fn make_directories(path: &Path, owner: Owner) -> io::Result<()> {
    let missing: Vec<&Path> =
        path.ancestors().take_while(|ancestor| fs::metadata(ancestor).is_err()).collect();
    for directory in missing.into_iter().rev() {
        fs::create_dir(directory)?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
        own(directory, owner)?;
    }
    Ok(())
}

/// Owner, mode, attributes and time, in this order: a new owner takes the set-user-id bit and capabilities away.
fn dress<R: Read>(entry: &mut Entry<'_, R>, path: &Path, wanted: &Dress) -> io::Result<()> {
    let header = entry.header();
    let number = |value: io::Result<u64>| u32::try_from(value?).map_err(io::Error::other);
    let archived = Owner { uid: number(header.uid())?, gid: number(header.gid())? };
    let (is_link, time) = (header.entry_type() == EntryType::Symlink, header.mtime().unwrap_or(0));
    let mode = wanted.mode.map_or_else(|| header.mode(), Ok)? & 0o7777;
    own(path, wanted.owner.unwrap_or(archived))?;
    if !is_link {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    if let Some(records) = entry.pax_extensions()? {
        for record in records {
            let record = record?;
            // Our files have names in UTF-8; this one is not ours.
            let Some(name) = record.key().ok().and_then(|key| key.strip_prefix(ATTRIBUTE)) else { continue };
            rustix::fs::lsetxattr(path, name, record.value_bytes(), XattrFlags::empty())?;
        }
    }
    touch(path, time)
}

fn own(path: &Path, owner: Owner) -> io::Result<()> {
    match lchown(path, Some(owner.uid), Some(owner.gid)) {
        // Without the right to, it stays whose it is: in development everything is one user's.
        Err(_) if !rustix::process::geteuid().is_root() => Ok(()),
        result => result,
    }
}

fn touch(path: &Path, seconds: u64) -> io::Result<()> {
    let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let time = Timespec { tv_sec: i64::try_from(seconds).unwrap_or(0), tv_nsec: 0 };
    let times = Timestamps { last_access: omit, last_modification: time };
    Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use proptest::prelude::*;

    use super::*;

    struct Archive(tar::Builder<Vec<u8>>);

    impl Archive {
        fn new() -> Archive {
            Archive(tar::Builder::new(Vec::new()))
        }

        fn entry(mut self, name: &str, kind: EntryType, mode: u32, content: &[u8]) -> Archive {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_mode(mode);
            header.set_mtime(1000);
            header.set_uid(7);
            header.set_gid(8);
            header.set_size(content.len() as u64);
            // Written as it is: the crate itself would refuse names that climb.
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_cksum();
            self.0.append(&header, content).unwrap();
            self
        }

        fn file(self, name: &str, content: &str) -> Archive {
            self.entry(name, EntryType::Regular, 0o640, content.as_bytes())
        }

        fn link(mut self, name: &str, kind: EntryType, target: &str) -> Archive {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_mode(0o777);
            header.set_uid(7);
            header.set_gid(8);
            header.set_size(0);
            self.0.append_link(&mut header, name, target).unwrap();
            self
        }

        fn place(self, into: &Path) -> Result<(), RestError> {
            place(&self.0.into_inner().unwrap()[..], into, &Dress::default())
        }
    }

    #[test]
    fn half_a_file_replaces_nothing() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("file"), "old").unwrap();
        let archive = Archive::new().file("first", "whole").file("file", &"x".repeat(5000));
        let archive = archive.0.into_inner().unwrap();
        assert!(place(&archive[..3000], root.path(), &Dress::default()).is_err());
        assert_eq!(fs::read_to_string(root.path().join("file")).unwrap(), "old");
        assert_eq!(fs::read_to_string(root.path().join("first")).unwrap(), "whole");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2);
    }

    #[test]
    fn files_directories_and_links_arrive_as_they_are() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        let archive = Archive::new()
            .entry("d/", EntryType::Directory, 0o1775, b"")
            .file("d/f", "text")
            .file("made/on/the/way", "x")
            .link("s", EntryType::Symlink, "/nowhere")
            .link("h", EntryType::Link, "d/f")
            .entry("p", EntryType::Fifo, 0o622, b"");
        archive.place(root.path()).unwrap();
        let meta = fs::metadata(path("d/f")).unwrap();
        assert_eq!((meta.mode() & 0o7777, meta.mtime(), meta.nlink()), (0o640, 1000, 2));
        if rustix::process::geteuid().is_root() {
            assert_eq!((meta.uid(), meta.gid()), (7, 8));
            assert_eq!(fs::metadata(path("made/on")).unwrap().uid(), 0);
        }
        let directory = fs::metadata(path("d")).unwrap();
        assert_eq!((directory.mode() & 0o7777, directory.mtime()), (0o1775, 1000));
        assert_eq!(fs::read_link(path("s")).unwrap(), Path::new("/nowhere"));
        assert_eq!(fs::read(path("h")).unwrap(), b"text");
        assert_eq!(fs::metadata(path("p")).unwrap().mode() & 0o7777, 0o622);
    }

    #[test]
    fn owner_and_mode_can_be_others_than_the_archive_s() {
        let root = tempfile::tempdir().unwrap();
        let archive =
            Archive::new().file("way/f", "x").link("s", EntryType::Symlink, "f").0.into_inner().unwrap();
        let wanted = Dress { owner: Some(Owner { uid: 3, gid: 4 }), mode: Some(0o4751) };
        place(&archive[..], root.path(), &wanted).unwrap();
        let stat = |name: &str| fs::symlink_metadata(root.path().join(name)).unwrap();
        assert_eq!((stat("way/f").mode() & 0o7777, stat("way").mode() & 0o7777), (0o4751, 0o755));
        if rustix::process::geteuid().is_root() {
            for name in ["way", "way/f", "s"] {
                assert_eq!((stat(name).uid(), stat(name).gid()), (3, 4), "{name}");
            }
        }
    }

    #[test]
    fn what_is_there_is_kept_replaced_or_in_the_way() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::create_dir_all(path("real")).unwrap();
        fs::set_permissions(path("real"), fs::Permissions::from_mode(0o700)).unwrap();
        symlink("real", path("linked")).unwrap();
        fs::write(path("secret"), "secret").unwrap();
        symlink("secret", path("shown")).unwrap();
        Archive::new()
            .entry("linked", EntryType::Directory, 0o755, b"")
            .file("linked/in", "1")
            .file("shown", "2")
            .place(root.path())
            .unwrap();
        assert_eq!(fs::metadata(path("real")).unwrap().mode() & 0o7777, 0o700);
        assert_eq!(fs::read_to_string(path("real/in")).unwrap(), "1");
        assert_eq!(fs::read_to_string(path("secret")).unwrap(), "secret");
        assert_eq!(fs::read_to_string(path("shown")).unwrap(), "2");
        let error = Archive::new().file("real", "x").place(root.path()).unwrap_err();
        assert!(error.to_string().contains("end the destination with a slash"), "{error}");
        let error = Archive::new().entry("secret", EntryType::Directory, 0o755, b"").place(root.path());
        assert!(error.unwrap_err().to_string().contains("not a directory"));
    }

    #[test]
    fn names_that_climb_and_broken_archives_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let into = root.path().join("into");
        fs::create_dir(&into).unwrap();
        for name in ["../out", "a/../../out"] {
            assert!(Archive::new().file(name, "x").place(&into).is_err(), "{name}");
        }
        let whole = Archive::new().file("f", &"x".repeat(3000)).0.into_inner().unwrap();
        assert!(place(&whole[..1500], &into, &Dress::default()).is_err());
        assert!(place(&b"nonsense".repeat(100)[..], &into, &Dress::default()).is_err());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..1200)) {
            let root = tempfile::tempdir().unwrap();
            let _ = place(&bytes[..], root.path(), &Dress::default());
        }
    }
}
