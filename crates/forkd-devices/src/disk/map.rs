//! The allocation map of a layer in memory, and which of its pages the file does not have yet.

use std::collections::BTreeSet;

use super::GRAIN;
use super::error::LayerError;
use super::header::{BLOCKS_PER_BYTE, Geometry};

/// What a layer knows about a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockState {
    /// Nothing: the layer below knows.
    Absent,
    /// The block is in the data area.
    Data,
    /// The block reads as zeroes, whatever the data area or the layers below hold.
    Zero,
}

impl BlockState {
    fn bits(self) -> u8 {
        match self {
            BlockState::Absent => 0b00,
            BlockState::Data => 0b01,
            BlockState::Zero => 0b10,
        }
    }

    fn repeated(self) -> u8 {
        self.bits() * 0b0101_0101
    }
}

/// The low bits of the four states in a byte. Data is the only state that has it, since 11 does not get in.
const LOW_BITS: u8 = 0b0101_0101;

/// The map is as large as in the file, and mostly untouched memory: the unwritten pages of a fresh map are
/// never allocated, which counts when a thousand children have one each.
#[derive(Debug)]
pub(super) struct AllocationMap {
    bytes: Vec<u8>,
    blocks: usize,
    /// Blocks that hold data.
    data: usize,
    /// Whether any block is or was other than absent.
    used: bool,
    /// Pages that differ from the file.
    dirty: BTreeSet<usize>,
}

impl AllocationMap {
    pub fn new(geometry: &Geometry) -> AllocationMap {
        AllocationMap {
            bytes: vec![0; geometry.map_bytes],
            blocks: geometry.blocks,
            data: 0,
            used: false,
            dirty: BTreeSet::new(),
        }
    }

    /// Takes over one page of the file.
    pub fn load_page(&mut self, page: usize, bytes: &[u8; GRAIN]) -> Result<(), LayerError> {
        // Untouched memory stays untouched.
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        for (index, byte) in bytes.iter().enumerate() {
            let both = byte & (byte >> 1) & LOW_BITS;
            if both != 0 {
                let first = (page * GRAIN + index) * BLOCKS_PER_BYTE;
                return Err(LayerError::State { block: first + both.trailing_zeros() as usize / 2 });
            }
            self.data += (byte & LOW_BITS).count_ones() as usize;
        }
        self.bytes[page * GRAIN..(page + 1) * GRAIN].copy_from_slice(bytes);
        self.used = true;
        self.check_end(page)
    }

    /// What lies behind the last block is zero.
    fn check_end(&self, page: usize) -> Result<(), LayerError> {
        let last = self.blocks - 1;
        let (byte, end) = (last / BLOCKS_PER_BYTE, (page + 1) * GRAIN);
        if byte >= end {
            return Ok(());
        }
        let used_bits = 2 * (last % BLOCKS_PER_BYTE + 1);
        let rest_of_byte = u16::from(self.bytes[byte]) >> used_bits;
        let rest = &self.bytes[byte + 1..end];
        if rest_of_byte != 0 || rest.iter().any(|byte| *byte != 0) {
            return Err(LayerError::BeyondEnd { last });
        }
        Ok(())
    }

    pub fn state(&self, block: usize) -> BlockState {
        let bits = self.bytes[block / BLOCKS_PER_BYTE] >> (2 * (block % BLOCKS_PER_BYTE));
        match bits & 0b11 {
            0b00 => BlockState::Absent,
            0b01 => BlockState::Data,
            _ => BlockState::Zero,
        }
    }

    /// The state of the block `first`, and how many blocks from there on have the same, up to `limit`.
    pub fn run(&self, first: usize, limit: usize) -> (BlockState, usize) {
        let state = self.state(first);
        let end = (first + limit).min(self.blocks);
        let mut block = first + 1;
        while block < end {
            if block.is_multiple_of(BLOCKS_PER_BYTE)
                && end - block >= BLOCKS_PER_BYTE
                && self.bytes[block / BLOCKS_PER_BYTE] == state.repeated()
            {
                block += BLOCKS_PER_BYTE;
            } else if self.state(block) == state {
                block += 1;
            } else {
                break;
            }
        }
        (state, block.min(end) - first)
    }

    /// How many of these blocks hold data.
    pub fn count_data(&self, first: usize, count: usize) -> usize {
        let mut block = first;
        let mut data = 0;
        while block < first + count {
            let (state, run) = self.run(block, first + count - block);
            if state == BlockState::Data {
                data += run;
            }
            block += run;
        }
        data
    }

