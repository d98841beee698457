//! The disk that a VM sees: a stack of shared layers and a top of its own.

use std::fs::File;
use std::io;
use std::ops::Range;

use super::error::{DiskError, StackError, is_out_of_space};
use super::layer::Layer;
use super::map::{AllocationMap, BlockState};
use super::stack::{DiskState, LayerStack, MAX_LAYERS, Source, check_size};
use super::{GRAIN, SECTOR};

/// A disk with one private top layer.
#[derive(Debug)]
pub struct LayeredDisk {
    stack: LayerStack,
    top: Layer,
    /// The bytes of data that are this disk's own: in the top, and in tops that were frozen since.
    limit: u64,
    /// Its own blocks.
    held: usize,
    /// Those of them that are in frozen layers, unless the top says otherwise. Kept only where the limit could be reached: where it
    /// is as large as the disk, no blocks of it are too many.
    earlier: Option<AllocationMap>,
}

/// What became of the old top when it was frozen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frozen {
    /// It is now the newest frozen layer.
    Layer,
    /// It was empty. It is gone, and the stack is as it was: branches of an idle VM do not make its disk deeper.
    Nothing,
}

/// An empty top layer for a disk, not in its place yet.
#[derive(Debug)]
pub struct NewTop(Layer);

impl LayeredDisk {
    /// Puts a top layer above a stack. The disk may hold `limit` bytes of data of its own at most, also when its top is frozen and
    /// it gets another; a layer that holds more already is taken as it is and gets no more.
    pub fn new(stack: LayerStack, top: Layer, limit: u64) -> Result<LayeredDisk, StackError> {
        check_size(&top, stack.size(), || "the top layer".to_owned())?;
        let held = top.data_blocks();
        Ok(LayeredDisk { stack, top, limit, held, earlier: None })
    }

    /// Puts a new, empty top layer above a stack.
    pub fn with_empty_top(stack: LayerStack, top: File, limit: u64) -> Result<LayeredDisk, StackError> {
        let top = Layer::create(top, stack.size())?;
        LayeredDisk::new(stack, top, limit)
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.stack.size()
    }

    /// The bytes of data that are this disk's own, in whole blocks.
    pub fn allocated(&self) -> u64 {
        (self.held * GRAIN) as u64
    }

    /// The layers that a branch shares with this disk.
    pub fn stack(&self) -> &LayerStack {
        &self.stack
    }

    pub fn top_file(&self) -> &File {
        self.top.file()
    }

    pub fn state(&self) -> DiskState {
        self.stack.state(self.limit)
    }

    /// Whether a request for this range can be served, before any of it is.
    pub fn check_range(&self, offset: u64, length: u64) -> Result<(), DiskError> {
        self.check(offset, length).map(|_| ())
    }

