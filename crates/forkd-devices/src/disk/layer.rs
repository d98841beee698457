//! One layer: a file in the format of `header`, with its map in memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::error::{DiskError, LayerError};
use super::header::{self, Geometry, HEADER, MAP_START};
use super::map::{AllocationMap, BlockState};
use super::{GRAIN, SECTOR};

/// A layer of a disk. It is written as the top of a [`LayeredDisk`](super::LayeredDisk) only.
#[derive(Debug)]
pub struct Layer {
    file: File,
    geometry: Geometry,
    map: AllocationMap,
    /// Whether the file holds all that the layer does, safe from a crash of the host.
    settled: AtomicBool,
    sync_failed: AtomicBool,
}

impl Layer {
    /// Makes an empty file an empty layer of a disk of `size` bytes.
    pub fn create(file: File, size: u64) -> Result<Layer, LayerError> {
        let geometry = Geometry::of(size)?;
        let length = length(&file)?;
        if length != 0 {
            return Err(LayerError::NotEmpty { length });
        }
        let io = |action| move |source| LayerError::Io { action, source };
        file.set_len(geometry.file_length()).map_err(io("set the length"))?;
        // Not synced: this is on the way of every fork. The first flush takes it along.
        file.write_all_at(&header::encode(&geometry), 0).map_err(io("write the header"))?;
        Ok(Layer {
            file,
            geometry,
            map: AllocationMap::new(&geometry),
            settled: AtomicBool::new(false),
            sync_failed: AtomicBool::new(false),
        })
    }

    /// Opens a layer that was flushed or completed before. A descriptor for reading is enough for a frozen one.
    pub fn open(file: File) -> Result<Layer, LayerError> {
        let io = |action| move |source| LayerError::Io { action, source };
        let found = length(&file)?;
        if found < HEADER as u64 {
            return Err(LayerError::Length { found, expected: MAP_START });
        }
        let mut bytes = [0; HEADER];
        file.read_exact_at(&mut bytes, 0).map_err(io("read the header"))?;
        let geometry = header::decode(&bytes)?;
        let expected = geometry.file_length();
        if found != expected {
            return Err(LayerError::Length { found, expected });
        }
        let mut map = AllocationMap::new(&geometry);
        let mut page = [0; GRAIN];
        for number in 0..geometry.map_bytes / GRAIN {
            file.read_exact_at(&mut page, map_page_offset(number)).map_err(io("read the allocation map"))?;
            map.load_page(number, &page)?;
        }
        Ok(Layer { file, geometry, map, settled: AtomicBool::new(true), sync_failed: AtomicBool::new(false) })
    }

    /// The size of the disk that this is a layer of.
    pub fn size(&self) -> u64 {
        self.geometry.size
    }

    /// The bytes of data in this layer, in whole blocks.
    pub fn allocated(&self) -> u64 {
        (self.map.data_blocks() * GRAIN) as u64
    }

    pub(super) fn data_blocks(&self) -> usize {
        self.map.data_blocks()
    }

    /// Takes what this layer knows into a map of what older ones know.
    pub(super) fn add_to(&self, older: &mut Option<AllocationMap>) {
        older.get_or_insert_with(|| AllocationMap::new(&self.geometry)).overlay(&self.map);
    }

    /// The length of the file of a layer, for a disk of this size.
    pub fn file_length(size: u64) -> Result<u64, LayerError> {
        Ok(Geometry::of(size)?.file_length())
    }

    /// Whether nothing was ever written to, discarded from or zeroed in this layer.
    pub fn is_empty(&self) -> bool {
        !self.map.is_used()
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn state(&self, block: usize) -> BlockState {
        self.map.state(block)
    }

    pub(super) fn run(&self, first: usize, limit: usize) -> (BlockState, usize) {
        self.map.run(first, limit)
    }

    pub(super) fn count_data(&self, first: usize, count: usize) -> usize {
        self.map.count_data(first, count)
    }

    /// Reads from the data area. The caller knows that the blocks hold data.
    pub(super) fn read_data(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, self.geometry.data_start + offset)
    }

    /// Writes whole blocks, or parts of blocks that hold data already. A block that gets its first data gets it whole, and
    /// its new state after that: at no moment does the map point at bytes that were not written.
    pub(super) fn write_data(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        debug_assert!(data.len().is_multiple_of(SECTOR));
        self.unsettle();
        self.file.write_all_at(data, self.geometry.data_start + offset)
    }

