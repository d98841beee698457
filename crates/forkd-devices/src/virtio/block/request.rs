//! One request: a header to read, data to read or to write, and a byte for the status at the very end.
//!
//! ```text
//!   | type u32 | priority u32 | sector u64 | data or ranges …      the driver wrote this
//!   | data … | status u8 |                                         and reads this
//!
//!   a range to discard or zero: | sector u64 | sectors u32 | flags u32 |
//! ```
//!
//! An invalid request gets an error in its status. Only an invalid chain, or one that points outside of memory or has no
//! place for the status, is a fault of the driver.

use std::io::{Read, Write};

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH,
    VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES,
    VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use virtio_queue::{Reader, Writer};
use vm_memory::GuestMemoryMmap;

use super::config::{MAX_RANGE_SECTORS, MAX_RANGES};
use super::{BUDGET, Block, MAX_REQUEST, QUEUE, Room};
use crate::disk::{DiskError, SECTOR};
use crate::virtio::DriverFault;
use crate::virtio::chain::{Chain, Done, check};

/// The data of a request passes through a buffer of this size.
const BOUNCE: usize = 64 << 10;

const RANGE: usize = 16;

/// Why a request fails.
#[derive(Debug)]
enum Refusal {
    Unsupported,
    /// The request is wrong in itself.
    Invalid,
    Disk(DiskError),
}

impl From<DiskError> for Refusal {
    fn from(error: DiskError) -> Refusal {
        Refusal::Disk(error)
    }
}

impl Block {
    pub(super) fn handle(&mut self, chain: Chain<'_>, memory: &GuestMemoryMmap) -> Result<Done, DriverFault> {
        let outside = |error| DriverFault(format!("a request with a buffer outside of memory: {error}"));
        check(chain.clone(), QUEUE.into())?;
        let mut input = Reader::new(memory, chain.clone()).map_err(outside)?;
        let mut output = Writer::new(memory, chain).map_err(outside)?;
        let no_status = || DriverFault("a request without a place for its status".to_owned());
        let data = output.available_bytes().checked_sub(1).ok_or_else(no_status)?;
        let mut status = output.split_at(data).map_err(|_| no_status())?;

        self.cost = 0;
        let code = match self.execute(&mut input, &mut output) {
            Ok(()) => VIRTIO_BLK_S_OK,
            Err(Refusal::Unsupported) => VIRTIO_BLK_S_UNSUPP,
            Err(Refusal::Invalid) => VIRTIO_BLK_S_IOERR,
            Err(Refusal::Disk(error)) => {
                self.count(&error);
                VIRTIO_BLK_S_IOERR
            }
        };
        let [code, ..] = code.to_le_bytes();
        status.write_all(&[code]).map_err(|_| no_status())?;
        let written = output.bytes_written();
        Ok(Done {
            // Bounded by MAX_REQUEST.
            written: u32::try_from(written + 1).unwrap_or(u32::MAX),
            cost: self.cost.saturating_add((written + input.bytes_read()) as u64),
        })
    }

    fn count(&mut self, error: &DiskError) {
        match error {
            DiskError::OutOfSpace { .. } => {
                self.errors.out_of_space += 1;
                if self.room == Room::Enough {
                    self.room = Room::Refused;
                }
            }
            // The guest's mistakes.
            DiskError::OutOfRange { .. } | DiskError::Misaligned { .. } => {}
            DiskError::Io { .. } | DiskError::SyncLost => self.errors.failed += 1,
        }
    }

    fn execute(&mut self, input: &mut Reader<'_>, output: &mut Writer<'_>) -> Result<(), Refusal> {
        let kind = read_u32(input)?;
        let _priority = read_u32(input)?;
        let sector = read_u64(input)?;
        // What a request does not use must not be there: a buffer with the wrong direction would be left out silently.
        let (to_read, to_write) = (input.available_bytes(), output.available_bytes());
        let only = |wrong_direction: usize| {
            if wrong_direction == 0 { Ok(()) } else { Err(Refusal::Invalid) }
        };
        match kind {
            VIRTIO_BLK_T_IN => {
                only(to_read)?;
                self.read_sectors(byte_offset(sector)?, output)
            }
            VIRTIO_BLK_T_OUT | VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES if self.read_only => {
                Err(Refusal::Invalid)
            }
            VIRTIO_BLK_T_OUT => {
                only(to_write)?;
                self.write_sectors(byte_offset(sector)?, input)?;
                self.after_write()
            }
            VIRTIO_BLK_T_FLUSH => {
                only(to_read)?;
                only(to_write)?;
                self.flush()
            }
            VIRTIO_BLK_T_GET_ID => {
                only(to_read)?;
                if to_write < self.name.len() {
                    return Err(Refusal::Invalid);
                }
                output.write_all(&self.name).map_err(|_| Refusal::Invalid)
            }
            VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES => {
                only(to_write)?;
                self.clear_ranges(kind, input)?;
                self.after_write()
            }
            _ => Err(Refusal::Unsupported),
        }
    }

