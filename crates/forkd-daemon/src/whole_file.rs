//! Small files that are read and replaced atomically: a reader sees the old content or the new.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

/// What a file has, if it is there, and not more than `most` bytes and one.
pub fn read(path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut text)?;
    Ok(Some(text))
}

/// Puts a file into the place of the one that is there. It is on disk when this returns, and readable by its owner only.
pub fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    let mut file = tempfile::NamedTempFile::with_prefix_in(".new-", directory)?;
    file.write_all(text)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn files_are_read_and_replaced_whole() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("below/x.json");
        assert_eq!(read(&path, 10).unwrap(), None);
        replace(&path, b"one").unwrap();
        replace(&path, b"two more").unwrap();
        assert_eq!(read(&path, 10).unwrap().unwrap(), b"two more");
        assert_eq!(
            read(&path, 3).unwrap().unwrap(),
            b"two ",
            "one more than asked for, to see that it is too long"
        );
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        assert!(read(home.path(), 10).is_err());
    }
}
