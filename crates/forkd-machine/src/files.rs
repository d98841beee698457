//! State files: JSON, replaced whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// No state file is larger; a larger one is not ours.
const MAX_SIZE: u64 = 1 << 20;

/// A file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot {verb} {}", path.display())]
    Io { verb: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is damaged", path.display())]
    Damaged { path: PathBuf, source: serde_json::Error },
}

impl FileError {
    pub(crate) fn at(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
        move |source| FileError::Io { verb, path: path.into(), source }
    }
}

/// Writes `value` beside `path`, brings it to the disk, and renames it into place.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), FileError> {
    let mut text = serde_json::to_vec_pretty(value)
        .map_err(|source| FileError::Damaged { path: path.into(), source })?;
    text.push(b'\n');
    write(path, &text)
}

/// The same for any content.
pub(crate) fn write(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let replace = || {
        let mut file = tempfile::NamedTempFile::with_prefix_in(".write-", directory)?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        File::open(directory)?.sync_all()
    };
    replace().map_err(FileError::at("write", path))
}

/// Reads what [`write_json`] wrote; `None` if there is no such file.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, FileError> {
    let size = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(FileError::at("read", path)(error)),
    };
    if size > MAX_SIZE {
        return Err(FileError::at("read", path)(io::ErrorKind::FileTooLarge.into()));
    }
    let text = fs::read(path).map_err(FileError::at("read", path))?;
    let value = serde_json::from_slice(&text);
    value.map(Some).map_err(|source| FileError::Damaged { path: path.into(), source })
}

/// Removes a file that may already be gone.
pub(crate) fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(FileError::at("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Removes the directories in `parent` whose names begin with `prefix`: what an operation that was killed left behind.
/// The caller holds the lock that such operations hold.
pub(crate) fn remove_leftovers(parent: &Path, prefix: &str) -> Result<(), FileError> {
    let entries = fs::read_dir(parent).map_err(FileError::at("list", parent))?;
    for entry in entries {
        let path = entry.map_err(FileError::at("list", parent))?.path();
        let is_leftover = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
        if is_leftover {
            fs::remove_dir_all(&path).map_err(FileError::at("remove", &path))?;
        }
    }
    Ok(())
}

/// The last lines of a log, for an error message.
pub(crate) fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(64 << 10)..]).into_owned();
    let lines: Vec<&str> = text.lines().rev().filter(|line| !line.trim().is_empty()).take(lines).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_nothing_else_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        assert_eq!(read_json::<Vec<u32>>(&path).unwrap(), None);
        for value in [vec![1, 2, 3], vec![4]] {
            write_json(&path, &value).unwrap();
            assert_eq!(read_json::<Vec<u32>>(&path).unwrap(), Some(value));
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_write_leaves_the_old_content() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        write_json(&path, &1).unwrap();
        let missing = directory.path().join("no/state.json");
        assert!(matches!(write_json(&missing, &2), Err(FileError::Io { verb: "write", .. })));
        assert_eq!(read_json::<u32>(&path).unwrap(), Some(1));
    }

    #[test]
    fn damage_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        fs::write(&path, "{").unwrap();
        assert!(matches!(read_json::<u32>(&path), Err(FileError::Damaged { .. })));
        File::create(&path).unwrap().set_len(MAX_SIZE + 1).unwrap();
        assert!(matches!(read_json::<u32>(&path), Err(FileError::Io { .. })));
    }

    #[test]
    fn the_tail_is_the_last_lines_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        fs::write(&path, "one\ntwo\n\nthree\n").unwrap();
        assert_eq!(tail(&path, 2), "two\nthree");
        assert_eq!(tail(&directory.path().join("none"), 2), "");
    }
}
