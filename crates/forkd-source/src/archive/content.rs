//! A file on its way into an archive.

use std::fs::File;
use std::io::{self, Read};

/// As many bytes of a file as its header says: one that grows or shrinks meanwhile would be taken for the next entry.
pub fn exactly(file: File, size: u64) -> impl Read {
    file.take(size).chain(io::repeat(0)).take(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, Write};

    #[test]
    fn a_file_has_the_size_that_was_said() {
        for (size, expected) in [(2, &b"te"[..]), (4, b"text"), (6, b"text\0\0")] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(b"text").unwrap();
            file.rewind().unwrap();
            let mut content = Vec::new();
            exactly(file, size).read_to_end(&mut content).unwrap();
            assert_eq!(content, expected);
        }
    }
}
