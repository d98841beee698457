//! For the tests of this crate: data, and a registry with faults.

pub(crate) mod registry;

use std::io;
use std::sync::Mutex;

use crate::byte_io::{ByteSink, ByteSource};
use crate::config::Stream;
use crate::pack::PackJob;
use crate::role::Role;
use crate::table::FrameTable;

/// A stream of these bytes, with its table.
pub(crate) fn stream_of(role: Role, name: &str, bytes: &Vec<u8>) -> Stream {
    let job = PackJob { source: bytes, size: bytes.len() as u64, known: None };
    let blobs =
        (0..crate::frame::blob_count(job.size)).map(|number| job.blob(number, &|| false).unwrap().blob);
    Stream { role, name: name.into(), table: FrameTable::new(job.size, blobs.collect()).unwrap() }
}

/// Bytes that compress about as well as memory does: half of each 4 KiB is noise, the rest is one byte.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    for (number, page) in bytes.chunks_mut(4096).enumerate() {
        let half = page.len() / 2;
        let mut output = blake3::Hasher::new().update(&number.to_le_bytes()).finalize_xof();
        output.fill(&mut page[..half]);
        page[half..].fill(u8::try_from(number % 251).unwrap_or(0));
    }
    bytes
}

/// Memory that is written to.
#[derive(Default)]
pub(crate) struct Memory(pub Mutex<Vec<u8>>);

impl Memory {
    pub fn take(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

impl ByteSink for Memory {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut memory = self.0.lock().unwrap();
        let start = usize::try_from(offset).unwrap();
        if memory.len() < start + bytes.len() {
            memory.resize(start + bytes.len(), 0);
        }
        memory[start..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

/// A source that says how long it is and cannot be read.
pub(crate) struct Unreadable(pub u64);

impl ByteSource for Unreadable {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0)
    }

    fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}
