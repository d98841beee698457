//! Files compared with what a manifest says about them: the size first, then every byte.

use std::cmp::Ordering;
use std::fs::File;
use std::path::Path;

use crate::digest::Digest;
use crate::files;
use crate::image_digest;
use crate::manifest::{FileEntry, LayerEntry};
use crate::snapshot::OpenError;

impl LayerEntry {
    /// Refuses a file that is not this layer: another size, or any byte that differs. `name` is for messages.
    pub fn check(&self, name: &Path, file: &File) -> Result<(), OpenError> {
        self.check_length(name, file)?;
        check_image(name, file, self.size, self.digest)
    }

    /// Refuses a file of another size. That is enough of one whose bytes were checked when it came, and that cannot be written to.
    pub fn check_length(&self, name: &Path, file: &File) -> Result<(), OpenError> {
        check_length(name, file, self.size)
    }
}

/// Reads a file whose size the manifest has limited already.
pub(crate) fn read_checked(path: &Path, file: &File, entry: &FileEntry) -> Result<Vec<u8>, OpenError> {
    check_length(path, file, entry.size)?;
    let bytes =
        files::read(file, entry.size).map_err(|source| OpenError::Io { path: path.into(), source })?;
    check_digest(path, Digest::of(&bytes), entry.digest)?;
    Ok(bytes)
}

pub(crate) fn check_length(path: &Path, file: &File, expected: u64) -> Result<(), OpenError> {
    let found = files::length(file).map_err(|source| OpenError::Io { path: path.into(), source })?;
    let path = path.to_path_buf();
    match found.cmp(&expected) {
        Ordering::Equal => Ok(()),
        Ordering::Less => Err(OpenError::Truncated { path, found, expected }),
        Ordering::Greater => Err(OpenError::TooLong { path, found, expected }),
    }
}

/// Checks every byte of a sparse file of `size` bytes, on all cores.
pub(crate) fn check_image(path: &Path, file: &File, size: u64, expected: Digest) -> Result<(), OpenError> {
    let found =
        image_digest::of_file(file, size).map_err(|source| OpenError::Io { path: path.into(), source })?;
    check_digest(path, found, expected)
}

pub(crate) fn check_digest(path: &Path, found: Digest, expected: Digest) -> Result<(), OpenError> {
    if found == expected {
        return Ok(());
    }
    Err(OpenError::Digest { path: path.into(), found, expected })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image_digest::BLOCK;
    use std::os::unix::fs::FileExt;

    /// A layer of four blocks and a bit, with a hole.
    fn layer() -> (File, LayerEntry) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4 * BLOCK as u64 + 4096).unwrap();
        file.write_all_at(b"super block", 1024).unwrap();
        file.write_all_at(b"data", 3 * BLOCK as u64).unwrap();
        let (size, digest) = Digest::of_image(&file).unwrap();
        (file, LayerEntry { digest, size })
    }

    #[test]
    fn a_disk_layer_is_checked_like_memory() {
        let name = Path::new("layers/debian-12");
        let (file, layer) = layer();
        assert_eq!(layer.size, 4 * BLOCK as u64 + 4096);
        layer.check(name, &file).unwrap();
        for block in 0..5 {
            let at = block * BLOCK as u64 + 4000;
            file.write_all_at(b"\x01", at).unwrap();
            let error = layer.check(name, &file).unwrap_err();
            assert!(matches!(&error, OpenError::Digest { path, .. } if path == name), "{error}");
            file.write_all_at(b"\0", at).unwrap();
        }
        layer.check(name, &file).unwrap();
        file.set_len(layer.size - 1).unwrap();
        assert_eq!(
            layer.check(name, &file).unwrap_err().to_string(),
            "layers/debian-12 is truncated: 4198399 bytes, expected 4198400"
        );
        file.set_len(layer.size + 1).unwrap();
        assert!(matches!(layer.check(name, &file), Err(OpenError::TooLong { .. })));
    }

    #[test]
    fn a_layer_that_is_no_file_or_absurdly_large_is_refused() {
        let (_, mut layer) = layer();
        let name = Path::new("layer");
        let device = File::open("/dev/zero").unwrap();
        assert!(matches!(layer.check(name, &device), Err(OpenError::Io { .. })));
        let file = tempfile::tempfile().unwrap();
        let size = image_digest::MAX_IMAGE + 1;
        // Not every file system can have such a file.
        if file.set_len(size).is_ok() {
            layer.size = size;
            assert!(matches!(layer.check(name, &file), Err(OpenError::Io { .. })));
            assert!(Digest::of_image(&file).is_err());
        }
    }
}
