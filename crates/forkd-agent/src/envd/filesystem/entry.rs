//! What is known about one entry of a directory.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use forkd_envd::filesystem::{EntryInfo, FileType};

use crate::envd::{metadata, paths};
use crate::users::Users;

const PERMISSIONS: u32 = 0o777;
const STICKY: u32 = 0o1000;
const SET_GROUP: u32 = 0o2000;
const SET_USER: u32 = 0o4000;

/// Looks at a path. A symbolic link is shown as what it leads to, with where it leads; one that leads nowhere as a link.
pub fn info(path: &Path, users: &Users) -> io::Result<EntryInfo> {
    let own = path.symlink_metadata()?;
    let (found, target) = if own.is_symlink() {
        let target = path.canonicalize().or_else(|_| path.read_link()).ok();
        (path.metadata().unwrap_or(own), target)
    } else {
        (own, None)
    };
    Ok(EntryInfo {
        name: path.file_name().map_or_else(|| "/".to_owned(), |name| name.to_string_lossy().into_owned()),
        kind: kind(&found),
        path: paths::text(path),
        size: found.len().to_string(),
        mode: found.permissions().mode() & PERMISSIONS,
        permissions: permissions(&found),
        owner: users.user_name(found.uid()),
        group: users.group_name(found.gid()),
        modified_time: modified(&found),
        symlink_target: target.as_deref().map(paths::text),
        metadata: metadata::read(path),
    })
}

fn kind(found: &Metadata) -> FileType {
    let kind = found.file_type();
    if kind.is_file() {
        FileType::File
    } else if kind.is_dir() {
        FileType::Directory
    } else if kind.is_symlink() {
        FileType::Symlink
    } else {
        FileType::Other
    }
}

/// As `ls -l` has it.
fn permissions(found: &Metadata) -> String {
    use std::os::unix::fs::FileTypeExt;
    let kind = found.file_type();
    let first = [
        (kind.is_dir(), 'd'),
        (kind.is_symlink(), 'l'),
        (kind.is_fifo(), 'p'),
        (kind.is_socket(), 's'),
        (kind.is_char_device(), 'c'),
        (kind.is_block_device(), 'b'),
    ];
    let first = first.iter().find(|(is, _)| *is).map_or('-', |(_, letter)| *letter);
    std::iter::once(first).chain(mode_letters(found.permissions().mode())).collect()
}

fn mode_letters(mode: u32) -> impl Iterator<Item = char> {
    let special = [(SET_USER, 's', 'S'), (SET_GROUP, 's', 'S'), (STICKY, 't', 'T')];
    special.into_iter().zip([6, 3, 0]).flat_map(move |((bit, with, without), shift)| {
        let bits = mode >> shift;
        let execute = match (mode & bit != 0, bits & 1 != 0) {
            (true, true) => with,
            (true, false) => without,
            (false, true) => 'x',
            (false, false) => '-',
        };
        [if bits & 4 != 0 { 'r' } else { '-' }, if bits & 2 != 0 { 'w' } else { '-' }, execute]
    })
}

/// RFC 3339. A time that has no such form (before 1970, after 9999) is the nearest one.
fn modified(found: &Metadata) -> String {
    const LAST: u64 = 253_402_300_799;
    let seconds = u64::try_from(found.mtime()).unwrap_or_default().min(LAST);
    let nanoseconds = u32::try_from(found.mtime_nsec()).unwrap_or_default().min(999_999_999);
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(seconds, nanoseconds);
    humantime::format_rfc3339_nanos(time).to_string()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn modes_are_written_as_ls_does() {
        let text = |mode| mode_letters(mode).collect::<String>();
        assert_eq!((text(0o644), text(0o755)), ("rw-r--r--".into(), "rwxr-xr-x".into()));
        assert_eq!((text(0o1777), text(0o4755)), ("rwxrwxrwt".into(), "rwsr-xr-x".into()));
        assert_eq!(text(0o2640), "rw-r-S---");
    }

    #[test]
    fn files_directories_and_links() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "hello").unwrap();
        symlink(&file, directory.path().join("link")).unwrap();
        symlink("nowhere", directory.path().join("broken")).unwrap();
        let users = Users::read();
        let look = |name: &str| info(&directory.path().join(name), &users).unwrap();
        let plain = look("file");
        assert_eq!((plain.kind, plain.size.as_str(), plain.name.as_str()), (FileType::File, "5", "file"));
        assert!(plain.permissions.starts_with("-rw"), "{}", plain.permissions);
        assert!(plain.modified_time.ends_with('Z'), "{}", plain.modified_time);
        let link = look("link");
        assert_eq!((link.kind, link.size.as_str()), (FileType::File, "5"));
        assert!(link.symlink_target.unwrap().ends_with("/file"));
        let broken = look("broken");
        assert_eq!((broken.kind, broken.symlink_target.as_deref()), (FileType::Symlink, Some("nowhere")));
        assert!(info(&directory.path().join("none"), &users).is_err());
        assert_eq!(info(Path::new("/"), &users).unwrap().name, "/");
    }
}
