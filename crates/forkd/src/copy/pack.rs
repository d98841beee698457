//! A file or a directory becomes an archive.

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::path::Path;

use forkd_source::archive::exactly;

/// Writes an archive of what is at a path, under another name. Links in directories are links. Everything is root's: numbers of
/// this host's users mean other users in a guest.
pub fn pack(path: &Path, name: &Path, to: impl Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(to);
    // The path itself is followed: a named link means its file.
    append(&mut archive, path, name, &fs::metadata(path)?)?;
    archive.into_inner()?.flush()
}

fn append(
    archive: &mut tar::Builder<impl Write>,
    path: &Path,
    name: &Path,
    metadata: &Metadata,
) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_metadata(metadata);
    header.set_uid(0);
    header.set_gid(0);
    let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    if metadata.is_symlink() {
        header.set_size(0);
        return archive.append_link(&mut header, name, fs::read_link(path).map_err(at)?);
    }
    if metadata.is_file() {
        let file = File::open(path).map_err(at)?;
        return archive.append_data(&mut header, name, exactly(file, metadata.len()));
    }
    if !metadata.is_dir() {
        return Err(at(io::Error::new(io::ErrorKind::InvalidInput, "not a file, directory or link")));
    }
    header.set_size(0);
    archive.append_data(&mut header, name, io::empty())?;
    for entry in fs::read_dir(path).map_err(at)? {
        let entry = entry.map_err(at)?;
        append(archive, &entry.path(), &name.join(entry.file_name()), &entry.metadata().map_err(at)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

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