    fn read_sectors(&mut self, mut offset: u64, output: &mut Writer<'_>) -> Result<(), Refusal> {
        let mut left = self.data_length(offset, output.available_bytes())?;
        while left > 0 {
            self.bounce.resize(left.min(BOUNCE), 0);
            self.disk.read_at(offset, &mut self.bounce)?;
            output.write_all(&self.bounce).map_err(|_| Refusal::Invalid)?;
            offset += self.bounce.len() as u64;
            left -= self.bounce.len();
        }
        Ok(())
    }

    fn write_sectors(&mut self, mut offset: u64, input: &mut Reader<'_>) -> Result<(), Refusal> {
        let mut left = self.data_length(offset, input.available_bytes())?;
        while left > 0 {
            self.bounce.resize(left.min(BOUNCE), 0);
            input.read_exact(&mut self.bounce).map_err(|_| Refusal::Invalid)?;
            self.disk.write_at(offset, &self.bounce)?;
            offset += self.bounce.len() as u64;
            left -= self.bounce.len();
        }
        Ok(())
    }

    /// Checks the data of a read or a write: whole sectors of the disk, some, and not too many.
    fn data_length(&self, offset: u64, bytes: usize) -> Result<usize, Refusal> {
        if bytes == 0 || bytes as u64 > MAX_REQUEST {
            return Err(Refusal::Invalid);
        }
        self.disk.check_range(offset, bytes as u64)?;
        Ok(bytes)
    }

    fn clear_ranges(&mut self, kind: u32, input: &mut Reader<'_>) -> Result<(), Refusal> {
        let bytes = input.available_bytes();
        let count = bytes / RANGE;
        if !bytes.is_multiple_of(RANGE) || count == 0 || count > MAX_RANGES as usize {
            return Err(Refusal::Invalid);
        }
        for _ in 0..count {
            let offset = byte_offset(read_u64(input)?)?;
            let sectors = read_u32(input)?;
            let flags = read_u32(input)?;
            let allowed = match kind {
                VIRTIO_BLK_T_WRITE_ZEROES => VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
                _ => 0,
            };
            if flags & !allowed != 0 {
                return Err(Refusal::Unsupported);
            }
            if sectors > MAX_RANGE_SECTORS {
                return Err(Refusal::Invalid);
            }
            let length = u64::from(sectors) * SECTOR as u64;
            self.cost = self.cost.saturating_add(length);
            match kind {
                VIRTIO_BLK_T_WRITE_ZEROES => self.disk.write_zeroes(offset, length)?,
                _ => self.disk.discard(offset, length)?,
            }
        }
        Ok(())
    }

    fn after_write(&mut self) -> Result<(), Refusal> {
        if self.write_through {
            self.flush()?;
        }
        Ok(())
    }

    /// Waits for the host's disk, and uses up the budget: a pause that waits for this call comes next.
    fn flush(&mut self) -> Result<(), Refusal> {
        self.cost = BUDGET.bytes;
        Ok(self.disk.flush()?)
    }
}

fn byte_offset(sector: u64) -> Result<u64, Refusal> {
    sector.checked_mul(SECTOR as u64).ok_or(Refusal::Invalid)
}

fn read_u32(input: &mut Reader<'_>) -> Result<u32, Refusal> {
    let mut bytes = [0; 4];
    input.read_exact(&mut bytes).map_err(|_| Refusal::Invalid)?;
    Ok(u32::from_le_bytes(bytes))
}

fn read_u64(input: &mut Reader<'_>) -> Result<u64, Refusal> {
    let mut bytes = [0; 8];
    input.read_exact(&mut bytes).map_err(|_| Refusal::Invalid)?;
    Ok(u64::from_le_bytes(bytes))
}
