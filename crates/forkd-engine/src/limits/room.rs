//! Room on the disk for what is on its way to it. The free bytes of a file system say nothing of what others were admitted for and have
//! not written yet: two pulls at once would both be given the same bytes.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::{Engine, Shared};
use crate::error::EngineError;
use crate::limits::admission::Refusal;
use crate::paths::PathError;

/// Bytes that were reserved and are not written yet.
#[derive(Debug, Default)]
pub(crate) struct PromisedBytes(Mutex<u64>);

impl PromisedBytes {
    fn lock(&self) -> MutexGuard<'_, u64> {
        // A number is in order whatever panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `bytes` more fit while `kept` stay free. `free` is asked while nothing else is promised.
    fn admit(
        &self,
        bytes: u64,
        kept: u64,
        free: impl FnOnce() -> Result<u64, EngineError>,
    ) -> Result<MutexGuard<'_, u64>, EngineError> {
        let promised = self.lock();
        let free = free()?.saturating_sub(*promised);
        if free >= kept.saturating_add(bytes) {
            return Ok(promised);
        }
        let (wanted_mib, free_mib, kept_mib) = (bytes.div_ceil(1 << 20), free >> 20, kept >> 20);
        Err(match bytes {
            0 => Refusal::Disk { free_mib, kept_mib },
            _ => Refusal::Room { wanted_mib, free_mib, kept_mib },
        }
        .into())
    }

    /// Promises `bytes`, until they are written or the answer is dropped.
    fn promise(
        self: &Arc<Self>,
        bytes: u64,
        kept: u64,
        free: impl FnOnce() -> Result<u64, EngineError>,
    ) -> Result<Room, EngineError> {
        let mut promised = self.admit(bytes, kept, free)?;
        *promised = promised.saturating_add(bytes);
        Ok(Room { promised: Arc::clone(self), total: bytes, written: AtomicU64::new(0) })
    }
}

/// Reserved room. The unused part is free again when this is dropped.
#[derive(Debug)]
pub struct Room {
    promised: Arc<PromisedBytes>,
    total: u64,
    written: AtomicU64,
}

impl Room {
    /// So many of the bytes are on the disk now, and no longer among its free ones.
    pub(crate) fn written(&self, bytes: u64) {
        let bytes = bytes.min(self.total);
        let mut promised = self.promised.lock();
        let before = self.written.fetch_max(bytes, Ordering::Relaxed);
        *promised = promised.saturating_sub(bytes.saturating_sub(before));
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.written(self.total);
    }
}

fn free(directory: &Path) -> Result<u64, EngineError> {
    let stat = rustix::fs::statvfs(directory);
    let stat = stat.map_err(|errno| PathError::at("inspect", directory)(errno.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

impl Engine {
    /// Whether so many bytes can be written to a directory, and what is kept free still is.
    pub fn admit_bytes(&self, directory: &Path, bytes: u64) -> Result<(), EngineError> {
        self.shared.admit_bytes(directory, bytes)
    }

    /// The same, and keeps others from being given these bytes until what is returned is dropped.
    pub fn take_room(&self, directory: &Path, bytes: u64) -> Result<Room, EngineError> {
        self.shared.take_room(directory, bytes)
    }
}

impl Shared {
    pub(crate) fn admit_bytes(&self, directory: &Path, bytes: u64) -> Result<(), EngineError> {
        self.promised_bytes.admit(bytes, self.limits.free_disk_bytes, || free(directory)).map(drop)
    }

    pub(crate) fn take_room(&self, directory: &Path, bytes: u64) -> Result<Room, EngineError> {
        self.promised_bytes.promise(bytes, self.limits.free_disk_bytes, || free(directory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_same_bytes_are_promised_once() {
        let promised = Arc::new(PromisedBytes::default());
        let free = |mib: u64| move || Ok(mib * MIB);
        let first = promised.promise(60 * MIB, 10 * MIB, free(100)).unwrap();
        let refused = promised.promise(60 * MIB, 10 * MIB, free(100)).unwrap_err().to_string();
        assert!(refused.contains("60 MiB") && refused.contains("40 MiB"), "{refused}");
        assert!(promised.admit(31 * MIB, 10 * MIB, free(100)).is_err());
        let second = promised.promise(30 * MIB, 10 * MIB, free(100)).unwrap();
        // What is written is no longer free, and no longer promised either.
        first.written(50 * MIB);
        first.written(20 * MIB);
        assert_eq!(*promised.lock(), 40 * MIB);
        assert!(promised.promise(MIB, 10 * MIB, free(50)).is_err());
        first.written(u64::MAX);
        assert_eq!(*promised.lock(), 30 * MIB);
        drop(first);
        assert_eq!(*promised.lock(), 30 * MIB);
        // One that fails half-way gives the rest back.
        second.written(10 * MIB);
        drop(second);
        assert_eq!(*promised.lock(), 0);
    }
}