    /// Takes blocks over from another layer, in which they hold data. On a file system that can, they share its room.
    pub(super) fn copy_data(&mut self, from: &Layer, first: usize, count: usize) -> io::Result<()> {
        self.unsettle();
        let mut offset = self.geometry.data_start + (first * GRAIN) as u64;
        let end = offset + (count * GRAIN) as u64;
        while offset < end {
            offset += copy_part(&from.file, &self.file, offset, end - offset)?;
        }
        self.map.set(first, count, BlockState::Data);
        Ok(())
    }

    pub(super) fn mark_data(&mut self, first: usize, count: usize) {
        self.unsettle();
        self.map.set(first, count, BlockState::Data);
    }

    /// Makes blocks read as zeroes and gives their room back.
    pub(super) fn mark_zero(&mut self, first: usize, count: usize) {
        self.unsettle();
        let held_data = self.map.count_data(first, count) > 0;
        self.map.set(first, count, BlockState::Zero);
        if held_data {
            let offset = self.geometry.data_start + (first * GRAIN) as u64;
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Before the file's map says so, the blocks may read as zeroes already: they would be data of zeroes, which is
            // the same. If the file system cannot punch, the room stays taken and nothing else is different.
            let _ = rustix::fs::fallocate(&self.file, flags, offset, (count * GRAIN) as u64);
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    fn unsettle(&mut self) {
        *self.settled.get_mut() = false;
    }

    /// Brings everything to stable storage, in an order that makes a crash harmless at any point: first the data, then the
    /// map that points at it, then that map is synced too. A page of the map that a crash tears holds old and new states side
    /// by side, and both are true: the data of the new ones is there.
    pub(super) fn flush(&mut self) -> Result<(), DiskError> {
        self.settle()?;
        self.map.clean();
        Ok(())
    }

    /// The same for a frozen layer, which several stacks may share. They write the same bytes to the same places, so it does
    /// not matter who is first, nor whether that is another process.
    pub(super) fn settle(&self) -> Result<(), DiskError> {
        if self.sync_failed.load(Ordering::Acquire) {
            return Err(DiskError::SyncLost);
        }
        if self.is_settled() {
            return Ok(());
        }
        self.sync("sync the data of the disk")?;
        if self.map.is_dirty() {
            self.write_map()?;
            self.sync("sync the allocation map of the disk")?;
        }
        self.settled.store(true, Ordering::Release);
        Ok(())
    }

    /// Makes the file of a frozen layer hold all that the layer does, without waiting for the disk: other processes find it there,
    /// a host that loses power may not.
    pub(super) fn complete(&self) -> Result<(), DiskError> {
        if self.sync_failed.load(Ordering::Acquire) {
            return Err(DiskError::SyncLost);
        }
        if self.is_settled() {
            return Ok(());
        }
        self.write_map()
    }

    /// Leaves to the next flush what the layers have left to theirs in whose place this one comes.
    pub(super) fn succeed(&mut self, layers: &[Arc<Layer>]) {
        *self.settled.get_mut() &= layers.iter().all(|layer| layer.is_settled());
    }

    fn write_map(&self) -> Result<(), DiskError> {
        for (number, page) in self.map.dirty_pages() {
            self.file
                .write_all_at(page, map_page_offset(number))
                .map_err(|source| DiskError::Io { action: "write the allocation map of the disk", source })?;
        }
        Ok(())
    }

    fn sync(&self, action: &'static str) -> Result<(), DiskError> {
        self.file.sync_data().map_err(|source| {
            self.sync_failed.store(true, Ordering::Release);
            DiskError::Io { action, source }
        })
    }
}

/// Copies what comes first of a range between files of the same geometry, and says how much that was.
fn copy_part(from: &File, to: &File, offset: u64, length: u64) -> io::Result<u64> {
    const PART: usize = 1 << 20;
    // At most PART.
    let wanted = usize::try_from(length).unwrap_or(PART).min(PART);
    let (mut read_at, mut write_at) = (offset, offset);
    let copied = match rustix::fs::copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), wanted)
    {
        Ok(copied) => copied,
        // Not within this file system, or not between these two.
        Err(Errno::NOSYS | Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP) => {
            let mut buffer = vec![0; wanted];
            from.read_exact_at(&mut buffer, offset)?;
            to.write_all_at(&buffer, offset)?;
            wanted
        }
        Err(error) => return Err(error.into()),
    };
    if copied == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(copied as u64)
}

fn map_page_offset(number: usize) -> u64 {
    MAP_START + (number * GRAIN) as u64
}

