//! The block device: requests of a driver, answered from a layered disk.

mod config;
mod request;
#[cfg(test)]
mod tests;

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX,
    VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES, VIRTIO_BLK_ID_BYTES,
};
use virtio_bindings::virtio_ids::VIRTIO_ID_BLOCK;

use super::chain::{Budget, work_through};
use super::{Driver, DriverFault, VirtioDevice};
use crate::disk::{Frozen, LayeredDisk, NewTop};

/// The name by which the guest knows the disk, filled up with zeroes.
pub type DiskName = [u8; VIRTIO_BLK_ID_BYTES as usize];

const QUEUE: u16 = 128;

/// A chain has a header, data and a status byte.
const MAX_SEGMENTS: u32 = QUEUE as u32 - 2;

/// The largest segment of a request. With the number of segments it bounds a request to 15 MiB.
const MAX_SEGMENT: u32 = 128 << 10;

const MAX_REQUEST: u64 = MAX_SEGMENTS as u64 * MAX_SEGMENT as u64;

/// One call does this much; a pause waits no longer than that takes.
const BUDGET: Budget = Budget { chains: 2 * QUEUE as usize, bytes: 64 << 20 };

/// What went wrong since the device was made, for the VMM to report. The guest saw an error each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockErrors {
    /// Requests that found no room in the top layer or on the host.
    pub out_of_space: u64,
    /// Requests that failed on the host for another reason.
    pub failed: u64,
}

/// Whether the top layer had room for all requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    Enough,
    Refused,
    /// Refused, and the VMM knows.
    Reported,
}

/// The device. Its saved state is that of the disk: nothing else outlives a call.
#[derive(Debug)]
pub struct Block {
    disk: LayeredDisk,
    name: DiskName,
    read_only: bool,
    /// The driver does not know how to flush, so each write is flushed.
    write_through: bool,
    unfinished: bool,
    errors: BlockErrors,
    room: Room,
    /// Data on its way between the disk and guest memory.
    bounce: Vec<u8>,
    /// What the request at hand has taken of the budget, beside the bytes that it moves.
    cost: u64,
}

impl Block {
    pub fn new(disk: LayeredDisk, name: DiskName) -> Block {
        Block {
            disk,
            name,
            read_only: false,
            write_through: false,
            unfinished: false,
            errors: BlockErrors::default(),
            room: Room::Enough,
            bounce: Vec::new(),
            cost: 0,
        }
    }

    /// The same, for a driver that can only read, or for one that can write.
    pub fn read_only(self, read_only: bool) -> Block {
        Block { read_only, ..self }
    }

    pub fn disk(&self) -> &LayeredDisk {
        &self.disk
    }

    /// For flushing and merging between two calls.
    pub fn disk_mut(&mut self) -> &mut LayeredDisk {
        &mut self.disk
    }

    /// [`LayeredDisk::freeze_under`]. The new top has room again.
    pub fn freeze_under(&mut self, new_top: NewTop) -> Frozen {
        if self.room == Room::Reported {
            self.room = Room::Enough;
        }
        self.disk.freeze_under(new_top)
    }

    pub fn errors(&self) -> BlockErrors {
        self.errors
    }

    /// What the top layer may grow to, if a request has found no room in it and this was not told before.
    pub fn take_out_of_space(&mut self) -> Option<u64> {
        let refused = self.room == Room::Refused;
        refused.then(|| {
            self.room = Room::Reported;
            self.disk.state().limit
        })
    }
}

impl VirtioDevice for Block {
    fn kind(&self) -> u32 {
        VIRTIO_ID_BLOCK
    }

    fn features(&self) -> u64 {
        let writing: &[_] = match self.read_only {
            true => &[VIRTIO_BLK_F_RO],
            false => &[VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES],
        };
        [
            VIRTIO_BLK_F_SIZE_MAX,
            VIRTIO_BLK_F_SEG_MAX,
            VIRTIO_BLK_F_BLK_SIZE,
            VIRTIO_BLK_F_FLUSH,
            VIRTIO_BLK_F_TOPOLOGY,
        ]
        .into_iter()
        .chain(writing.iter().copied())
        .fold(0, |features, bit| features | (1 << bit))
    }

    fn queue_sizes(&self) -> &'static [u16] {
        &[QUEUE]
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        let config = config::encode(self.disk.size());
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = config.get(start..).unwrap_or_default();
        data.fill(0);
        for (place, byte) in data.iter_mut().zip(bytes) {
            *place = *byte;
        }
    }

    fn activate(&mut self, features: u64) {
        self.write_through = features & (1 << VIRTIO_BLK_F_FLUSH) == 0;
    }

    fn reset(&mut self) {
        self.write_through = false;
        self.unfinished = false;
    }

    fn queue_notified(&mut self, queue: usize, driver: &mut Driver<'_>) -> Result<(), DriverFault> {
        let memory = driver.memory;
        self.unfinished = work_through(driver, queue, BUDGET, |chain| self.handle(chain, memory))?;
        Ok(())
    }

    fn is_unfinished(&self) -> bool {
        self.unfinished
    }
}