    /// Reads sectors.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DiskError> {
        let range = self.check(offset, buffer.len() as u64)?;
        let mut at = range.start;
        let mut rest = buffer;
        while !rest.is_empty() {
            let (block, skip) = (at / GRAIN, at % GRAIN);
            let wanted = (skip + rest.len()).div_ceil(GRAIN);
            let (source, run) = self.source(block, wanted);
            let (part, after) = rest.split_at_mut((run * GRAIN - skip).min(rest.len()));
            match source {
                Source::Layer(layer) => layer.read_data(at as u64, part),
                Source::Base => self.stack.read_base(at as u64, part),
                Source::Zero => {
                    part.fill(0);
                    Ok(())
                }
            }
            .map_err(|source| DiskError::Io { action: "read from the disk", source })?;
            at += part.len();
            rest = after;
        }
        Ok(())
    }

    /// Writes sectors. If there is no room for all of them, none is written.
    pub fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<(), DiskError> {
        let range = self.check(offset, data.len() as u64)?;
        self.reserve(&range)?;
        let mut at = range.start;
        let mut rest = data;
        while !rest.is_empty() {
            let (block, skip) = (at / GRAIN, at % GRAIN);
            let (part, after) = if skip == 0 && rest.len() >= GRAIN {
                let (whole, after) = rest.split_at(rest.len() / GRAIN * GRAIN);
                self.write_blocks(block, whole)?;
                (whole, after)
            } else {
                let (part, after) = rest.split_at((GRAIN - skip).min(rest.len()));
                self.write_part(block, skip, part)?;
                (part, after)
            };
            at += part.len();
            rest = after;
        }
        Ok(())
    }

    /// Gives up the whole blocks in a range, which then read as zeroes. What the range covers of a block only in part stays
    /// as it is: a discard never needs room.
    pub fn discard(&mut self, offset: u64, length: u64) -> Result<(), DiskError> {
        let range = self.check(offset, length)?;
        let (first, end) = (range.start.div_ceil(GRAIN), range.end / GRAIN);
        if first < end {
            self.held -= self.own_in(first, end - first);
            self.top.mark_zero(first, end - first);
        }
        Ok(())
    }

    /// Makes exactly this range read as zeroes.
    pub fn write_zeroes(&mut self, offset: u64, length: u64) -> Result<(), DiskError> {
        let range = self.check(offset, length)?;
        let head = range.start..range.start.next_multiple_of(GRAIN).min(range.end);
        let tail = (range.end / GRAIN * GRAIN).max(head.end)..range.end;
        // The edges first: they can run out of room, and then nothing else has changed.
        for edge in [head, tail] {
            if !edge.is_empty() && !matches!(self.source(edge.start / GRAIN, 1), (Source::Zero, _)) {
                self.write_at(edge.start as u64, &[0; GRAIN][..edge.len()])?;
            }
        }
        self.discard(offset, length)
    }

    /// Brings to stable storage all that was written, discarded and zeroed, also in layers that were frozen since.
    pub fn flush(&mut self) -> Result<(), DiskError> {
        let flushed = self.stack.flush().and_then(|()| self.top.flush());
        flushed.map_err(|error| match error {
            DiskError::Io { source, .. } if is_out_of_space(&source) => self.out_of_space(),
            error => error,
        })
    }

    /// Makes the top a frozen layer and puts a new one, on an empty file, above it. Nothing is written to the old top and
    /// nothing is synced: this happens while a VM is paused. The frozen layer's file is complete after the next flush; until
    /// then its map is in the memory of this process and of those forked from it, and each of them may do the flush.
    pub fn freeze_top(&mut self, new_top: File) -> Result<Frozen, StackError> {
        let new_top = self.prepare_top(new_top)?;
        Ok(self.freeze_under(new_top))
    }

    /// All of a freeze that can fail. The disk is as it was.
    pub fn prepare_top(&self, new_top: File) -> Result<NewTop, StackError> {
        if self.stack.layers() >= MAX_LAYERS {
            let found = self.stack.layers() + 1;
            return Err(StackError::TooManyLayers { found });
        }
        Ok(NewTop(Layer::create(new_top, self.size())?))
    }

    /// The rest of a freeze, with a top that was prepared for this disk as it is.
    pub fn freeze_under(&mut self, NewTop(new_top): NewTop) -> Frozen {
        let old_top = std::mem::replace(&mut self.top, new_top);
        if old_top.is_empty() {
            return Frozen::Nothing;
        }
        if self.limit < self.size() {
            old_top.add_to(&mut self.earlier);
        }
        self.stack.push(old_top);
        Frozen::Layer
    }

    /// Puts one frozen layer in the place of several, which [`merge`](super::merge) has made of them.
    pub fn replace_layers(&mut self, layers: Range<usize>, merged: Layer) -> Result<(), StackError> {
        self.stack.replace(layers, merged)
    }

    fn source(&self, first: usize, limit: usize) -> (Source<'_>, usize) {
        match self.top.run(first, limit) {
            (BlockState::Data, run) => (Source::Layer(&self.top), run),
            (BlockState::Zero, run) => (Source::Zero, run),
            (BlockState::Absent, run) => self.stack.source(first, run),
        }
    }

    /// How many of these blocks are the disk's own.
    fn own_in(&self, first: usize, count: usize) -> usize {
        let Some(earlier) = &self.earlier else { return self.top.count_data(first, count) };
        let (mut block, end, mut own) = (first, first + count, 0);
        while block < end {
            let (state, run) = self.top.run(block, end - block);
            own += match state {
                BlockState::Data => run,
                BlockState::Zero => 0,
                BlockState::Absent => earlier.count_data(block, run),
            };
            block += run;
        }
        own
    }

    /// Refuses a write that would need more room than there is.
    fn reserve(&self, range: &Range<usize>) -> Result<(), DiskError> {
        if range.is_empty() {
            return Ok(());
        }
        let first = range.start / GRAIN;
        let count = range.end.div_ceil(GRAIN) - first;
        let new = count - self.own_in(first, count);
        if new > 0 && self.allocated() + (new * GRAIN) as u64 > self.limit {
            return Err(self.out_of_space());
        }
        Ok(())
    }

    fn write_blocks(&mut self, block: usize, data: &[u8]) -> Result<(), DiskError> {
        let written = self.top.write_data((block * GRAIN) as u64, data);
        written.map_err(|source| self.write_failed(source))?;
        let count = data.len() / GRAIN;
        self.held += count - self.own_in(block, count);
        self.top.mark_data(block, count);
        Ok(())
    }

    /// Writes a part of one block. If the top does not have the block, the rest of it comes up from below.
    fn write_part(&mut self, block: usize, skip: usize, part: &[u8]) -> Result<(), DiskError> {
        let offset = (block * GRAIN) as u64;
        if self.top.state(block) == BlockState::Data {
            let written = self.top.write_data(offset + skip as u64, part);
            return written.map_err(|source| self.write_failed(source));
        }
        let mut whole = [0; GRAIN];
        self.read_at(offset, &mut whole)?;
        whole[skip..skip + part.len()].copy_from_slice(part);
        self.write_blocks(block, &whole)
    }

    fn write_failed(&self, source: io::Error) -> DiskError {
        if is_out_of_space(&source) {
            return self.out_of_space();
        }
        DiskError::Io { action: "write to the disk", source }
    }

    fn out_of_space(&self) -> DiskError {
        DiskError::OutOfSpace { allocated: self.allocated(), limit: self.limit }
    }

    fn check(&self, offset: u64, length: u64) -> Result<Range<usize>, DiskError> {
        let size = self.size();
        let out_of_range = DiskError::OutOfRange { offset, length, size };
        let end = match offset.checked_add(length) {
            Some(end) if end <= size => end,
            _ => return Err(out_of_range),
        };
        if !offset.is_multiple_of(SECTOR as u64) || !length.is_multiple_of(SECTOR as u64) {
            return Err(DiskError::Misaligned { offset, length });
        }
        // A disk is never larger than an address space can count.
        match (usize::try_from(offset), usize::try_from(end)) {
            (Ok(start), Ok(end)) => Ok(start..end),
            _ => Err(out_of_range),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    const SIZE: u64 = 16 * GRAIN as u64;
    const BLOCK: u64 = GRAIN as u64;

    fn file() -> File {
        tempfile::tempfile().unwrap()
    }

    fn disk(limit: u64) -> LayeredDisk {
        let base = file();
        base.write_all_at(&[0xbb; 8 * GRAIN], 0).unwrap();
        let stack = LayerStack::new(SIZE, Some(base), vec![]).unwrap();
        LayeredDisk::with_empty_top(stack, file(), limit).unwrap()
    }

    fn read(disk: &LayeredDisk, offset: u64, length: usize) -> Vec<u8> {
        let mut buffer = vec![0xee; length];
        disk.read_at(offset, &mut buffer).unwrap();
        buffer
    }

    #[test]
    fn a_limit_holds_across_freezes() {
        let full = |result: Result<(), DiskError>| matches!(result, Err(DiskError::OutOfSpace { .. }));
        let mut disk = disk(4 * BLOCK);
        disk.write_at(0, &[1; 3 * GRAIN]).unwrap();
        disk.freeze_top(file()).unwrap();
        assert_eq!(disk.allocated(), 3 * BLOCK);
        assert!(full(disk.write_at(8 * BLOCK, &[2; 2 * GRAIN])));
        // What is written again is held already, whole or in part.
        disk.write_at(0, &[2; 3 * GRAIN]).unwrap();
        disk.freeze_top(file()).unwrap();
        disk.write_at(BLOCK + 512, &[3; 512]).unwrap();
        assert_eq!(disk.allocated(), 3 * BLOCK);
        disk.write_at(8 * BLOCK, &[4; GRAIN]).unwrap();
        assert!(full(disk.write_at(9 * BLOCK, &[4; GRAIN])));
        // What is given up makes room, also after another freeze, and once.
        disk.discard(0, 2 * BLOCK).unwrap();
        assert_eq!(disk.allocated(), 2 * BLOCK);
        disk.freeze_top(file()).unwrap();
        disk.discard(0, 2 * BLOCK).unwrap();
        disk.write_at(9 * BLOCK, &[5; 2 * GRAIN]).unwrap();
        assert!(full(disk.write_at(0, &[6; GRAIN])));
        assert_eq!(read(&disk, 2 * BLOCK, GRAIN), [2; GRAIN]);
        assert_eq!(read(&disk, 0, GRAIN), [0; GRAIN]);
    }

    #[test]
    fn a_part_of_a_block_brings_the_rest_up_from_below() {
        let mut disk = disk(u64::MAX);
        disk.write_at(BLOCK + 512, &[1; 512]).unwrap();
        let block = read(&disk, BLOCK, GRAIN);
        assert_eq!(block[..512], [0xbb; 512]);
        assert_eq!(block[512..1024], [1; 512]);
        assert_eq!(block[1024..], [0xbb; GRAIN - 1024]);
        assert_eq!(disk.allocated(), BLOCK);
    }

    #[test]
    fn a_discarded_block_does_not_show_the_parent_s_data() {
        let mut disk = disk(u64::MAX);
        disk.discard(0, BLOCK).unwrap();
        assert_eq!(read(&disk, 0, GRAIN), [0; GRAIN]);
        disk.freeze_top(file()).unwrap();
        assert_eq!(read(&disk, 0, GRAIN), [0; GRAIN]);
        // A sector into the zeroed block does not bring the base back either.
        disk.write_at(512, &[1; 512]).unwrap();
        assert_eq!(read(&disk, 0, 512), [0; 512]);
        assert_eq!(read(&disk, 1024, 512), [0; 512]);
    }

    #[test]
    fn a_discard_leaves_parts_of_blocks_alone() {
        let mut disk = disk(u64::MAX);
        disk.discard(512, 2 * BLOCK).unwrap();
        assert_eq!(read(&disk, 0, GRAIN), [0xbb; GRAIN]);
        assert_eq!(read(&disk, BLOCK, GRAIN), [0; GRAIN]);
        assert_eq!(read(&disk, 2 * BLOCK, GRAIN), [0xbb; GRAIN]);
        assert_eq!(disk.allocated(), 0);
    }

    #[test]
    fn a_full_top_layer_refuses_and_changes_nothing() {
        let mut disk = disk(2 * BLOCK);
        disk.write_at(0, &[1; GRAIN]).unwrap();
        let full = |result: Result<(), DiskError>| {
            let error = result.unwrap_err();
            assert!(matches!(error, DiskError::OutOfSpace { .. }), "{error}");
        };
        // Two of these three are new.
        full(disk.write_at(0, &[2; 3 * GRAIN]));
        assert_eq!(read(&disk, 0, GRAIN), [1; GRAIN]);
        assert_eq!(read(&disk, BLOCK, 2 * GRAIN), [0xbb; 2 * GRAIN]);
        disk.write_at(0, &[2; 2 * GRAIN]).unwrap();
        full(disk.write_at(5 * BLOCK + 512, &[3; 512]));
        full(disk.write_zeroes(5 * BLOCK + 512, 512));
        // What is there can be overwritten, and what is given up makes room.
        disk.write_at(512, &[4; 512]).unwrap();
        disk.discard(0, BLOCK).unwrap();
        disk.write_at(5 * BLOCK, &[5; GRAIN]).unwrap();
        assert_eq!(disk.allocated(), 2 * BLOCK);
        // The limit is the disk's: a new top layer is no new room.
        assert_eq!(disk.freeze_top(file()).unwrap(), Frozen::Layer);
        full(disk.write_at(0, &[6; 2 * GRAIN]));
        disk.write_at(5 * BLOCK, &[6; GRAIN]).unwrap();
    }

    #[test]
    fn requests_outside_the_disk_or_off_the_sectors_are_refused() {
        let mut disk = disk(u64::MAX);
        for (offset, length) in [(SIZE, 512), (SIZE - 512, 1024), (u64::MAX - 511, 512), (0, SIZE + 512)] {
            let error = disk.discard(offset, length).unwrap_err();
            assert!(matches!(error, DiskError::OutOfRange { .. }), "{error}");
            let error = disk.write_zeroes(offset, length).unwrap_err();
            assert!(matches!(error, DiskError::OutOfRange { .. }), "{error}");
        }
        assert!(matches!(disk.write_at(SIZE - 512, &[0; 1024]), Err(DiskError::OutOfRange { .. })));
        assert!(matches!(disk.read_at(1, &mut [0; 512]), Err(DiskError::Misaligned { .. })));
        assert!(matches!(disk.write_at(0, &[0; 511]), Err(DiskError::Misaligned { .. })));
        disk.read_at(SIZE, &mut []).unwrap();
        disk.write_at(SIZE, &[]).unwrap();
    }

    #[test]
    fn an_empty_top_adds_no_layer() {
        let mut disk = disk(u64::MAX);
        assert_eq!(disk.freeze_top(file()).unwrap(), Frozen::Nothing);
        disk.write_at(0, &[1; 512]).unwrap();
        assert_eq!(disk.freeze_top(file()).unwrap(), Frozen::Layer);
        assert_eq!(disk.freeze_top(file()).unwrap(), Frozen::Nothing);
        assert_eq!(disk.state().layers, 1);
        assert_eq!(read(&disk, 0, 512), [1; 512]);
    }

    #[test]
    fn a_new_top_that_is_no_empty_file_leaves_the_disk_as_it_was() {
        let mut disk = disk(u64::MAX);
        disk.write_at(0, &[1; 512]).unwrap();
        let used = file();
        used.set_len(1).unwrap();
        assert!(matches!(disk.freeze_top(used), Err(StackError::Top { .. })));
        assert_eq!(disk.state().layers, 0);
        disk.write_at(512, &[2; 512]).unwrap();
        assert_eq!(read(&disk, 0, 1024), [[1; 512], [2; 512]].concat());
    }

    #[test]
    fn a_flush_makes_layers_whole_that_were_frozen_before_it() {
        let mut disk = disk(u64::MAX);
        disk.write_at(0, &[1; GRAIN]).unwrap();
        disk.freeze_top(file()).unwrap();
        let reopened = |disk: &LayeredDisk| {
            let frozen = disk.stack.layer_files().next().unwrap().try_clone().unwrap();
            Layer::open(frozen).unwrap().state(0)
        };
        assert_eq!(reopened(&disk), BlockState::Absent);
        // A branch that shares the layer may do it as well.
        disk.stack().clone().flush().unwrap();
        assert_eq!(reopened(&disk), BlockState::Data);
        disk.flush().unwrap();
    }
}