fn length(file: &File) -> Result<u64, LayerError> {
    let metadata = file.metadata().map_err(|source| LayerError::Io { action: "read the length", source })?;
    Ok(metadata.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    const SIZE: u64 = 64 * GRAIN as u64;

    fn layer() -> (Layer, File) {
        let file = tempfile::tempfile().unwrap();
        let copy = file.try_clone().unwrap();
        (Layer::create(file, SIZE).unwrap(), copy)
    }

    fn fill(layer: &mut Layer, block: usize, byte: u8) {
        layer.write_data((block * GRAIN) as u64, &[byte; GRAIN]).unwrap();
        layer.mark_data(block, 1);
    }

    #[test]
    fn a_layer_is_the_same_when_opened_again() {
        let (mut layer, file) = layer();
        fill(&mut layer, 3, 7);
        layer.mark_zero(5, 2);
        layer.flush().unwrap();
        assert!(!layer.map.is_dirty(), "the next flush would write it again");

        let again = Layer::open(file).unwrap();
        assert_eq!((again.size(), again.allocated()), (SIZE, GRAIN as u64));
        assert_eq!(again.run(2, 1), (BlockState::Absent, 1));
        assert_eq!(again.run(3, 10), (BlockState::Data, 1));
        assert_eq!(again.run(5, 10), (BlockState::Zero, 2));
        let mut block = [0; GRAIN];
        again.read_data(3 * GRAIN as u64, &mut block).unwrap();
        assert_eq!(block, [7; GRAIN]);
    }

    #[test]
    fn what_was_not_flushed_is_not_in_the_file_s_map() {
        let (mut layer, file) = layer();
        fill(&mut layer, 3, 7);
        layer.flush().unwrap();
        fill(&mut layer, 4, 8);
        layer.mark_zero(3, 1);

        // As if the process had been killed here.
        let crashed = Layer::open(file).unwrap();
        assert_eq!(crashed.state(4), BlockState::Absent);
        // The discard was punched already: data, and zeroes.
        assert_eq!(crashed.state(3), BlockState::Data);
        let mut block = [1; GRAIN];
        crashed.read_data(3 * GRAIN as u64, &mut block).unwrap();
        assert_eq!(block, [0; GRAIN]);
    }

    #[test]
    fn the_file_is_sparse_and_discard_gives_room_back() {
        let (mut layer, file) = layer();
        for block in 0..32 {
            fill(&mut layer, block, 1);
        }
        layer.flush().unwrap();
        let blocks = |file: &File| file.metadata().unwrap().blocks() * 512;
        let full = blocks(&file);
        assert!((32 * GRAIN as u64..SIZE).contains(&full), "{full} bytes");
        layer.mark_zero(0, 32);
        layer.flush().unwrap();
        assert!(blocks(&file) <= full - 31 * GRAIN as u64, "{}", blocks(&file));
        assert_eq!(layer.allocated(), 0);
    }

    #[test]
    fn a_file_that_is_no_layer_is_refused_by_name() {
        let refused = |break_it: &dyn Fn(&File)| {
            let (mut layer, file) = layer();
            fill(&mut layer, 3, 7);
            layer.flush().unwrap();
            break_it(&file);
            Layer::open(file).unwrap_err().to_string()
        };
        let length = Geometry::of(SIZE).unwrap().file_length();
        let expect = |found| format!("the file of the disk layer has {found} bytes; {length} are expected");
        assert_eq!(refused(&|file| file.set_len(length - 1).unwrap()), expect(length - 1));
        assert_eq!(refused(&|file| file.set_len(length + 1).unwrap()), expect(length + 1));
        assert_eq!(
            refused(&|file| file.set_len(31).unwrap()),
            "the file of the disk layer has 31 bytes; 4096 are expected"
        );
        assert!(refused(&|file| file.write_all_at(b"QFI\xfb", 0).unwrap()).starts_with("not a disk layer"));
        assert_eq!(
            refused(&|file| file.write_all_at(&[2], 8).unwrap()),
            "a disk layer of version 2; version 1 is expected"
        );
        assert!(refused(&|file| file.write_all_at(&[1], 17).unwrap()).contains("is damaged"));
        assert_eq!(
            refused(&|file| file.write_all_at(&[0b11], MAP_START + 2).unwrap()),
            "the allocation map of the disk layer gives block 8 a state that does not exist"
        );
        assert_eq!(
            refused(&|file| file.write_all_at(&[1], MAP_START + 16).unwrap()),
            "the allocation map of the disk layer has entries after the last block, 63"
        );
    }

    #[test]
    fn a_file_with_something_in_it_does_not_become_a_layer() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1).unwrap();
        let error = Layer::create(file, SIZE).unwrap_err();
        assert!(matches!(error, LayerError::NotEmpty { length: 1 }), "{error}");
    }

    #[test]
    fn a_failed_sync_is_not_forgotten() {
        let (mut layer, _) = layer();
        layer.flush().unwrap();
        layer.sync_failed.store(true, Ordering::Release);
        assert!(matches!(layer.flush(), Err(DiskError::SyncLost)));
    }
}
