//! An archive that a guest has written becomes files of this host.
//!
//! A guest may write what it likes: names that climb out, links and then files behind them, devices, programs that run as
//! root. So every file is made in a new directory of its own, whose paths are resolved by the kernel without
//! following any link; only then it is moved to its place.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use forkd_source::archive::{ArchiveEntry, ArchiveError, Kind, Limits, Used, read_entries};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, linkat, mkdirat, openat, openat2, symlinkat};
use rustix::io::Errno;

/// A guest's disk is not larger.
const LIMITS: Limits = Limits { total: 1 << 40, file: 1 << 40, entries: 10_000_000, path: 4095, depth: 200 };

/// What came is not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error("the archive is empty")]
    Empty,
    #[error("cannot use the directory")]
    Directory(#[source] io::Error),
}

/// Unpacks into an empty directory what has this name: all names of the archive begin with it.
pub fn unpack(archive: impl Read, into: &Path, name: &str) -> Result<PathBuf, UnpackError> {
    let root = File::open(into).map_err(UnpackError::Directory)?.into();
    // Directories get their modes at the end: one that is read-only takes no more files.
    let mut directories = Vec::new();
    read_entries(archive, &LIMITS, &mut Used::default(), |entry, content| {
        if !entry.path.as_path().starts_with(name) {
            let entry = entry.path.as_path().to_string_lossy().into_owned();
            return Err(ArchiveError::Unpack { entry, source: io::Error::other("it was not asked for") });
        }
        make(&root, &entry, content).map_err(|source| ArchiveError::Unpack {
            entry: entry.path.as_path().to_string_lossy().into_owned(),
            source,
        })?;
        if entry.kind == Kind::Directory {
            directories.push((entry.path.as_path().to_owned(), entry.mode));
        }
        Ok(())
    })?;
    for (path, mode) in directories.iter().rev() {
        let directory = open_directory(&root, path).map_err(UnpackError::Directory)?;
        let permissions = fs::Permissions::from_mode(plain(*mode));
        File::from(directory).set_permissions(permissions).map_err(UnpackError::Directory)?;
    }
    let tree = into.join(name);
    if tree.symlink_metadata().is_ok() { Ok(tree) } else { Err(UnpackError::Empty) }
}

/// No program from a guest runs as another user here.
fn plain(mode: u32) -> u32 {
    mode & 0o777
}

fn make(root: &OwnedFd, entry: &ArchiveEntry, content: &mut dyn Read) -> io::Result<()> {
    let path = entry.path.as_path();
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let above = make_directories(root, above)?;
    match &entry.kind {
        Kind::File { .. } => {
            // Exclusively: an archive has a file once, and never writes through what it made before.
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mut file = File::from(openat(&above, name, flags, Mode::RUSR | Mode::WUSR)?);
            io::copy(content, &mut file)?;
            file.set_permissions(fs::Permissions::from_mode(plain(entry.mode)))
        }
        Kind::Directory => match mkdirat(&above, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        },
        Kind::Symlink(target) => Ok(symlinkat(&target[..], &above, name)?),
        Kind::HardLink(target) => {
            let target = target.as_path();
            let (Some(beside), Some(linked)) = (target.parent(), target.file_name()) else {
                return Err(io::ErrorKind::InvalidInput.into());
            };
            Ok(linkat(open_directory(root, beside)?, linked, &above, name, AtFlags::empty())?)
        }
        // They mean something in the guest only.
        Kind::Character { .. } | Kind::Block { .. } | Kind::Fifo => Ok(()),
    }
}

