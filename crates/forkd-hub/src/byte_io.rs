//! Where the raw bytes of a stream come from and go to.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes that are sent. Several threads read it at the same time.
pub trait ByteSource: Send + Sync {
    /// Bytes in all. It must not change while the source is in use.
    fn length(&self) -> io::Result<u64>;
    /// Fills the whole buffer from `offset` on.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

/// Gets bytes that were checked, in any order, from several threads.
pub trait ByteSink: Send + Sync {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
}

impl ByteSource for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(buffer, offset)
    }
}

impl ByteSink for File {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }
}

impl ByteSource for [u8] {
    fn length(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let bytes = self.get(start..).and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl ByteSource for Vec<u8> {
    fn length(&self) -> io::Result<u64> {
        self.as_slice().length()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.as_slice().read_at(buffer, offset)
    }
}

impl<T: ByteSource + ?Sized> ByteSource for &T {
    fn length(&self) -> io::Result<u64> {
        (**self).length()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        (**self).read_at(buffer, offset)
    }
}
