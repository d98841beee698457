//! A sparse file as a stream, and back.
//!
//! ```text
//!   length                       8 bytes
//!   offset, length, bytes        8 + 4 + as many, in order; what is between two is a hole
//!   length of the file, 0        8 + 4: the end
//! ```
//!
//! Numbers are little-endian.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;

const CHUNK: usize = 1 << 20;

pub fn write_sparse(file: &File, to: &mut impl Write) -> io::Result<()> {
    let length = file.metadata()?.len();
    to.write_all(&length.to_le_bytes())?;
    let mut chunk = vec![0; CHUNK];
    let mut offset = 0;
    while offset < length {
        let data = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(offset)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => break,
            // A file system that knows no holes has data everywhere.
            Err(_) => offset,
        };
        let hole = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(data)).unwrap_or(length);
        offset = data;
        while offset < hole {
            let wanted = usize::try_from(hole - offset).unwrap_or(CHUNK).min(CHUNK);
            file.read_exact_at(&mut chunk[..wanted], offset)?;
            write_head(to, offset, wanted)?;
            to.write_all(&chunk[..wanted])?;
            offset += wanted as u64;
        }
    }
    write_head(to, length, 0)?;
    to.flush()
}

fn write_head(to: &mut impl Write, offset: u64, length: usize) -> io::Result<()> {
    to.write_all(&offset.to_le_bytes())?;
    to.write_all(&u32::try_from(length).map_err(io::Error::other)?.to_le_bytes())
}

/// Fills an empty file. A stream that is not whole, in order and within `max` bytes is refused.
pub fn read_sparse(from: &mut impl Read, file: &File, max: u64) -> io::Result<()> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let length = read_number(from)?;
    if length > max {
        return Err(wrong("a file that is longer than it can be"));
    }
    file.set_len(length)?;
    let mut chunk = Vec::new();
    let mut end = 0;
    loop {
        let offset = read_number(from)?;
        let mut size = [0; 4];
        from.read_exact(&mut size)?;
        let size = u32::from_le_bytes(size);
        if size == 0 {
            return if offset == length { Ok(()) } else { Err(wrong("an end before the last byte")) };
        }
        let after = offset.checked_add(size.into()).filter(|after| *after <= length);
        let size = usize::try_from(size).map_err(io::Error::other)?;
        let Some(after) = after.filter(|_| offset >= end && size <= CHUNK) else {
            return Err(wrong("a piece that is not where it should be"));
        };
        chunk.resize(size, 0);
        from.read_exact(&mut chunk)?;
        file.write_all_at(&chunk, offset)?;
        end = after;
    }
}

fn read_number(from: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn stream(file: &File) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_sparse(file, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn holes_stay_holes() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 30).unwrap();
        let data: Vec<u8> = (0..(3_u32 << 18)).flat_map(u32::to_le_bytes).collect();
        file.write_all_at(&data, 5 << 20).unwrap();
        file.write_all_at(b"x", (1 << 30) - 1).unwrap();
        let bytes = stream(&file);
        assert!(bytes.len() < 4 << 20);
        let copy = tempfile::tempfile().unwrap();
        read_sparse(&mut &bytes[..], &copy, 1 << 30).unwrap();
        assert_eq!(
            (copy.metadata().unwrap().len(), copy.metadata().unwrap().blocks() < 10_000),
            (1 << 30, true)
        );
        let mut read = vec![0; data.len()];
        copy.read_exact_at(&mut read, 5 << 20).unwrap();
        assert!(read == data);
        copy.read_exact_at(&mut read[..2], (1 << 30) - 2).unwrap();
        assert_eq!(read[..2], [0, b'x']);
        assert!(stream(&copy) == bytes);
    }

    #[test]
    fn what_is_cut_long_or_out_of_order_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 100], 0).unwrap();
        let good = stream(&file);
        let refused =
            |bytes: &[u8], max| read_sparse(&mut &bytes[..], &tempfile::tempfile().unwrap(), max).is_err();
        assert!(!refused(&good, 100));
        assert!(refused(&good, 99));
        for length in 0..good.len() {
            assert!(refused(&good[..length], 100), "{length}");
        }
        let beyond = [&good[..8], &50_u64.to_le_bytes(), &good[16..]].concat();
        assert!(refused(&beyond, 100));
        let twice = [&good[..good.len() - 12], &good[8..]].concat();
        assert!(refused(&twice, 100));
        let early = [&good[..8], &[0; 12]].concat();
        assert!(refused(&early, 100));
    }
}