    /// Gives all these blocks a state.
    pub fn set(&mut self, first: usize, count: usize, state: BlockState) {
        let end = first + count;
        let mut block = first;
        while block < end {
            let index = block / BLOCKS_PER_BYTE;
            let old = self.bytes[index];
            let (new, step) = if block.is_multiple_of(BLOCKS_PER_BYTE) && end - block >= BLOCKS_PER_BYTE {
                (state.repeated(), BLOCKS_PER_BYTE)
            } else {
                let shift = 2 * (block % BLOCKS_PER_BYTE);
                ((old & !(0b11 << shift)) | (state.bits() << shift), 1)
            };
            if new != old {
                self.data -= (old & LOW_BITS).count_ones() as usize;
                self.data += (new & LOW_BITS).count_ones() as usize;
                self.bytes[index] = new;
                self.dirty.insert(index / GRAIN);
                self.used = true;
            }
            block += step;
        }
    }

    /// Takes over what a newer map knows: where it has data, there is data, and where it has zeroes, there is nothing. Only for a
    /// map that is in no file.
    pub fn overlay(&mut self, newer: &AllocationMap) {
        for (old, new) in self.bytes.chunks_mut(GRAIN).zip(newer.bytes.chunks(GRAIN)) {
            // Most of it is untouched.
            if new.iter().all(|byte| *byte == 0) {
                continue;
            }
            for (old, new) in old.iter_mut().zip(new).filter(|(_, new)| **new != 0) {
                let known = (new | new >> 1) & LOW_BITS;
                let merged = (*old & !(known | known << 1)) | (new & LOW_BITS);
                self.data -= (*old & LOW_BITS).count_ones() as usize;
                self.data += (merged & LOW_BITS).count_ones() as usize;
                *old = merged;
            }
        }
        self.used |= newer.used;
    }

    pub fn data_blocks(&self) -> usize {
        self.data
    }

    pub fn is_used(&self) -> bool {
        self.used
    }

    /// The pages that the file does not have yet, with their numbers.
    pub fn dirty_pages(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let page = |page: &usize| (*page, &self.bytes[page * GRAIN..(page + 1) * GRAIN]);
        self.dirty.iter().map(page)
    }

    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    pub fn clean(&mut self) {
        self.dirty.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn map(blocks: u64) -> AllocationMap {
        AllocationMap::new(&Geometry::of(blocks * GRAIN as u64).unwrap())
    }

    #[test]
    fn a_map_with_impossible_bits_is_refused() {
        let mut page = [0; GRAIN];
        page[2] = 0b0011_0000;
        let error = map(100).load_page(0, &page).unwrap_err();
        assert!(matches!(error, LayerError::State { block: 10 }), "{error}");

        // Six blocks: the second byte holds two of them.
        page[2] = 0;
        page[1] = 0b0000_1001;
        let mut good = map(6);
        good.load_page(0, &page).unwrap();
        assert_eq!((good.state(4), good.state(5)), (BlockState::Data, BlockState::Zero));
        assert_eq!(good.data_blocks(), 1);
        page[1] = 0b0001_1001;
        assert!(matches!(map(6).load_page(0, &page), Err(LayerError::BeyondEnd { last: 5 })));
        page[1] = 0;
        page[4000] = 0b10;
        assert!(matches!(map(6).load_page(0, &page), Err(LayerError::BeyondEnd { last: 5 })));
    }

    #[test]
    fn only_changed_pages_are_dirty() {
        let mut map = map(5 * 16384);
        map.set(16384, 1, BlockState::Zero);
        map.set(3 * 16384 - 1, 2, BlockState::Data);
        assert_eq!(map.dirty_pages().map(|(page, _)| page).collect::<Vec<_>>(), [1, 2, 3]);
        map.clean();
        map.set(16384, 1, BlockState::Zero);
        assert!(!map.is_dirty());
    }

    fn any_state() -> impl Strategy<Value = BlockState> {
        prop_oneof![Just(BlockState::Absent), Just(BlockState::Data), Just(BlockState::Zero)]
    }

    proptest! {
        #[test]
        fn ranges_are_as_single_blocks(
            changes in proptest::collection::vec((0usize..150, 0usize..150, any_state()), 1..40),
            (first, limit) in (0usize..150, 1usize..200),
        ) {
            let mut map = map(150);
            let mut plain = [BlockState::Absent; 150];
            for (start, count, state) in changes {
                let count = count.min(150 - start);
                map.set(start, count, state);
                plain[start..start + count].fill(state);
            }
            for (block, state) in plain.iter().enumerate() {
                prop_assert_eq!(map.state(block), *state);
            }
            let data = |states: &[BlockState]| states.iter().filter(|state| **state == BlockState::Data).count();
            prop_assert_eq!(map.data_blocks(), data(&plain));
            let end = (first + limit).min(150);
            prop_assert_eq!(map.count_data(first, end - first), data(&plain[first..end]));
            let run = plain[first..end].iter().take_while(|state| **state == plain[first]).count();
            prop_assert_eq!(map.run(first, limit), (plain[first], run));
        }
    }
}