fn make_directories(root: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    match open_directory(root, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    let mut made = PathBuf::new();
    for name in path {
        let above = open_directory(root, &made)?;
        match mkdirat(&above, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        made.push(name);
    }
    open_directory(root, path)
}

fn open_directory(root: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(root, path, flags, Mode::empty(), resolve)?)
}

/// Moves a tree to its place. Directories that are there stay and get what is new; files are replaced.
pub fn merge(from: &Path, to: &Path) -> io::Result<()> {
    let is_directory = from.symlink_metadata()?.is_dir();
    if is_directory && to.is_dir() {
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            merge(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    if !is_directory || to.symlink_metadata().is_err() {
        return fs::rename(from, to);
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tar(tar::Builder<Vec<u8>>);

    impl Tar {
        fn new() -> Tar {
            Tar(tar::Builder::new(Vec::new()))
        }

        fn entry(mut self, kind: tar::EntryType, name: &str, link: &str, content: &str, mode: u32) -> Tar {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
            if !link.is_empty() {
                header.set_link_name_literal(link).unwrap();
            }
            header.set_size(content.len() as u64);
            header.set_mode(mode);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            header.set_cksum();
            self.0.append(&header, content.as_bytes()).unwrap();
            self
        }

        fn file(self, name: &str, content: &str) -> Tar {
            self.entry(tar::EntryType::Regular, name, "", content, 0o644)
        }

        fn directory(self, name: &str, mode: u32) -> Tar {
            self.entry(tar::EntryType::Directory, name, "", "", mode)
        }

        fn link(self, name: &str, to: &str) -> Tar {
            self.entry(tar::EntryType::Symlink, name, to, "", 0o777)
        }

        fn unpack(self, name: &str) -> (tempfile::TempDir, Result<PathBuf, UnpackError>) {
            let directory = tempfile::tempdir().unwrap();
            let bytes = self.0.into_inner().unwrap();
            let unpacked = unpack(&bytes[..], directory.path(), name);
            (directory, unpacked)
        }
    }

    #[test]
    fn a_tree_comes_out_and_nothing_beside_it() {
        let (_directory, unpacked) =
            Tar::new().directory("tree", 0o500).file("./tree/a/b", "text").unpack("tree");
        assert_eq!(fs::read_to_string(unpacked.unwrap().join("a/b")).unwrap(), "text");
        assert!(matches!(Tar::new().unpack("tree").1, Err(UnpackError::Empty)));
        for beside in
            [Tar::new().file("a", ""), Tar::new().file("tree2/a", ""), Tar::new().directory("./", 0o755)]
        {
            assert!(matches!(beside.unpack("tree").1, Err(UnpackError::Archive(_))));
        }
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let outside = tempfile::tempdir().unwrap();
        let target = outside.path().to_str().unwrap();
        for attack in [
            Tar::new().link("t/out", target).file("t/out/file", "x"),
            Tar::new().link("t/out", &format!("{target}/file")).file("t/out", "x"),
            Tar::new().link("t/a", target).link("t/b", "a").directory("t/b/made", 0o755),
            Tar::new().file("../file", "x"),
            Tar::new().directory("t", 0o755).entry(tar::EntryType::Link, "t/x", "t/none", "", 0),
        ] {
            assert!(attack.unpack("t").1.is_err());
            assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn programs_lose_what_would_make_them_somebody_else() {
        let (_directory, unpacked) = Tar::new()
            .entry(tar::EntryType::Regular, "t/p", "", "x", 0o6755)
            .directory("t", 0o2755)
            .unpack("t");
        let tree = unpacked.unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&tree.join("p")), mode(&tree)), (0o755, 0o755));
    }

    #[test]
    fn trees_are_merged_and_files_replaced() {
        let here = tempfile::tempdir().unwrap();
        let path = |name: &str| here.path().join(name);
        for (name, content) in
            [("new/d/a", "1"), ("new/d/b", "1"), ("old/d/b", "0"), ("old/d/c", "0"), ("file", "0")]
        {
            fs::create_dir_all(path(name).parent().unwrap()).unwrap();
            fs::write(path(name), content).unwrap();
        }
        merge(&path("new"), &path("old")).unwrap();
        let read = |name: &str| fs::read_to_string(path(name)).unwrap();
        assert_eq!([read("old/d/a"), read("old/d/b"), read("old/d/c")], ["1", "1", "0"]);
        assert!(merge(&path("old"), &path("file")).is_err());
        merge(&path("old/d/a"), &path("file")).unwrap();
        assert_eq!(read("file"), "1");
    }
}
