//! Compression of layers, told by their first bytes.

use std::io::{self, BufRead, BufReader, Read};

use super::ArchiveError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    /// Tells the compression from the first bytes of a file.
    pub fn detect(first: &[u8]) -> Result<Compression, ArchiveError> {
        match first {
            [0x1f, 0x8b, ..] => Ok(Compression::Gzip),
            // A skippable frame may come before the data: estargz and others write one.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Ok(Compression::Zstd),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Err(ArchiveError::Compression("xz")),
            [b'B', b'Z', b'h', ..] => Err(ArchiveError::Compression("bzip2")),
            _ => Ok(Compression::None),
        }
    }
}

/// The archive inside of `file`, whatever its compression.
pub fn decompressed<'a>(file: impl Read + 'a) -> Result<Box<dyn Read + 'a>, ArchiveError> {
    let failed = |source| ArchiveError::Read { entry: String::new(), source };
    let mut file = BufReader::with_capacity(256 << 10, file);
    Ok(match Compression::detect(file.fill_buf().map_err(failed)?)? {
        Compression::None => Box::new(file),
        // Parallel compressors write several members, one after another.
        Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(file)),
        Compression::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(file).map_err(failed)?;
            // 128 MiB: what the format asks every decoder to offer is 8 MiB, and `zstd --long` uses this.
            decoder.window_log_max(27).map_err(failed)?;
            Box::new(decoder)
        }
    })
}

/// Fails instead of delivering more than a number of bytes: what a small file can unpack to has no end.
#[derive(Debug)]
pub struct Bounded<R> {
    pub inner: R,
    pub left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| {
            io::Error::new(io::ErrorKind::FileTooLarge, "it unpacks to more than an image may hold")
        })?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn read(file: &[u8]) -> Vec<u8> {
        let mut data = Vec::new();
        decompressed(file).unwrap().read_to_end(&mut data).unwrap();
        data
    }

    #[test]
    fn every_compression_is_told_by_its_bytes() {
        let data = b"0123456789".repeat(1000);
        let (half, rest) = data.split_at(3000);
        assert_eq!(read(&data), data);
        assert_eq!(read(&gzip(&data)), data);
        assert_eq!(read(&[gzip(half), gzip(rest)].concat()), data);
        assert_eq!(read(&zstd::encode_all(&data[..], 1).unwrap()), data);
        let skippable =
            [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 9, 9, 9][..], &zstd::encode_all(&data[..], 1).unwrap()];
        assert_eq!(read(&skippable.concat()), data);
        assert_eq!(read(b""), b"");
    }

    #[test]
    fn others_are_refused_by_name() {
        let error = decompressed(&b"\xfd7zXZ\0..."[..]).err().unwrap();
        assert!(error.to_string().contains("(xz)"), "{error}");
        assert!(decompressed(&b"BZh9"[..]).is_err());
    }

    #[test]
    fn a_bounded_reader_fails_at_its_bound() {
        let mut bounded = Bounded { inner: io::repeat(0), left: 1 << 20 };
        assert_eq!(io::copy(&mut bounded, &mut io::sink()).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        let mut exact = Bounded { inner: &[0; 10][..], left: 10 };
        assert_eq!(io::copy(&mut exact, &mut io::sink()).unwrap(), 10);
    }
}
