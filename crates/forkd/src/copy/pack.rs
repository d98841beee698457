//! A file or a directory becomes an archive.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// Writes an archive of what is at a path, under another name. Links are links, also in directories.
pub fn pack(path: &Path, name: &Path, to: impl Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(to);
    archive.follow_symlinks(false);
    // The path itself is what it leads to: whoever names a link means the file.
    if fs::metadata(path)?.is_dir() {
        archive.append_dir_all(name, path)?;
    } else {
        archive.append_file(name, &mut fs::File::open(path)?)?;
    }
    archive.into_inner()?.flush()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn trees_are_packed_under_their_new_name() {
        let here = tempfile::tempdir().unwrap();
        fs::create_dir_all(here.path().join("a/b")).unwrap();
        fs::write(here.path().join("a/b/file"), "text").unwrap();
        std::os::unix::fs::symlink("nowhere", here.path().join("a/link")).unwrap();
        std::os::unix::fs::symlink("a/b/file", here.path().join("to-file")).unwrap();
        let mut bytes = Vec::new();
        pack(&here.path().join("a"), Path::new("x"), &mut bytes).unwrap();
        let mut archive = tar::Archive::new(&bytes[..]);
        let mut names: Vec<String> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().to_string_lossy().trim_end_matches('/').to_owned())
            .collect();
        names.sort();
        assert_eq!(names, ["x", "x/b", "x/b/file", "x/link"]);
        let mut bytes = Vec::new();
        pack(&here.path().join("to-file"), Path::new("y"), &mut bytes).unwrap();
        let mut archive = tar::Archive::new(&bytes[..]);
        let mut entry = archive.entries().unwrap().next().unwrap().unwrap();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        assert_eq!((entry.path().unwrap().to_string_lossy().as_ref(), text.as_str()), ("y", "text"));
        assert!(pack(&here.path().join("none"), Path::new("x"), io::sink()).is_err());
    }
}
