//! Paths of entries: relative, without `.` and `..`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::Problem;

/// Bytes in one name of Linux's file systems.
const MAX_NAME: usize = 255;

/// A path below the root of an image. Empty for the root itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EntryPath(PathBuf);

impl EntryPath {
    /// Takes a path as archives have it. A slash at the beginning means the image's root: some builders write it. `..` is
    /// refused even where it would stay inside, since no honest archive has it.
    pub fn parse(bytes: &[u8], max: usize) -> Result<EntryPath, Problem> {
        if bytes.len() > max {
            return Err(Problem::PathTooLong);
        }
        if bytes.is_empty() || bytes.contains(&0) {
            return Err(Problem::BadName);
        }
        let mut path = PathBuf::new();
        for name in bytes.split(|byte| *byte == b'/') {
            match name {
                b"" | b"." => {}
                b".." => return Err(Problem::ClimbsOut),
                name if name.len() > MAX_NAME => return Err(Problem::BadName),
                name => path.push(OsStr::from_bytes(name)),
            }
        }
        Ok(EntryPath(path))
    }

    pub fn is_root(&self) -> bool {
        self.0.as_os_str().is_empty()
    }

    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// The directory that holds it and its name there; `None` for the root.
    pub(super) fn split(&self) -> Option<(&Path, &OsStr)> {
        Some((self.0.parent()?, self.0.file_name()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn honest_paths_become_plain() {
        for (given, plain) in [
            ("./", ""),
            ("/", ""),
            ("./a/b/", "a/b"),
            ("/etc//passwd", "etc/passwd"),
            ("a/./b", "a/b"),
            ("..a", "..a"),
        ] {
            assert_eq!(
                EntryPath::parse(given.as_bytes(), 100).unwrap().as_path(),
                Path::new(plain),
                "{given}"
            );
        }
    }

    #[test]
    fn others_are_refused() {
        let refused = |path: &[u8]| EntryPath::parse(path, 300).unwrap_err();
        for path in ["..", "../a", "a/../b", "/..", "a/.."] {
            assert_eq!(refused(path.as_bytes()), Problem::ClimbsOut, "{path}");
        }
        assert_eq!(refused(b""), Problem::BadName);
        assert_eq!(refused(b"a\0b"), Problem::BadName);
        assert_eq!(refused(&[b'x'; 256]), Problem::BadName);
        assert_eq!(refused(&[b'x'; 301]), Problem::PathTooLong);
    }

    proptest! {
        #[test]
        fn whatever_is_taken_stays_below(bytes in proptest::collection::vec(prop_oneof![Just(b'.'), Just(b'/'), any::<u8>()], 0..40)) {
            if let Ok(path) = EntryPath::parse(&bytes, 4095) {
                let normal = |component| matches!(component, std::path::Component::Normal(_));
                prop_assert!(path.as_path().components().all(normal));
            }
        }
    }
}
