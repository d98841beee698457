//! A log that does not grow over its limit.
//!
//! It is one file. When it is full, the newer half is moved to the front behind a line that says so, and the file is made
//! shorter: of a chatty guest the last words stay, which are the interesting ones, and at least three eighths of the limit
//! are always there. A reader that follows the file sees it shrink and starts again. Two files in turn would need a descriptor
//! more for each VM and a reader that knows about both.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

/// The smallest limit.
pub const MIN_LIMIT: u64 = 4096;

/// What is written at a time. It fits behind what a drop leaves.
const PIECE: usize = 2048;
const _: () = assert!(PIECE as u64 <= MIN_LIMIT / 2);

const MARK: &[u8] = b"[forkd: earlier output dropped]\n";

/// A file with the last output of a guest. Writing to it never fails: what cannot be written is counted.
#[derive(Debug)]
pub struct CappedLog {
    file: File,
    limit: u64,
    end: u64,
    lost: u64,
}

impl CappedLog {
    /// Appends to what is in the file, which must be open for reading and writing. It will hold `limit` bytes at most,
    /// or [`MIN_LIMIT`] if that is less.
    pub fn new(file: File, limit: u64) -> io::Result<CappedLog> {
        let limit = limit.max(MIN_LIMIT);
        let end = file.metadata()?.len();
        let mut log = CappedLog { file, limit, end, lost: 0 };
        if end > limit {
            log.drop_older()?;
        }
        Ok(log)
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Bytes that the host could not write.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.end + bytes.len() as u64 > self.limit {
            self.drop_older()?;
        }
        self.file.write_all_at(bytes, self.end)?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Moves the newest part to the front, up to half the limit with the mark, beginning with a whole line if there is one.
    fn drop_older(&mut self) -> io::Result<()> {
        let room = self.limit / 2 - MARK.len() as u64;
        let mut kept = vec![0; usize::try_from(room.min(self.end)).map_err(io::Error::other)?];
        let from = self.end - kept.len() as u64;
        self.file.read_exact_at(&mut kept, from)?;
        let mut start = 0;
        if let Some(line_end) = kept[..kept.len() / 4].iter().position(|byte| *byte == b'\n') {
            start = line_end + 1;
        }
        let text = [MARK, &kept[start..]].concat();
        self.file.write_all_at(&text, 0)?;
        self.file.set_len(text.len() as u64)?;
        self.end = text.len() as u64;
        Ok(())
    }
}

impl Write for CappedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let part = &bytes[..bytes.len().min(PIECE)];
        if self.append(part).is_err() {
            self.lost += part.len() as u64;
        }
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    fn contents(file: &File) -> Vec<u8> {
        let length = usize::try_from(file.metadata().unwrap().len()).unwrap();
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn the_last_output_stays_within_the_limit() {
        let file = tempfile::tempfile().unwrap();
        let mut log = CappedLog::new(file.try_clone().unwrap(), 10_000).unwrap();
        let mut all = Vec::new();
        for line in 0..5000 {
            let line = format!("line {line}\n");
            log.write_all(line.as_bytes()).unwrap();
            all.extend_from_slice(line.as_bytes());
            let now = contents(&file);
            assert!(now.len() <= 10_000);
            match now.strip_prefix(MARK) {
                None => assert!(now == all),
                Some(kept) => {
                    assert!(all.ends_with(kept) && kept.starts_with(b"line "));
                    assert!(kept.len() >= 10_000 * 3 / 8 - MARK.len(), "{}", kept.len());
                }
            }
        }
        assert_eq!(log.lost(), 0);
    }

    #[test]
    fn large_pieces_and_endless_lines_are_cut_too() {
        let file = tempfile::tempfile().unwrap();
        let mut log = CappedLog::new(file.try_clone().unwrap(), 0).unwrap();
        log.write_all(&[b'x'; 100_000]).unwrap();
        log.write_all(b"last words").unwrap();
        let now = contents(&file);
        assert!(now.len() as u64 <= MIN_LIMIT);
        assert!(now.starts_with(MARK) && now.ends_with(b"xlast words"));
    }

    #[test]
    fn a_log_goes_on_after_what_is_there() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"before\n", 0).unwrap();
        let mut log = CappedLog::new(file.try_clone().unwrap(), MIN_LIMIT).unwrap();
        log.write_all(b"after\n").unwrap();
        assert_eq!(contents(&file), b"before\nafter\n");
        file.write_all_at(&[b'y'; 50_000], 0).unwrap();
        CappedLog::new(file.try_clone().unwrap(), MIN_LIMIT).unwrap();
        assert!(contents(&file).len() as u64 <= MIN_LIMIT);
    }

    #[test]
    fn what_cannot_be_written_is_counted() {
        let full = OpenOptions::new().read(true).write(true).open("/dev/full").unwrap();
        let mut log = CappedLog::new(full, MIN_LIMIT).unwrap();
        log.write_all(b"12345").unwrap();
        assert_eq!(log.lost(), 5);
    }
}
